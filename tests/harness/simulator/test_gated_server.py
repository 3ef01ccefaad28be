"""Rules of one's own over a server: those that ours have too, and one that lets nobody read."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.base.registry import cluster_file
from harness.simulator.cluster import Fault, Jitter, Server, load_cluster
from harness.simulator.protocols.gated import GatedServer
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from tests.harness.simulator.conftest import UNIT_JOB, make_cluster


@dataclass(frozen=True)
class Always(GatedServer):
    def may_read(self, worker, folded, under_way):
        return True


@dataclass(frozen=True)
class Bounded(GatedServer):
    ahead: int = 1

    def may_read(self, worker, folded, under_way):
        return folded[worker] <= folded.min() + self.ahead


@dataclass(frozen=True)
class Alone(GatedServer):
    def may_read(self, worker, folded, under_way):
        return worker == folded.sum() % len(folded) and not under_way.any()


@dataclass(frozen=True)
class Few(GatedServer):
    def may_read(self, worker, folded, under_way):
        return under_way.sum() < 2


@dataclass(frozen=True)
class Closed(GatedServer):
    def may_read(self, worker, folded, under_way):
        return folded.sum() < 3


JITTER = Jitter("lognormal", cv=0.3)
CLUSTERS = {
    "own links": make_cluster(copy_s=0.1, fold_s=0.2, latency_s=0.05, jitter=JITTER),
    "fair link": make_cluster(copy_s=0.1, fold_s=0.2, jitter=JITTER, sharing="fair"),
    "network": load_cluster(cluster_file("wide-area-10")),
}
LOSSES = Fault("message", probability=0.2, retry_s=0.5), Fault("death", mean_s=20.0, down_s=3.0)
NOTICE = Fault("preemption", workers=(0, 1), mean_s=15.0, down_s=2.0)
for name, faults in {"losses": LOSSES, "preemptions": (*LOSSES, NOTICE)}.items():
    CLUSTERS[name] = replace(CLUSTERS["fair link"], server=Server(0.2), faults=faults)


PAIRS = [(name, Always(), ParameterServer()) for name in CLUSTERS]
# Not the last: of a worker that is about to leave no rule is asked, but a bound may hold it.
PAIRS += [(name, Bounded(ahead=1), ParameterServer(bound=1)) for name in [*CLUSTERS][:-1]]


@pytest.mark.parametrize(("name", "own", "ours"), PAIRS)
def test_a_rule_that_a_protocol_of_ours_has_gives_its_times_to_the_bit(name, own, ours):
    cluster = CLUSTERS[name]
    work = cluster.workload or UNIT_JOB
    made = [Simulation(cluster, each, work, 4, seed=3) for each in (own, ours)]
    found, known = (each.advance(folds=120) for each in made)
    assert found.folds.time_s.tobytes() == known.folds.time_s.tobytes()
    if own == Always():  # workers that a bound holds at one instant read in another order
        assert found.sha256() == known.sha256()


def test_workers_by_turns_take_as_long_as_one_and_none_is_stale():
    cluster = make_cluster(copy_s=0.5, fold_s=0.25)
    found = Simulation(cluster, Alone(), UNIT_JOB, 3).advance(folds=6)
    assert found.folds.time_s.tolist() == [2.25 * k for k in range(1, 7)]
    assert found.folded().worker.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.staleness().tolist() == [0] * 6


def test_workers_that_have_waited_longest_read_first():
    cluster = make_cluster(6, jitter=Jitter("lognormal", cv=0.05))
    made = Simulation(cluster, Few(), UNIT_JOB)
    parts = [made.advance(folds=31, drain=True), made.advance(folds=29)]
    counts = np.bincount(concat(parts).folded().worker, minlength=6)
    assert counts.tolist() == [10] * 6


def test_a_rule_that_lets_no_worker_read_is_refused_at_that_version():
    told = "protocol Closed: no worker may read at version 4, and none is under way; allowed: "
    with pytest.raises(UserError, match=told):
        Simulation(make_cluster(2), Closed(), UNIT_JOB).advance(folds=9)


def test_a_turn_waits_for_the_return_of_its_worker_and_ends_with_one_that_never_returns():
    death = Fault("death", workers=(1,), at_s=(4.0,), down_s=6.0)
    cluster = make_cluster(copy_s=0.5, fold_s=0.25, faults=(death,))
    timeline = Simulation(cluster, Alone(), UNIT_JOB, 3).advance(folds=3)
    # Its first try is lost at 4 s, and its second begins as it returns at 10 s.
    assert timeline.folds.time_s.tolist() == [2.25, 12.25, 14.5]
    assert timeline.lost().worker.tolist() == [1]
    gone = make_cluster(copy_s=0.5, faults=(Fault("death", workers=(1,), at_s=(3.0,)),))
    with pytest.raises(UserError, match="no worker may read at version 1, and none is under way"):
        Simulation(gone, Alone(), UNIT_JOB, 3).advance(folds=3)
