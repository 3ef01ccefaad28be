import numpy as np
import pytest

from harness.simulator import Simulation, Timeline, Workload
from harness.simulator.timeline_file import load_timeline
from harness.speech.held_out import lags


def test_a_timeline_without_folds_has_no_lags(configure, sequence) -> None:
    every = [sequence(shuffling=how) for how in ("none", "on the fly", "full")]
    assert [lags(Timeline(), config) for config in (configure(), *every)] == [{}] * 4


def test_every_kind_of_run_names_its_reads(configure, sequence) -> None:
    assert set(configure().reads()) == {"inner"}
    assert set(sequence().reads()) == {"inner", "push", "outer"}
    assert set(sequence(shuffling="full", decode_cost=0.0).reads()) == {"inner", "push"}


def test_the_lags_of_a_run_name_every_read(unequal, sequence):
    timeline = Simulation(unequal, "sequence", Workload.of_network((9, 6, 5), 32), 3, 1).advance(
        folds=50
    )
    found = lags(timeline, sequence(slots=4))
    assert found["inner_staleness_mean"] == pytest.approx(timeline.staleness().mean())
    assert found["outer_lag_s_p95"] > found["inner_lag_s_p95"] > found["push_lag_s_p95"] >= 0.0


@pytest.mark.parametrize("passes", [1, 2])
def test_fully_shuffled_frames_grow_old_from_the_beginning_of_their_pass(
    passes, sequence, run_sequence
):
    run = run_sequence(sequence(shuffling="full", passes=passes, decode_cost=1.0))
    timeline = load_timeline(run.path("timeline.parquet"))
    decode = timeline.spans.kind == timeline.kinds.index("decode")
    begins = timeline.spans.start_s[decode].tolist()
    assert len(begins) == passes
    ages, seconds = [], []
    for time in timeline.folds.time_s.tolist():
        began = max(begin for begin in begins if begin < time)
        ages.append(np.sum((timeline.folds.time_s > began) & (timeline.folds.time_s < time)))
        seconds.append(time - began)
    assert run.summary["outer_staleness_mean"] == np.mean(ages)
    assert run.summary["outer_lag_s_mean"] == np.mean(seconds)
    if passes == 1:
        assert run.summary["outer_staleness_mean"] == (run.summary["folds"] - 1) / 2
