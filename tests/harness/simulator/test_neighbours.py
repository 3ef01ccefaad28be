"""Several jobs on one network: by hand, against SimPy, and alone as the messages themselves."""

from dataclasses import replace

import numpy as np
import pytest
import simpy

from harness.base.errors import UserError
from harness.simulator.cluster import Jitter, Job, Workload
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.neighbours import fair_rates
from harness.simulator.simulation import Simulation
from tests.harness.simulator.simpy_network import InParts

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
PORTS = Network((Level(1, 100.0), Level(2, 4.0)))
"""Pairs of workers behind a port of 4 bytes/s; a job of two interleaved pairs would share none."""


@pytest.fixture
def times_s(cluster):
    def run(*jobs, folds=4, workers=4, network=PORTS, jitter=None, seed=0):
        built = replace(cluster(8, jitter=jitter), network=network, jobs=jobs)
        simulation = Simulation(built, Averaging(1), JOB, workers, seed)
        return simulation.advance(folds=folds).folds.time_s.tolist()

    return run


def job(first, workers, compute_s=1.0, size=8.0, every=1):
    return Job(first, workers, Workload(1, compute_s, size), every)


def test_a_job_elsewhere_does_not_matter(times_s):
    alone = times_s()
    assert alone == pytest.approx([1 + 6 * 2 / 4, 8, 12, 16])
    assert times_s(job(4, 4)) == pytest.approx(alone)


def test_two_equal_jobs_in_step_have_half_of_each_port(times_s):
    """Workers 1 to 4 of the other job pass the ports of 0 and 1 and of 2 and 3, too."""
    assert times_s(job(0, 4)) == pytest.approx([7.0, 14.0, 21.0, 28.0])


def test_a_job_that_computes_longer_gives_its_part_back(times_s):
    """Mine sends 12 bytes from 1 s on, the other 12 from 2 s on: 4 bytes alone, then 2 a second.

    At 6 s mine is through; the other has 4 bytes left and sends them alone until 7 s, when it
    begins to compute until 9 s. Mine computes until 7 s, sends 8 bytes alone until 9 s, and 4 more
    at 2 a second until 11 s.
    """
    assert times_s(job(0, 4, compute_s=2.0), folds=2) == pytest.approx([6.0, 11.0])


def walk_bus(rate, jobs, folds):
    """Times of the first job's folds, of jobs that share one link as processes of SimPy."""
    env, times_s = simpy.Environment(), []
    links = InParts(env)

    def run(number, seconds, size):
        while True:
            yield env.timeout(seconds())
            yield from links.carry({"bus": rate}, size)
            if number == 0:
                times_s.append(env.now)

    for number, (seconds, size) in enumerate(jobs):
        env.process(run(number, seconds, size))
    while len(times_s) < folds:
        env.step()
    return times_s


def test_jobs_on_a_bus_are_those_of_simpy(cluster, times_s):
    """Each ring's messages all pass the core: n of them, of 2 (n - 1) / n S bytes each."""
    from harness.simulator.costs import computation_s, costs_of

    bus = Network((Level(1),), core_bandwidth_bytes_per_s=16.0)
    found = times_s(
        job(4, 2, 0.7, 6.0), job(6, 2, 1.9, 3.0, every=2),
        folds=30, workers=2, network=bus, jitter=Jitter("gamma", 0.5), seed=3,
    )  # fmt: skip
    costs = costs_of(cluster(8, jitter=Jitter("gamma", 0.5)), JOB, 2, 3)
    steps = iter(range(1000))

    def mine():
        step = next(steps)
        return max(computation_s(costs, who, step) for who in range(2))

    jobs = [(mine, 16.0), (lambda: 0.7, 12.0), (lambda: 3.8, 6.0)]
    assert found == pytest.approx(walk_bus(16.0, jobs, 30), rel=1e-9)


def test_rates_are_max_min_fair_and_fill_a_link_of_everybody():
    uses = np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
    rates = fair_rates(uses, np.array([9.0, 7.0]))
    assert rates.tolist() == [5.5, 1.75, 1.75]
    assert fair_rates(np.zeros((1, 2)), np.ones(2)).tolist() == [np.inf]


def test_what_is_not_simulated_is_refused(cluster):
    built = replace(cluster(8), network=PORTS, jobs=(job(0, 2),))
    for rules in (Averaging(1, overlap=True), Averaging(1, collective="rabenseifner")):
        with pytest.raises(UserError, match="jobs: not simulated with these settings"):
            Simulation(built, rules, JOB)
    with pytest.raises(UserError, match="jobs: not simulated in protocol"):
        Simulation(built, "backup_workers", JOB)
    with pytest.raises(UserError, match="numbers below 8"):
        replace(built, jobs=(job(5, 4),))
    with pytest.raises(UserError, match="sharing 'fair'"):
        replace(built, network=None)
