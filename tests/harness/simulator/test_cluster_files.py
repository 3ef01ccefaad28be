import math
from pathlib import Path

import numpy as np
import pytest

from harness.simulator.cluster import Cluster, load_cluster
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation
from tests.keys import keys_of

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "reproductions" / "clusters").glob("*.toml"))
PAGE = ROOT / "docs" / "clusters.md"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_published_cluster_can_be_simulated_at_its_full_size(path):
    cluster = load_cluster(path)
    assert cluster.workload is not None
    rounds = cluster.jobs or any(fault.notice_s for fault in cluster.faults)
    protocol = Averaging(1) if rounds else "parameter_server"
    simulation = Simulation(cluster, protocol, cluster.workload)
    timeline = simulation.advance(folds=2 * cluster.size)
    assert math.isfinite(simulation.now_s)
    assert simulation.now_s > 0.0
    assert np.all(np.diff(timeline.folds.time_s) >= 0.0)
    assert timeline.lag_s().min() > 0.0
    if protocol == "parameter_server" and not cluster.faults:
        assert len(timeline.in_flight()) == cluster.size - 1 or cluster.size == 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_published_cluster_says_where_its_devices_figures_come_from(path):
    assert all(device.source for device in load_cluster(path).devices.values())


def test_every_key_has_a_meaning():
    for key in keys_of(Cluster):
        assert key.meaning, key.dotted


def test_the_example_on_the_page_is_a_cluster(tmp_path):
    example = PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example)
    cluster = load_cluster(path)
    assert (cluster.size, cluster.workers[0].device) == (8, "A100")
