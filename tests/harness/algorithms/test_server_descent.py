import pytest
import torch

from harness.algorithms.async_sgd import AsyncDescent
from harness.algorithms.contract import Fold
from harness.algorithms.descent import AdamW, Momentum, Muon
from harness.algorithms.stale import ServerDescent
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.fold_replay import StaleReplay
from tests.theory.bowl import stale

LAYOUT, FRAMES, FOLDS, RATE = Layout((5, 6, 4)), 3, 20, 0.02
OPTIMIZERS = [Momentum(0.9), Momentum(0.5, nesterov=True), AdamW(), Muon()]


def trained(algorithm, tau, one_worker):
    """The model after folds of one staleness; fold k's minibatch is k, whoever computes it."""
    start = random_parameters(LAYOUT, torch.Generator().manual_seed(1))[0]

    def minibatch_of(keys):
        drawn = [torch.Generator().manual_seed(step) for _, step in keys]
        x = torch.stack([torch.randn(FRAMES, 5, generator=each) for each in drawn])
        return Minibatch(x, torch.stack([torch.randint(4, (FRAMES,), generator=g) for g in drawn]))

    timeline = stale(FOLDS, tau, one_worker=one_worker)
    server = algorithm.start(start)
    made = StaleReplay(
        algorithm, Dnn(LAYOUT, "sigmoid"), server, minibatch_of, slots=2 * (tau + 1), alone=True
    )
    made.run(timeline, RATE)
    return server.model


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tau", [0, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_a_servers_optimizer_does_what_that_of_one_worker_with_several_under_way_does(
    optimizer, tau
):
    ours = trained(ServerDescent(optimizer), tau, one_worker=False)
    theirs = trained(AsyncDescent(optimizer), tau, one_worker=True)
    assert torch.equal(ours, theirs)


def test_of_several_workers_a_servers_optimizer_is_another_than_theirs():
    ours, theirs = (trained(kind(AdamW()), 3, False) for kind in (ServerDescent, AsyncDescent))
    assert not torch.allclose(ours, theirs, atol=1e-3)


def test_without_a_network_nothing_is_folded():
    algorithm = ServerDescent(Muon())
    with pytest.raises(ValueError, match="folds on a network"):
        algorithm.fold(algorithm.start(torch.zeros(3)), Fold(torch.ones(1, 3), [0], RATE))


def test_the_algorithm_that_is_on_a_network_is_known_by_its_settings_alone():
    assert ServerDescent(Muon()).on(Dnn(LAYOUT, "sigmoid")) == ServerDescent(Muon())
