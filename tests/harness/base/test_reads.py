"""Keys that a user has set and nothing reads are named; one that is named has no effect."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.base.reads import Reads, unread_keys, watch
from harness.base.settings import Spec, setting
from harness.experiment.experiment import plain
from harness.rollouts.protocol import Rollouts
from harness.simulator.cluster import cluster_from
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.speech.protocol import Sequence


@dataclass(frozen=True)
class Part(Spec):
    one: float = setting(0.0)
    two: float = setting(0.0)


@dataclass(frozen=True)
class Whole(Spec):
    needed: float = setting()
    part: Part = setting(Part())
    parts: tuple[Part, ...] = setting(())


WHOLE = Whole(1.0, Part(1.0, 2.0), (Part(3.0), Part(two=4.0)))


def test_what_is_set_and_not_read_is_named():
    with watch(Reads(WHOLE)) as reads:
        assert WHOLE.part.one + WHOLE.parts[1].two == 5.0
    assert reads.unread() == ["part.two", "parts[0].one"]
    assert Whole.part == Part()  # the class is as before
    with watch(Reads(WHOLE)) as reads:
        pass
    assert reads.unread() == ["part.one", "part.two", "parts[0].one", "parts[1].two"]


def test_comparing_copying_and_storing_is_no_use_of_a_key_and_a_copys_use_is():
    with watch(Reads(WHOLE.part)) as reads:
        copy = replace(WHOLE.part, two=5.0)
        assert copy != WHOLE.part
        assert copy.to_dict() == {"one": 1.0, "two": 5.0}
        assert reads.unread() == ["one", "two"]
        assert copy.one + copy.two == 6.0
    assert reads.unread() == ["two"]  # the copy's is another


def test_what_another_object_has_counts_as_the_default():
    with watch(Reads(WHOLE, usual=replace(WHOLE, part=Part(1.0, 7.0)))) as reads:
        pass
    assert reads.unread() == ["part.two"]


def test_within_a_watched_run_another_is_watched():
    with watch(Reads(WHOLE, name="outer")), watch(Reads(WHOLE.part, name="inner")):
        assert WHOLE.part.one == 1.0
        assert unread_keys("inner") == ["two"]
        assert unread_keys("outer") == ["part.two", "parts[0].one", "parts[1].two"]
    assert unread_keys("outer") is None


EVERYTHING = """
name = "everything"
heterogeneity_cv = 0.2
workers = [{count = 3, device = "d", speed = 1.5}, {count = 6, device = "e"}]
devices.d = {achieved_flops_per_s = 10.0, half_rate_frames = 2.0, launch_s = 0.1, operator_s = 1.0}
devices.e = {achieved_flops_per_s = 7.0}
link = {latency_s = 0.01, bandwidth_bytes_per_s = 50.0, duplex = "half"}
host = {memory_bytes_per_s = 300.0, staging_bytes_per_s = 90.0}
server = {fold_s = 0.02, fold_traffic = 2.0, jitter = {law = "gamma", cv = 0.4}}
jitter = {law = "constant", cv = 0.3}
stragglers = {slowdown = 4.0}
parallel = {average_s = 0.1, slowdown = 1.2, epoch_s = 0.3, epoch_minibatches = 4}
workload = {minibatch_frames = 4, flops_per_frame = 2.0, parameter_bytes = 8.0, moved_bytes = 9.0}
"""
NETWORK = """
[network]
sending = "buffered"
rails = true
core_bandwidth_bytes_per_s = 40.0
[[network.levels]]
bandwidth_bytes_per_s = 30.0
[[network.levels]]
workers_per_link = 3
links = 3
latency_s = 0.02
"""
SERVER = '[network.server]\nlatency_s = 0.01\nlinks = 2\nworkers_per_link = 2\nduplex = "half"\n'
FILES = (EVERYTHING, EVERYTHING + NETWORK, EVERYTHING + NETWORK + SERVER)
PROTOCOLS = {
    ParameterServer(): "parallel.slowdown", Averaging(2): "server.fold_s",
    BackupWorkers(1): "stragglers.slowdown", Sequence(slots=2, frames=6.0): "jitter.cv",
    ClientSampling(sampled=6, needed=5, every=2): "server.jitter.cv",
    Rollouts(slots=2, tokens=6.0, group=2, batch=4): "server.fold_s",
}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
@pytest.mark.parametrize("text", FILES, ids=("link", "network", "networked server"))
def test_a_key_that_is_named_moves_no_timeline(protocol, text):
    table = tomllib.loads(text)
    if "server" in table.get("network", {}) and "network" not in protocol.can:
        pytest.skip("has no such server")

    def time_it():
        cluster = cluster_from(table, Path("c.toml"))
        with watch(Reads(cluster)) as reads:
            simulation = Simulation(cluster, protocol, cluster.workload, 9)
            return simulation.advance(folds=20).sha256(), reads.unread()

    before, unread = time_it()
    assert PROTOCOLS[protocol] in unread
    for key in unread:
        if "[" not in key:  # back to its default
            *steps, name = key.split(".")
            inner = table
            for step in steps:
                inner = inner[step]
            inner.pop(name, None)
    after, left = time_it()
    assert (before, [key for key in left if "[" not in key]) == (after, [])


@dataclass(frozen=True)
class Run:
    part: Part

    def to_dict(self):
        return plain(self)


def test_a_runs_own_identity_is_no_use_of_a_key_and_that_of_another_run_is():
    run = Run(Part(1.0))
    with watch(Reads(run)) as reads:
        run.to_dict()
        assert reads.unread() == ["part.one"]
        Run(run.part).to_dict()
    assert reads.unread() == []
