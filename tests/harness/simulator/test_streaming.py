import pytest

from harness.rollouts.protocol import Rollouts
from harness.simulator.cluster import Fault, Jitter
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from harness.simulator.timeline_file import load_timeline, save_timeline
from harness.speech.protocol import Sequence

BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.05, "jitter": Jitter("lognormal", 0.3)}
FAULTS = (
    Fault("death", mean_s=20.0, down_s=3.0),
    Fault("server", mean_s=300.0, down_s=1.0, checkpoint_s=9.0),
)


@pytest.mark.parametrize(
    ("protocol", "faults"),
    [
        (ParameterServer(), ()),
        (ParameterServer(bound=2), FAULTS),
        (Sequence(slots=4, frames=60.0, decode_cost=0.1, shards=2), ()),
        (ParameterServer(shards=3), ()),
        (Rollouts(slots=2, group=1, batch=1, tokens=5.0, train_s=0.5), ()),
    ],
    ids=["plain", "faults", "sequence", "shards", "rollouts"],
)
def test_a_timeline_in_parts_is_that_of_one_segment_and_its_file(
    cluster, unit_job, tmp_path, protocol, faults
):
    machine = cluster(5, faults=faults, **BUSY)
    whole = Simulation(machine, protocol, unit_job, 5).advance(seconds=9000.0)
    parts = Simulation(machine, protocol, unit_job, 5).parts(seconds=9000.0)
    assert len(whole.folds) > 1 << 13  # more than one part
    assert save_timeline(concat(list(parts)), tmp_path / "t") == whole.sha256()
    again = load_timeline(tmp_path / "t")
    assert again.sha256() == whole.sha256()
    assert len(again.lost()) == len(whole.lost())


def test_parts_add_up_to_the_segment_and_the_simulation_goes_on(cluster, unit_job):
    whole, in_parts = (Simulation(cluster(5, **BUSY), "parameter_server", unit_job) for _ in "ab")
    parts = list(in_parts.parts(folds=100_000))
    assert len(parts) == 3
    assert concat(parts).sha256() == whole.advance(folds=100_000).sha256()
    assert in_parts.advance(folds=50).sha256() == whole.advance(folds=50).sha256()
