"""The search for the point at which training breaks: runs tried one by one, and judged."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.errors import UserError
from harness.execution.jobs.experiment import Experiment
from harness.execution.jobs.tolerance import Knob, bracketed, check_ends
from harness.execution.runs.methods import Asked
from harness.judge.tolerance import Point, Tolerance, errors_of, point
from lagbench.result import Tolerated, cell_of


@dataclass(frozen=True)
class Search:
    """What is turned up, and how.

    Attributes:
        knob: what.
        between: the reference, and the largest value.
        workers: how many, where they are not what is turned up.
        margin: relative.
        halvings: at most.
        rate: for all values; None to have one found for each.
    """

    knob: Knob
    between: tuple[float, float]
    workers: int
    margin: float
    halvings: int
    rate: float | None


def tolerated(experiment: Experiment, algorithm: Asked, search: Search) -> Tolerated:
    """Turn a knob up until the error at the end breaks.

    Raises:
        UserError: training diverged where the search begins, or a value is not allowed.
    """
    knob, (low, high) = search.knob, search.between
    check_ends(knob, low, high)
    if not 0.0 <= search.margin < math.inf:
        raise UserError(f"margin: {search.margin}; allowed: a number from 0, relative")

    def cell(value: float):
        there = experiment.on(knob.turned(experiment.machine, value))
        workers = int(value) if knob.name == "workers" else search.workers
        return cell_of(there.run([algorithm], [workers], search.rate)[0])

    first = cell(low)
    reference = errors_of(first)
    if not all(math.isfinite(error) for error in reference):
        raise UserError(f"tolerate: training diverged at {knob.name} {low:g}; nothing to compare")
    points: dict[float, Point] = {low: point(low, first, reference, search.margin)}

    def breaks(value: float) -> bool:
        points[value] = point(value, cell(value), reference, search.margin)
        return points[value].broken

    ends = bracketed(knob, low, high, search.halvings, breaks)
    tried = [points[low], *(points[value] for value in sorted(points) if value != low)]
    return Tolerated(Tolerance(knob.name, knob.axis, search.margin, tried, *ends))
