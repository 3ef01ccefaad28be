"""Bugs seen in other simulators of training: each has a test here that would catch it."""

import random

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.simulator.cluster import Fault, Jitter
from harness.simulator.simulation import Simulation

GAMMA = Jitter("gamma", 0.5)


def test_timing_draws_take_nothing_from_the_generators_of_training(simulate):
    training = stream(0, "order", 0)
    expected = stream(0, "order", 0).random(3).tolist()
    before_ = (random.getstate(), np.random.get_state()[1].tolist())
    simulate(jitter=GAMMA).advance(folds=100)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before_
    assert training.random(3).tolist() == expected


@pytest.mark.parametrize("workers", [1, 4, 3000])
def test_what_is_tried_again_and_again_at_one_instant_is_an_error_and_not_endless(
    cluster, free_job, workers
):
    simulation = Simulation(cluster(workers), "parameter_server", free_job, workers)
    with pytest.raises(UserError, match="no time passes"):
        simulation.advance(seconds=1.0)


def test_compute_time_holds_no_waiting(simulate):
    """Eight workers queue for one link and one server, and still compute for one second."""
    simulation = simulate(8, copy_s=0.5, fold_s=0.5, sharing="fifo")
    spans = simulation.advance(folds=200).spans
    lengths = {kind: (spans.end_s - spans.start_s)[spans.kind == kind] for kind in range(4)}
    assert [set(lengths[kind].tolist()) for kind in range(4)] == [{0.5}, {1.0}, {0.5}, {0.5}]


def test_a_message_that_is_always_tried_again_costs_time_each_time(cluster, unit_job):
    """A retry at the instant of the loss could go on for ever; it is not allowed."""
    with pytest.raises(UserError, match=r"retry_s: 0\.0 is not allowed"):
        Fault("message", probability=0.5, retry_s=0.0)
    machine = cluster(3, faults=(Fault("message", probability=0.9, retry_s=0.5),))
    simulation = Simulation(machine, "parameter_server", unit_job, 3)
    assert len(simulation.advance(seconds=500.0).folds) > 0
    assert simulation.now_s == 500.0
