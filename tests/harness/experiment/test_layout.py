"""What a simulation keeps in checkpoints is of the layout that they name."""

import hashlib
import json

import pytest

from harness.base.registry import cluster_file
from harness.experiment.loop import LAYOUT
from harness.simulator.cluster import Workload, load_cluster
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation

KEPT = {
    "k20m-server": "19463ac9366f5686",
    "infiniband-64": "0e990e0939896143",
    "phones-10k": "cf12d9ba0316e1da",
    "wide-area-10": "19463ac9366f5686",
}
"""SHA-256 of the names, kinds and shapes of what is kept. Another one asks for another `LAYOUT`."""


@pytest.mark.parametrize("name", KEPT)
def test_a_simulation_that_keeps_other_things_has_another_layout(name):
    cluster = load_cluster(cluster_file(name))
    simulation = Simulation(cluster, ParameterServer(), Workload(10, 1e6, 1e3), workers=4)
    kept = [[k, a.dtype.str, list(a.shape)] for k, a in sorted(simulation.state().items())]
    digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]
    assert (LAYOUT, digest) == (17, KEPT[name]), "raise LAYOUT in harness/experiment/loop.py"
