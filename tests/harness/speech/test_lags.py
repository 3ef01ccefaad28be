import pytest

from harness.simulator import Simulation, Timeline, Workload
from harness.speech.held_out import lags


def test_a_timeline_without_folds_has_no_lags(configure, sequence) -> None:
    every = [sequence(shuffling=how) for how in ("none", "on the fly")]
    assert [lags(Timeline(), config) for config in (configure(), *every)] == [{}] * 3


def test_every_kind_of_run_names_its_reads(configure, sequence) -> None:
    assert set(configure().reads()) == {"inner"}
    assert set(sequence().reads()) == {"inner", "push", "outer"}


def test_the_lags_of_a_run_name_every_read(unequal, sequence):
    timeline = Simulation(unequal, "sequence", Workload.of_network((9, 6, 5), 32), 3, 1).advance(
        folds=50
    )
    found = lags(timeline, sequence(slots=4))
    assert found["inner_staleness_mean"] == pytest.approx(timeline.staleness().mean())
    assert found["outer_lag_s_p95"] > found["inner_lag_s_p95"] > found["push_lag_s_p95"] >= 0.0
