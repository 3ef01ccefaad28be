"""What a simulation keeps in checkpoints is of the layout that they name."""

import hashlib
import json

import pytest

from harness.base.files import cluster_file
from harness.experiment.loop import LAYOUT
from harness.simulator import ParameterServer, Simulation, Workload, load_cluster

KEPT = {
    "k20m-server": "394836439c53d34a",
    "infiniband-64": "f1fad76b85828178",
    "phones-10k": "01c5710da51d2ff6",
    "wide-area-10": "394836439c53d34a",
}
"""SHA-256 of the names, kinds and shapes of what is kept. Another one asks for another `LAYOUT`."""


@pytest.mark.parametrize("name", KEPT)
def test_a_simulation_that_keeps_other_things_has_another_layout(name):
    cluster = load_cluster(cluster_file(name))
    simulation = Simulation(cluster, ParameterServer(), Workload(10, 1e6, 1e3), workers=4)
    kept = [[k, a.dtype.str, list(a.shape)] for k, a in sorted(simulation.state().items())]
    digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]
    assert (LAYOUT, digest) == (15, KEPT[name]), "raise LAYOUT in harness/experiment/loop.py"
