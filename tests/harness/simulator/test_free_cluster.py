import math

import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Device, Workload, load_cluster
from harness.simulator.costs import compute_seconds
from harness.simulator.simulation import Simulation

FREE = 'name = "free"\n[devices.any]\n[[workers]]\ncount = 4\ndevice = "any"\n'
JOB = Workload(minibatch_frames=256, flops_per_frame=1e9, parameter_bytes=1e9)


@pytest.fixture
def free(tmp_path):
    path = tmp_path / "free.toml"
    path.write_text(FREE)
    return load_cluster(path)


def test_a_cluster_file_without_costs_is_serial_training(free):
    simulation = Simulation(free, "parameter_server", JOB)
    timeline = simulation.advance(folds=100)
    rows = timeline.folded()
    assert simulation.now_s == 0.0
    assert rows.worker.tolist() == [k % 4 for k in range(100)]
    assert rows.first_step.tolist() == rows.read_version.tolist() == list(range(100))
    assert timeline.folds.time_s.tolist() == [0.0] * 100
    assert timeline.staleness().tolist() == [0] * 100


def test_a_device_without_a_rate_is_infinitely_fast_but_for_its_launch(free):
    assert compute_seconds(free, JOB) == 0.0
    assert Device().rate_flops_per_s(256) == math.inf
    assert Device(launch_s=0.25).minibatch_s(JOB) == 0.25


@pytest.mark.parametrize("line", ["half_rate_frames = 64.0", "peak_flops_per_s = 1e12"])
def test_a_device_described_in_part_is_not_taken_for_an_infinitely_fast_one(tmp_path, line):
    path = tmp_path / "partial.toml"
    path.write_text(FREE.replace("[devices.any]", f"[devices.any]\n{line}"))
    with pytest.raises(UserError, match=r"partial.toml: devices.any.achieved_flops_per_s: missing"):
        load_cluster(path)
