"""Sweeps of which the suite has a sample; all else of them is for ``tox -e nightly``."""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import pytest


def sample(
    cells: Iterable[Any], is_sampled: Callable[[int], object], ids: Iterable[str] | None = None
) -> list[Any]:
    """Parameters of a test: cells that are sampled, by their number, and nightly others.

    Args:
        cells: values of one argument, or tuples of several.
        is_sampled: whether the suite has the cell of a number.
        ids: names of the cells.
    """
    names = repeat(None) if ids is None else ids
    return [
        pytest.param(
            *(cell if type(cell) is tuple else (cell,)),
            marks=() if is_sampled(number) else pytest.mark.nightly,
            id=name,
        )
        for (number, cell), name in zip(enumerate(cells), names, strict=False)
    ]


def runs(few: int, many: int) -> list[Any]:
    """Parameters of a test that tries so many random cases: few in the suite."""
    return sample([few, many], lambda number: number == 0)
