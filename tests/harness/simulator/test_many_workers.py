"""As many workers as the documents name."""

import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import MOST_WORKERS
from harness.simulator.protocols import state
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation


def test_more_workers_than_pieces_of_a_model_may_be_are_simulated(cluster, unit_job):
    """2²⁰ is the limit of pieces, of which one server has none."""
    workers = (1 << 20) + 1
    machine = cluster(workers, copy_s=1e-6, fold_s=1e-6)
    simulation = Simulation(machine, "parameter_server", unit_job, workers, spans=False)
    timeline = simulation.advance(folds=100)
    assert timeline.folded().first_step.tolist() == list(range(100))
    assert simulation.dispatched == workers + 99


def test_every_setting_but_depth_takes_the_most_workers_that_a_file_may_name(cluster):
    bounded, deep = (ParameterServer(**s).rules for s in ({"bound": 1, "queue": 9}, {"depth": 2}))
    assert state.leaves(cluster(4), MOST_WORKERS, bounded.depth) <= state.MOST_LEAVES
    assert state.leaves(cluster(4), MOST_WORKERS, deep.depth) > state.MOST_LEAVES


def test_too_many_for_a_depth_are_told_how_many_may_be(cluster, unit_job):
    with pytest.raises(
        UserError, match="workers: 9000000 is not allowed; allowed: at most 8388608"
    ):
        Simulation(cluster(4), ParameterServer(depth=2), unit_job, 9_000_000)
