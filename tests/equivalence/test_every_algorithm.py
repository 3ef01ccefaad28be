"""What holds for every algorithm: a resume changes no bit, nor does who is computed with whom."""

import pytest
import torch

from harness.algorithms.catalogue import Algorithm
from harness.algorithms.diloco import EagerDiLoCo
from harness.algorithms.saved import pack, unpack
from harness.algorithms.stale import DelayCompensated
from harness.experiment.loop import slice_timeline
from tests.equivalence.catalogue import algorithms
from tests.theory.bowl import in_rounds, replayed, stale, vector

EVERY = {type(algorithm).__name__: algorithm for algorithm in algorithms().values()}
"""The last of each class, which has the most settings of its own."""
EVERY["DelayCompensated"] = DelayCompensated()  # in these bowls a stronger one diverges
CURVATURE, START = vector(1.0, 0.5, 0.25, 2.0), vector(1.0, -2.0, 0.5, 1.5)


def moved(algorithm: Algorithm, parts: int, alone: bool = False) -> torch.Tensor:
    """The last model, after so many parts, each of a replay that takes up the last one's state."""
    rounds = in_rounds(12, 4, 2, late=int(isinstance(algorithm, EagerDiLoCo)))
    timeline = rounds if algorithm.rounds else stale(36, 3, steps=2)
    lowest = lambda worker, step: [float(worker), 0.0, step % 3 - 1.0, 0.1]  # noqa: E731
    folds, state = len(timeline.folds), None
    for part in range(parts):
        made = replayed(algorithm, timeline, CURVATURE, START, lowest)
        made.alone = alone
        if state is not None:
            made.restore(unpack(*state, "cpu"))
        made.run(slice_timeline(timeline, folds * part // parts, folds * (part + 1) // parts), 0.05)
        state = pack(made)
    return made.server.model


@pytest.mark.parametrize("name", EVERY)
def test_a_resume_in_the_middle_changes_no_bit(name):
    assert torch.equal(moved(EVERY[name], 3), moved(EVERY[name], 1))


@pytest.mark.parametrize("name", EVERY)
def test_who_is_computed_with_whom_changes_rounding_at_most(name):
    together, alone = (moved(EVERY[name], 1, alone=alone) for alone in (False, True))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-13)
    assert (together - START).abs().min() > 1e-3
