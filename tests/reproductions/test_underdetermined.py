import pytest

from harness.simulator import Simulation, Workload, bare_throughput_per_s
from reproductions.paper1_async_asgd import PAPER
from reproductions.paper1_async_asgd.exhibits import NEEDS
from reproductions.paper1_async_asgd.experiments import A_PASS, REPORTED, clusters, reading_timings

LAYERS, MINIBATCH = REPORTED["paper"]["layers"], REPORTED["paper"]["minibatch"]
JOB = Workload.of_network(LAYERS, MINIBATCH)


def hours_and_speedup(name):
    machine = clusters()[name]
    simulation = Simulation(machine, "parameter_server", JOB, 4)
    simulation.advance(folds=2000)
    rate = 2000 / simulation.now_s
    return A_PASS / rate / 3600, rate / bare_throughput_per_s(machine, JOB)


@pytest.mark.parametrize(
    ("name", "hours", "speedup"), [("A", 14.3, 3.2), ("B", 14.3, 0.68), ("C", 5.5, 1.77)]
)
def test_each_reading_gives_the_figures_it_is_calculated_to_give(name, hours, speedup):
    assert hours_and_speedup(name) == pytest.approx((hours, speedup), rel=0.01)


def test_the_first_readings_overhead_is_two_copies_at_a_plausible_rate():
    assert clusters()["A"].link.bandwidth_bytes_per_s == pytest.approx(6.4e9, rel=0.01)


def test_the_runs_of_the_readings_are_declared():
    assert set(reading_timings(0)) == set(NEEDS)
    assert "p1.readings" in {maker.id for maker in PAPER.exhibits}
