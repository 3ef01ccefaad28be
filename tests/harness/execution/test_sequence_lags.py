from __future__ import annotations

import numpy as np
import pytest

from harness.execution.evaluation.lags import push_lag
from harness.simulator import Simulation, Timeline, Workload
from harness.simulator.timeline_file import load_timeline


def test_the_push_lag_is_what_comes_between_the_end_of_computing_and_the_fold(unequal):
    workload = Workload.of_network((9, 6, 5), 8)
    timeline = Simulation(unequal, "parameter_server", workload, 3, 1).advance(folds=200)
    ends: dict[int, list[float]] = {}
    spans = timeline.spans
    for worker, kind, end in zip(spans.worker, spans.kind, spans.end_s, strict=True):
        if timeline.kinds[kind] == "compute":
            ends.setdefault(int(worker), []).append(float(end))
    rows, times = timeline.folded(), timeline.folds.time_s
    folds, seconds = push_lag(timeline)
    for row, (worker, fold) in enumerate(zip(rows.worker, rows.fold, strict=True)):
        computed = ends[int(worker)].pop(0)
        assert seconds[row] == times[fold] - computed
        assert folds[row] == np.sum((times > computed) & (times < times[fold]))
    assert folds.max() >= 1


def test_a_timeline_without_folds_has_no_lags():
    assert len(push_lag(Timeline())[0]) == 0


def test_the_lags_of_a_run_name_every_path(unequal):
    from harness.execution.evaluation.lags import lags

    class Config:
        shuffling = "on the fly"
        slots = 4

    timeline = Simulation(unequal, "sequence", Workload.of_network((9, 6, 5), 32), 3, 1).advance(
        folds=50
    )
    found = lags(timeline, Config())
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
