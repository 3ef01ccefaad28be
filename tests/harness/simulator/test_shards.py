import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Fault, Jitter
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from tests.harness.simulator import simpy_server

LOGNORMAL = Jitter("lognormal", 0.3)
EXPONENTIAL = Jitter("shifted-exponential", 1.0)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.3, "jitter": LOGNORMAL}
SETTINGS = [
    {"shards": 3},
    {"shards": 7, "bound": 1},
    {"shards": 2, "queue": 2},
    {"shards": 3, "depth": 3, "push_every": 2, "fetch_every": 6},
]


def by_shard(column, shards):
    """[F][S] of a column of the pieces."""
    return column.reshape(-1, shards).tolist()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("jitter", [EXPONENTIAL, LOGNORMAL], ids=lambda law: law.law)
@pytest.mark.parametrize(("workers", "shards"), [(4, 2), (4, 5), (50, 3), (50, 16)])
def test_shards_are_simpys_bit_for_bit(simulate, unit_job, jitter, workers, shards):
    durations = {"copy_s": 0.31, "latency_s": 1e-3, "fold_s": 0.9 * shards / workers}
    protocol = ParameterServer(shards=shards)
    simulation = simulate(workers, 3, protocol, jitter=jitter, **durations)
    timeline = simulation.advance(folds=1500)
    ours = zip(
        timeline.folds.time_s.tolist(), timeline.folded().worker.tolist(),
        timeline.staleness().tolist(), by_shard(timeline.pieces.read_version, shards),
        by_shard(timeline.pieces.version, shards), strict=True,
    )  # fmt: skip
    model = simpy_server.ShardedModel(simulation.cluster, unit_job, workers, 3, shards)
    assert list(ours) == model.run(1500)
    assert timeline.pieces.read_version.reshape(-1, shards).std(axis=1).max() > 0.0


def test_a_read_between_two_shards_folds_sees_versions_that_differ(simulate):
    """Half a copy and half a fold are 0.5 s; the worker computes 0.25 s and does not wait.

    It reads at 0, 1.25, 2.5 and 3.75. The first contribution's pieces leave from 1.25 on: the
    first shard folds from 1.75 to 2.25, the second from 2.25 to 2.75. So the read at 2.5 sees one
    piece at the first shard and none at the second.
    """
    durations = {"compute_s": 0.25, "copy_s": 1.0, "fold_s": 1.0}
    protocol = ParameterServer(shards=2, depth=3)
    timeline = simulate(1, 3, protocol, **durations).advance(folds=4)
    assert timeline.folds.time_s.tolist() == [2.75, 4.0, 5.25, 6.5]
    assert timeline.folded().read_time_s.tolist() == [0.0, 1.25, 2.5, 3.75]
    assert timeline.folded().read_version.tolist() == [0, 0, 0, 1]
    pieces = timeline.pieces
    assert pieces.fold.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert pieces.worker.tolist() == [-1, -2] * 4
    assert by_shard(pieces.read_version, 2) == [[0, 0], [0, 0], [1, 0], [2, 1]]
    assert by_shard(pieces.version, 2) == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert by_shard(pieces.time_s, 2) == [[2.25, 2.75], [3.5, 4.0], [4.75, 5.25], [6.0, 6.5]]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_read_is_folded_once_by_every_shard(simulate, sharing, settings):
    simulation = simulate(5, 3, ParameterServer(**settings), sharing=sharing, **BUSY)
    segments = [simulation.advance(folds=70), simulation.advance(seconds=40.0)]
    segments.append(simulation.advance(folds=50, drain=True))
    whole, shards = concat(segments), settings["shards"]
    steps = settings.get("push_every", 1)
    folds = simulation.version
    assert simulation.drained
    assert sorted(whole.folded().first_step.tolist()) == list(range(0, steps * folds, steps))
    assert whole.folded().fold.tolist() == list(range(folds))
    pieces = whole.pieces
    assert pieces.fold.tolist() == np.repeat(np.arange(folds), shards).tolist()
    before, read, time_s = (
        column.reshape(-1, shards)
        for column in (pieces.version, pieces.read_version, pieces.time_s)
    )
    assert (np.sort(before, axis=0) == np.arange(folds)[:, None]).all()
    assert (read <= before).all()
    assert (read >= whole.folded().read_version[:, None]).all()
    assert (time_s.max(axis=1) == whole.folds.time_s).all()
    in_order = np.take_along_axis(time_s, np.argsort(before, axis=0), axis=0)
    assert (np.diff(in_order, axis=0) > 0.0).all()
    seen = (in_order[:, None, :] <= whole.folded().read_time_s[None, :, None]).sum(axis=0)
    assert (seen == read).all()


def test_a_long_segment_is_simulated_in_parts_that_add_up(simulate):
    whole, parts = (
        simulate(5, 3, ParameterServer(shards=500), fold_s=0.05, jitter=LOGNORMAL) for _ in range(2)
    )
    together = whole.advance(folds=5000)  # more pieces than one part has room for
    assert len(together.pieces) == 500 * 5000
    assert concat([parts.advance(folds=2100), parts.advance(folds=2900)]).sha256() == (
        together.sha256()
    )


def test_shards_share_the_folding(simulate):
    """The server is what limits: with twice the shards twice as many folds a second."""
    durations = {"fold_s": 1.0, "copy_s": 0.1, "jitter": LOGNORMAL}
    one, two = (
        simulate(20, 3, ParameterServer(shards=shards), **durations).advance(folds=1000)
        for shards in (1, 2)
    )
    assert one.folds.time_s[-1] / two.folds.time_s[-1] == pytest.approx(2.0, rel=0.05)


def test_one_shard_is_the_server_as_it_was(simulate):
    assert ParameterServer(shards=2).to_dict()["shards"] == 2
    simulation = simulate(5, 3, ParameterServer(shards=1), sharing="fifo", **BUSY)
    timeline = simulation.advance(folds=50)
    assert len(timeline.pieces) == 0
    assert "pieces" not in timeline.tables()


def test_shards_with_faults_are_refused(cluster, unit_job):
    machine = cluster(4, faults=(Fault("death", mean_s=9.0, down_s=1.0),))
    with pytest.raises(UserError, match="shards: 2 is not allowed with faults"):
        Simulation(machine, ParameterServer(shards=2), unit_job)


def test_more_pieces_than_can_be_held_are_refused(cluster, unit_job):
    with pytest.raises(
        UserError, match="1049 is not allowed; allowed: with 1000 workers at most 1048"
    ):
        Simulation(cluster(1000), ParameterServer(shards=1049), unit_job, 1000)
