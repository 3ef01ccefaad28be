"""Folds of outer loops by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.algorithms.averaging import Easgd, OuterNesterov
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.algorithms.descent import Momentum
from harness.algorithms.diloco import EagerDiLoCo, ElasticDiLoCo, StreamingDiLoCo
from harness.algorithms.stale import DelayedNesterov, FedBuff
from harness.experiment.loop import slice_timeline
from harness.networks.contract import Minibatch
from tests.theory.bowl import in_rounds, replayed, stale, table, vector, walked

SGD, PLAIN_STEP = Momentum(0.0), OuterNesterov(0.0, 1.0)
ONE = vector(1.0)


def folded(algorithm, *arrivals, weights=(1.0,)) -> list[list[float]]:
    """The model after each arrival of a difference and its staleness, from 0."""
    first = arrivals[0][0]
    server, seen = algorithm.start(torch.zeros_like(first)), []
    for k, (difference, tau) in enumerate(arrivals):
        weight = [weights[k % len(weights)]]
        algorithm.fold(server, Fold(difference.unsqueeze(0), [tau], 0.1, [0], weight))
        seen.append(server.model.tolist())
    return seen


def test_a_buffer_is_emptied_into_the_model_and_staleness_counts_in_steps_of_it():
    # K = 2. The third was read before the first step (staleness 2 in versions, 1 in steps), the
    # fourth after it (1 in versions, 0 in steps).
    arrivals = (vector(2.0), 0), (vector(4.0), 1), (vector(2.0), 2), (vector(1.0), 1)
    third, fourth = 2.0 / 2**0.5, 1.0
    seen = folded(FedBuff(buffer=2), *arrivals)
    assert [m for (m,) in seen[:3]] == [0.0, -3.0, -3.0]
    assert seen[3][0] == pytest.approx(-3.0 - (third + fourth) / 2, abs=1e-15)


def test_delayed_nesterovs_momentum_moves_with_every_second_arrival():
    algorithm = DelayedNesterov(every=2, momentum=0.5, outer_rate=1.0, spread=0.25)
    seen = folded(algorithm, *((vector(d), 0) for d in (4.0, 2.0, 4.0, 2.0)))
    # D/2 = 2; then m = 3, a step of (1 - 0.5 + 0.25) 0.5 m + 1 = 2.125; then 0.25 0.5 m + 2;
    # then m = 4.5, a step of 0.75 0.5 m + 1.
    steps = (2.0, 2.125, 2.375, 2.6875)
    expected, model = [], 0.0
    for step in steps:
        model -= step
        expected.append([model])
    assert seen == expected


def test_a_quorum_weighs_contributions_by_their_minibatches():
    algorithm = ElasticDiLoCo(SGD, PLAIN_STEP, quorum=2)
    arrivals = [(vector(d), 0) for d in (4.0, 1.0, 5.0)]
    seen = folded(algorithm, *arrivals, weights=(1.0, 3.0, 1.0))
    assert seen == [[0.0], [-(4.0 + 3.0) / 4.0], [-1.75]]


def test_what_waits_for_a_quorum_is_not_handed_in_again():
    run = walked(ElasticDiLoCo(SGD, PLAIN_STEP, quorum=2), stale(2, 0), ONE, ONE, 0.5)
    assert run.squeeze(1).tolist() == [1.0, 1.0, 1.0 - (0.5 + 0.25) / 2]


def test_a_fragment_has_its_own_quorum():
    algorithm = ElasticDiLoCo(SGD, PLAIN_STEP, fragments=2, quorum=2)
    arrivals = [(vector(*d), 0) for d in ((2.0, -0.0), (-0.0, 3.0), (4.0, -0.0))]
    assert folded(algorithm, *arrivals) == [[0.0, 0.0], [0.0, 0.0], [-3.0, 0.0]]


@pytest.mark.parametrize("algorithm", [StreamingDiLoCo, ElasticDiLoCo])
@pytest.mark.parametrize("moved", [(4.0, 0.0), (0.0, 0.0)], ids=repr)
def test_a_worker_that_has_moved_nothing_counts(algorithm, moved):
    """Two workers send the first of two fragments; the second parameter of it may be zero."""
    rule = algorithm(SGD, PLAIN_STEP, fragments=2)
    server = rule.start(torch.zeros(4))
    sent = torch.tensor([[*moved, -0.0, -0.0], [0.0, 2.0, -0.0, -0.0]])
    rule.fold(server, Fold(sent, [0, 0], 0.1, [0, 1], [1.0, 1.0]))
    assert server.model.tolist() == [-moved[0] / 2, -1.0, 0.0, 0.0]
    assert server.tensors["got"].tolist() == [0.0] * 4


def test_workers_whose_steps_cancel_begin_again_from_the_shared_model():
    """The mean difference is zero, so the shared model does not change; it is read nonetheless."""
    theirs = torch.tensor([[1.0], [-1.0]])
    network = SimpleNamespace(
        gradient=lambda stack, x, y, out: out.copy_(theirs.to(out)).sum(1), layout=None
    )
    rule = StreamingDiLoCo(SGD, PLAIN_STEP, fragments=1)
    server, memory = rule.start(torch.zeros(1)), Memory()
    for _ in range(2):
        replicas, out = server.model.repeat(2, 1), torch.zeros(2, 1)
        minibatch = Minibatch(torch.zeros(2, 1, 1), torch.zeros(2, 1))
        rule.contribute(LocalWork(network, replicas, [minibatch], out, 0.5, memory))
        assert out.tolist() == [[0.5], [-0.5]]
        assert memory.tensors["local"].tolist() == [[-0.5], [0.5]]
        rule.fold(server, Fold(out, [0, 0], 0.5, [0, 1], [1.0, 1.0]))
    assert server.model.tolist() == [0.0]


def test_a_worker_hands_in_one_fragment_after_the_other_and_what_it_did_since():
    algorithm = StreamingDiLoCo(SGD, PLAIN_STEP, fragments=2)
    run = walked(algorithm, in_rounds(4, 1, 1), vector(1.0, 1.0), vector(1.0, 1.0), 0.5)
    # Each is halved by every local step; the second is handed in after two of them.
    assert run.tolist() == [[1.0, 1.0], [0.5, 1.0], [0.5, 0.25], [0.125, 0.25], [0.125, 0.0625]]


def test_a_fragment_that_comes_back_late_is_mixed_with_what_was_trained_meanwhile():
    algorithm = StreamingDiLoCo(SGD, OuterNesterov(0.0, 0.5), fragments=1, mixing=0.25)
    made = replayed(algorithm, in_rounds(2, 1, 1, late=1), ONE, ONE)
    made.run(in_rounds(2, 1, 1, late=1), 0.5)
    # Round 0: 1 to 0.5, folded to 0.75. Round 1 began before that: 0.5 to 0.25, handed in as
    # 0.5 - 0.25 to make 0.625. What is read next is 0.625, mixed: 0.25 0.25 + 0.75 0.625.
    assert made.server.model.item() == 0.625
    made.run(table(*(np.array([n]) for n in (2, 0, 2, 2, 1))), 0.0)
    assert made.memories.join([0]).tensors["local"].item() == 0.25 * 0.25 + 0.75 * 0.625


def test_a_worker_on_a_spring_gives_way_as_the_centre_does():
    run = walked(Easgd(SGD, alpha=0.25), stale(3, 0), ONE, ONE, 0.5).squeeze(1)
    # x: 1, then 1 - 0.5 = 0.5; the centre 1. Then x - c = -0.5: c = 0.875, x = 0.5 + 0.125 - 0.25
    # = 0.375; then x - c = -0.5: c = 0.75.
    assert run.tolist() == [1.0, 1.0, 0.875, 0.75]


def test_eager_rounds_overlap_and_have_the_workers_they_were_told_of():
    assert EagerDiLoCo(3).trouble(3, 6) is None
    key, told = EagerDiLoCo(3).trouble(3, 3)
    assert key == "protocol.overlap"
    assert told.endswith("allowed: true")
    key, told = EagerDiLoCo(3).trouble(2, 4)
    assert key == "algorithm.workers"
    assert told.endswith("allowed: 2, as the run has")


def test_a_pass_that_begins_with_nothing_under_way_begins_from_the_shared_model():
    timeline = in_rounds(3, 2, 1, late=1)
    made = replayed(EagerDiLoCo(2, SGD), timeline, ONE, ONE)
    made.run(timeline, 0.1)
    assert (made.memories.join([0, 1]).tensors["ahead"] != 0.0).all()
    shared = made.server.model.clone()
    made.begin_pass()
    first = table(*(np.array(c) for c in ([3, 3], [0, 1], [3, 3], [3, 3], [1, 1])))
    made.run(first, 0.1)
    went = made.memories.join([0, 1]).tensors["last"].squeeze(1).tolist()
    assert went == pytest.approx([0.1 * shared.item()] * 2)


def test_an_eager_worker_is_where_the_paper_has_it():
    """Each on its own: outer steps along its own difference and the others' of a round ago."""
    lows, rate, rounds = (-1.0, 0.5, 3.0), 0.1, 7
    models, speeds, last = [1.0] * 3, [0.0] * 3, [0.0] * 3
    for _ in range(rounds):
        now = [(m - low) * (1 - (1 - rate) ** 2) for m, low in zip(models, lows, strict=True)]
        for k in range(3):
            slope = (now[k] + sum(last) - last[k]) / 3
            speeds[k] = 0.9 * speeds[k] + slope
            models[k] -= 0.7 * (slope + 0.9 * speeds[k])
        last = now
    timeline = in_rounds(rounds + 1, 3, 2, late=1)
    made = replayed(EagerDiLoCo(3, SGD), timeline, ONE, ONE, lambda worker, step: [lows[worker]])
    made.run(slice_timeline(timeline, 0, rounds), rate)
    read = torch.stack([made.replicas[made.in_flight[w, 2 * rounds]] for w in range(3)])
    theirs = (read + made.memories.join(range(3)).tensors["ahead"]).squeeze(1)
    torch.testing.assert_close(theirs, vector(*models), rtol=0, atol=1e-14)
