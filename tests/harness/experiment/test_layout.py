"""What a simulation keeps in checkpoints is of the layout that they name."""

import hashlib
import json

import pytest

from harness.base.files import cluster_file
from harness.experiment.loop import LAYOUT
from harness.simulator import ParameterServer, Simulation, Workload, load_cluster

KEPT = {
    "k20m-server": "f67543d1f880939d",
    "infiniband-64": "75b3eb362c0d34b4",
    "phones-10k": "a2bbc81110f12e5e",
    "wide-area-10": "f67543d1f880939d",
}
"""SHA-256 of the names, kinds and shapes of what is kept. Another one asks for another `LAYOUT`."""


@pytest.mark.parametrize("name", KEPT)
def test_a_simulation_that_keeps_other_things_has_another_layout(name):
    cluster = load_cluster(cluster_file(name))
    simulation = Simulation(cluster, ParameterServer(), Workload(10, 1e6, 1e3), workers=4)
    kept = [[k, a.dtype.str, list(a.shape)] for k, a in sorted(simulation.state().items())]
    digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]
    assert (LAYOUT, digest) == (13, KEPT[name]), "raise LAYOUT in harness/experiment/loop.py"
