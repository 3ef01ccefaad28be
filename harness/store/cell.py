"""Runs that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.store.read import Run


@dataclass(frozen=True)
class Cell:
    """One method with one number of workers, as it was run.

    Attributes:
        method: its label.
        workers: how many.
        rate: of all its runs.
        runs: one for each seed.
        judged: the metric it is judged by, e.g. ``"dev_error"``.
        edge: whether its rate is the best of a sweep that tried none beyond it.
    """

    method: str
    workers: int
    rate: float
    runs: Sequence[Run]
    judged: str
    edge: bool = False
