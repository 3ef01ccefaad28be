import pytest

from harness.simulator.cluster import Workload
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline
from harness.speech.lags import summarise_lags


@pytest.mark.parametrize("slots", [None, 4])
def test_a_timeline_without_folds_has_no_lags(slots) -> None:
    assert summarise_lags(Timeline(), slots) == {}


def test_the_lags_of_a_run_name_every_read(unequal):
    timeline = Simulation(unequal, "sequence", Workload.of_network((9, 6, 5), 32), 3, 1).advance(
        folds=50
    )
    found = summarise_lags(timeline)
    assert found["inner_staleness_mean"] == pytest.approx(timeline.staleness().mean())
    assert found["outer_lag_s_p95"] > found["inner_lag_s_p95"] > found["push_lag_s_p95"] >= 0.0
