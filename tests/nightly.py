"""Sweeps of which the suite has a sample; all else of them is for ``tox -e nightly``.

A test marked ``sampled(n)`` has every n-th of its cells in the suite (`tests/conftest.py`).
"""

from typing import Any

import pytest


def runs(few: int, many: int) -> list[Any]:
    """Parameters of a test that tries so many random cases: few in the suite."""
    return [few, pytest.param(many, marks=pytest.mark.nightly)]
