import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_synth import load_corpus
from harness.base.seeds import identity
from harness.simulator.cluster import Workload, load_cluster
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from reproductions.paper import Subject
from reproductions.staleness import claims
from reproductions.staleness.experiments import (
    ALGORITHMS,
    CELLS,
    CLUSTERS,
    MACHINES,
    MOMENTUM,
    ON_CLUSTERS,
    PROBLEMS,
    REGISTERED,
    TAUS,
    cell,
    experiments,
    staleness_cluster,
)
from reproductions.staleness.problems import (
    HELD_OUT_DIGITS,
    LENGTH,
    alphabet,
    digits,
    problem,
    text,
)
from reproductions.staleness.quantities import (
    bounds_of_edge,
    bounds_of_slope,
    law_slope,
    share_lost,
    stable_rate,
)


@pytest.mark.parametrize("tau", TAUS)
def test_staleness_is_exact_from_the_first_fold_on(tau):
    folds = 3 * tau + 5
    work = Workload(1, 0.0, 0.0)
    timeline = Simulation(staleness_cluster(tau), ParameterServer(), work).advance(folds=folds)
    table = timeline.folded()
    assert table.fold.tolist() == list(range(folds))
    assert table.read_version.tolist() == [max(0, k - tau) for k in range(folds)]
    assert table.first_step.tolist() == list(range(folds))


@pytest.mark.parametrize("tau", [0, 1, 2, 4, 16, 64])
def test_without_momentum_theory_is_the_closed_form(tau):
    assert stable_rate(tau) == pytest.approx(2 * math.sin(math.pi / (2 * (2 * tau + 1))), rel=1e-6)


@pytest.mark.parametrize("tau", [0, 1, 4])
def test_at_the_largest_stable_rate_iterates_neither_grow_nor_shrink(tau):
    def grown(rate):
        thetas, speed = [1.0] * (tau + 1), 0.0
        for _ in range(4000):
            speed = MOMENTUM * speed + thetas[-1 - tau]
            thetas.append(thetas[-1] - rate * speed)
        return max(map(abs, thetas[-500:]))

    edge = stable_rate(tau, MOMENTUM)
    assert grown(0.95 * edge) < 1e-2
    assert not grown(1.05 * edge) < 1e2  # it may overflow


def test_text_is_held_out_at_the_end_and_every_target_follows_its_character():
    train, dev = text()
    assert len(alphabet()) == 79
    assert dev.x.shape[1] == LENGTH
    for part in (train, dev):
        assert torch.equal(part.x[:, 1:], part.y[:, :-1])
    assert torch.equal(train.x[1:, : LENGTH // 2], train.x[:-1, LENGTH // 2 :])


def test_digits_are_pictures_of_ten_kinds():
    train, dev = digits()
    assert (len(train), len(dev)) == (1797 - HELD_OUT_DIGITS, HELD_OUT_DIGITS)
    assert train.x.min() == 0.0
    assert train.x.max() == 1.0
    assert set(train.y.tolist()) == set(dev.y.tolist()) == set(range(10))


@pytest.mark.parametrize("name", ["text", "digits"])
def test_a_problem_travels_by_its_name_and_has_data_for_one_pass(name):
    made = problem(name, 700, 4)
    assert len(made.train) == 2800
    assert pickle.loads(pickle.dumps(made)) is made
    assert len(pickle.dumps(made)) < 300


def test_a_characters_logits_depend_on_nothing_that_follows_it():
    made = problem("text", 70, 2)
    module, x = made.module(1), made.dev.x[:2].clone()
    before = module(x)
    x[:, 20:] = 0
    torch.testing.assert_close(module(x)[..., :20], before[..., :20])
    assert not torch.allclose(module(x)[..., 20:], before[..., 20:])


@pytest.fixture(scope="module")
def configs():
    corpus = load_corpus("parametric", scale="smoke", seed=0)
    return experiments(Subject("smoke", corpus, 0, "cpu"), 0)


def test_every_cell_is_a_search_of_its_own_with_as_many_workers_as_its_staleness_asks(configs):
    assert len(configs) == len(CELLS) + len(ON_CLUSTERS)
    assert len({identity(config.to_dict()) for config in configs.values()}) == len(configs)
    for problem_, optimizer, tau in CELLS:
        training = configs[cell(problem_, optimizer, tau)].training
        assert (training.workers, training.passes) == (tau + 1, 1)
        assert training.algorithm == ALGORITHMS[optimizer]


def test_every_claim_is_registered_and_everything_registered_is_claimed():
    named = {maker.id.removeprefix("s.") for maker in claims.CLAIMS}
    assert named == REGISTERED.keys() - {"paper", "kinds", "conditions"}
    assert all(len(REGISTERED[name]["band"]) == 1 for name in named)


class Searches(dict):
    """Searches that never ran: what each seed's summary says, by cell."""

    def of(self, name, **numbers):
        columns = {key: np.atleast_1d(value) for key, value in numbers.items()}
        count = max(map(len, columns.values()))
        self[name] = [
            SimpleNamespace(
                summary={key: float(column[k % len(column)]) for key, column in columns.items()},
                hash=f"{name} {k}",
            )
            for k in range(count)
        ]
        return self


def ladder(stable):
    """Of a search whose edge is ``stable``."""
    return {"stable": np.asarray(stable) / 2**0.5, "diverged": np.asarray(stable) * 2**0.5}


def test_the_slope_is_one_where_edges_are_a_quadratics_and_half_where_they_fall_half_as_fast():
    runs = Searches()
    for tau in TAUS:
        edges = np.array([3.0 * stable_rate(tau), stable_rate(tau) ** 0.5])
        runs.of(cell("text", "SGD", tau), **ladder(edges))
    assert law_slope(runs, "text", TAUS[1:]) == pytest.approx([1.0, 0.5])


def test_where_edges_lie_between_rungs_their_slope_is_known_between_bounds():
    runs = Searches()
    for tau in TAUS:
        runs.of(cell("text", "SGD", tau), **ladder(3.0 * stable_rate(tau)))
    (low,), (high,) = bounds_of_slope(runs, "text", TAUS[1:])
    assert low < 1.0 < high
    assert (low + high) / 2 == pytest.approx(1.0)
    # the worst case: edges of short delays at one end of their rungs, of long ones at the other
    for side in (-0.5, 0.5):
        moved = Searches()
        for tau, sign in zip(TAUS[1:], (1, 1, -1, -1), strict=True):
            edge = 3.0 * stable_rate(tau) * 2.0 ** (sign * side)
            moved.of(cell("text", "SGD", tau), **ladder(edge))
        (slope,) = law_slope(moved, "text", TAUS[1:])
        assert slope == pytest.approx(high if side > 0 else low)


def test_an_edge_that_was_not_found_leaves_its_side_open():
    runs = Searches().of("x", stable=4.0)
    assert [each.tolist() for each in bounds_of_edge(runs["x"])] == [[2.0], [math.inf]]


def test_what_is_lost_is_a_share_of_the_gain_without_staleness():
    runs = Searches()
    runs.of(cell("digits", "SGD", 0), first_loss=[2.0, 4.0], loss=[1.0, 2.0])
    runs.of(cell("digits", "SGD", 4), loss=[1.5, 2.0])
    assert share_lost(runs, "digits", "SGD", 4).tolist() == [0.5, 0.0]


def told(claim, edges, heavier):
    """A claim on edges, made of searches in which momentum's lie so many octaves below SGD's."""
    runs = Searches()
    for name in ("text", "digits", "acoustic"):
        runs.of(cell(name, "SGD", 0), first_loss=[2.0], loss=[1.0, 1.01, 0.99])
        for tau in (4, 16):
            runs.of(cell(name, "SGD", tau), **ladder(edges))
            runs.of(cell(name, "momentum", tau), **ladder(edges / 2**heavier))
    return claim(None, runs)


def test_momentum_that_stands_thirteen_times_less_is_as_predicted_and_none_less_is_not():
    edges = np.array([1.0, 1.1, 0.9])
    jitter = np.array([0.0, 0.1, -0.1])
    assert told(claims.momentum_rate, edges, 3.7 + jitter).here == "holds"
    assert told(claims.momentum_rate, edges, 0.0 + jitter).here == "fails"
    scattered = told(claims.momentum_rate, edges, 3.7 + 40 * jitter)
    assert not scattered.bears  # with so much scatter it could not have been found


def test_where_nothing_is_learnt_nothing_is_claimed():
    runs = Searches()
    for name in ("text", "digits", "acoustic"):
        runs.of(cell(name, "SGD", 0), first_loss=2.0, loss=[1.9, 1.91, 1.92], rate=1.0)
        runs.of(cell(name, "SGD", 16), **ladder([0.1, 0.11, 0.12]))
    claim = claims.must_sweep(None, runs)
    assert not claim.bears
    assert "conditions" in claim.reasons


def test_clusters_are_shipped_ones_whose_staleness_scatters_about_the_mean():
    for name in CLUSTERS:
        machine = load_cluster(MACHINES / f"{name}.toml")
        simulation = Simulation(machine, ParameterServer(), machine.workload, workers=17)
        staleness = simulation.advance(folds=2000).staleness()[200:]
        assert staleness.mean() == pytest.approx(16, rel=0.05)
        assert staleness.std() > 5


def test_clusters_are_charged_alike_whatever_is_trained(configs):
    for cluster in CLUSTERS:
        asked = load_cluster(MACHINES / f"{cluster}.toml").workload.minibatch_flops
        for name in PROBLEMS:
            training = configs[cell(name, "SGD", 16, cluster)].training
            assert training.workload(1).minibatch_flops == pytest.approx(asked, rel=1e-6)


def test_cluster_claims_before_and_after_the_first_look_share_no_cell_on_clusters():
    first, later = (
        {name for name in maker.needs if "workers of" in name}
        for maker in claims.CLAIMS
        if maker.id in ("s.cluster-mean", "s.cluster-mean-others")
    )
    assert not later & first
    assert later | first == {cell(p, o, tau, c) for p, o, tau, c in ON_CLUSTERS if tau == 16}
