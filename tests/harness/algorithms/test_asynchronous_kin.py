"""Folds of asynchronous SGD's kin by hand, and against asynchronous SGD where they are it."""

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd, ClippedSgd
from harness.algorithms.contract import Fold
from harness.algorithms.stale import DelayCompensated, PartialFolds, Ringmaster, StalenessAware
from harness.base.errors import UserError
from tests.theory.bowl import stale, vector, walked

CURVATURE, START = vector(1.0, 0.5), vector(1.0, -2.0)
AS_SGD = {
    "fresh gradients are not slowed": (StalenessAware(), 0),
    "what is one version old is not slowed": (StalenessAware(), 1),
    "no strength corrects nothing": (DelayCompensated(0.0), 5),
    "a fresh gradient has missed nothing": (DelayCompensated(1.0), 0),
    "with more room than workers all are used": (Ringmaster(6), 5),
    "a wide limit clips nothing": (ClippedSgd(1e9), 5),
    "a whole share is the gradient": (PartialFolds(1.0), 5),
}


@pytest.mark.parametrize(("algorithm", "tau"), AS_SGD.values(), ids=AS_SGD.keys())
def test_it_is_asynchronous_sgd_where(algorithm, tau):
    ours, theirs = (
        walked(a, stale(30, tau), CURVATURE, START, 0.1) for a in (algorithm, AsyncSgd())
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)


def folded(algorithm, *arrivals: tuple[float, int], rate: float = 1.0) -> list[float]:
    """The model after each arrival of a gradient and its staleness, from 0."""
    server, seen = algorithm.start(vector(0.0)), []
    for gradient, tau in arrivals:
        algorithm.fold(server, Fold(vector(gradient).unsqueeze(0), [tau], rate, [0], [1.0]))
        seen.append(server.model.item())
    assert server.version == len(arrivals)
    return seen


def test_a_gradient_three_versions_old_makes_a_third_of_a_step():
    assert folded(StalenessAware(), (3.0, 3), (3.0, 0)) == [-1.0, -4.0]


def test_a_correction_is_by_the_model_that_was_read():
    # The second gradient has read 0, and the model is at -2: 1 + 0.5 * 1 * (-2 - 0) is 0.
    assert folded(DelayCompensated(0.5), (2.0, 0), (1.0, 1), (2.0, 1)) == [-2.0, -2.0, -4.0]


def test_more_staleness_than_history_is_one_line():
    arrivals = [(1.0, 0)] * 4
    assert len(folded(DelayCompensated(history=4), *arrivals, (1.0, 3))) == 5
    with pytest.raises(UserError, match=r"algorithm.history: 3 .* allowed: at least 4"):
        folded(DelayCompensated(history=3), *arrivals, (1.0, 3))


def test_ringmaster_counts_the_delay_in_gradients_that_were_used():
    # With 2 allowed: the third has seen one used since its read; the fourth two, and is left out;
    # the fifth is as stale in versions, but of these one was left out.
    arrivals = (1.0, 0), (1.0, 0), (1.0, 1), (1.0, 3), (1.0, 2)
    assert folded(Ringmaster(2), *arrivals) == [-1.0, -2.0, -3.0, -3.0, -4.0]


def test_a_gradient_is_clipped_by_the_norm_of_its_mean_over_frames():
    run = walked(ClippedSgd(0.5), stale(3, 0), vector(1.0), vector(2.0), 1.0).squeeze(1)
    assert run.tolist() == [2.0, 1.5, 1.0, 0.5]


def test_which_components_enter_depends_on_seed_and_version_alone():
    runs = [
        walked(
            PartialFolds(0.5, seed),
            stale(5, 2),
            torch.ones(64, dtype=torch.float64),
            torch.ones(64, dtype=torch.float64),
            0.1,
        )
        for seed in (0, 0, 1)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
