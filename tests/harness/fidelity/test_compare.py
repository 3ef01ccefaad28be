from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.algorithms.schedules import Search
from harness.base.errors import UserError
from harness.experiment.experiment import Stage
from harness.experiment.run import run as train
from harness.experiment.run_file import load_run
from harness.fidelity.compare import (
    Comparison,
    behaviour,
    compare_to_prediction,
    format_comparison,
    remove_pauses,
)
from harness.fidelity.predict import time_passes
from harness.processes.recorder import Recorder, Work
from harness.simulator.timeline import IN_FLIGHT, LOST, Timeline
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from harness.store.schema import TIMELINE
from tests.silence import silent

RUNS = Path(__file__).parents[3] / "reproductions" / "runs"


def steady(folds: int, pause_s: float = 0.0) -> Timeline:
    """Two workers in turn, a fold a second; the server is away for a while after half of them."""
    recorder = Recorder()
    for fold in range(folds):
        away = pause_s if fold >= folds // 2 else 0.0
        read = fold - 1.0 + (pause_s if fold > folds // 2 + 1 else 0.0)
        work = Work(fold % 2, fold, 1, max(0, fold - 1), read)
        end = fold + 1.0 + away
        moments = (read + 0.1, end - 0.4, end - 0.2, end - 0.1, end)
        recorder.record_fold(fold, work, moments_s=moments)
        if fold == folds // 2 - 1 and pause_s:
            recorder.record_pause(end, end + pause_s)
    return recorder.segment([])


def test_throughput_staleness_and_lag_are_those_of_the_middle() -> None:
    found = behaviour(steady(100))
    assert found.throughput_per_s == 1.0
    assert set(found.lag.staleness.tolist()) == {1}
    assert set(found.lag.lag_s.tolist()) == {2.0}


def test_a_pause_of_the_server_counts_neither_as_work_nor_as_lag() -> None:
    found = behaviour(steady(100, pause_s=30.0))
    assert found.throughput_per_s == pytest.approx(1.0)
    assert found.lag.lag_s.max() == pytest.approx(2.0)


def test_a_simulated_run_of_two_stages_and_searches_is_what_is_predicted_of_it(
    tmp_path: Path,
) -> None:
    asked = load_run(RUNS / "async-averaged.toml")
    stages, search = (Stage(32, 256, 0.3), Stage(32, 1024, 0.3)), Search(0.008, whole_trials=True)
    config = replace(asked, passes=2, stages=stages, schedule=search, chunk=0.2)
    run = train(config, Store(tmp_path), silent)
    found = compare_to_prediction(run.dir)
    assert found.recorded.throughput_per_s == found.predicted.throughput_per_s
    assert found.staleness_distance == 0.0
    timeline = load_timeline(run.path(TIMELINE))
    said = time_passes(config, asked.task.open(asked).pieces, len(timeline.folds)).timeline
    assert said.sha256() == timeline.sha256()
    assert remove_pauses(timeline).folds.time_s[-1] < timeline.folds.time_s[-1]


def test_a_record_that_was_not_paced_is_said_to_be_none() -> None:
    found = Comparison(*2 * [behaviour(steady(100))])
    plain = list(format_comparison(found))
    told = list(format_comparison(replace(found, unpaced=True)))
    assert told[0] == "not paced: recorded is this machine's speed, predicted the cluster's"
    assert told[2:] == plain


def test_too_short_a_record_is_refused() -> None:
    with pytest.raises(UserError, match="40 folds; needed: 62"):
        behaviour(steady(40))


def test_a_recorded_segment_tells_what_was_lost_and_what_is_under_way() -> None:
    recorder = Recorder()
    recorder.record_loss(Work(1, 4, 1, 3, 2.0))
    segment = recorder.segment([Work(0, 6, 1, 3, 2.5), Work(1, 5, 1, 2, 2.25)])
    rows = segment.contributions
    assert rows.fold.tolist() == [LOST, IN_FLIGHT, IN_FLIGHT]
    assert rows.first_step.tolist() == [4, 5, 6]
    assert len(recorder.segment([]).contributions) == 0


def test_spans_that_took_no_time_are_left_out() -> None:
    recorder = Recorder()
    recorder.record_fold(0, Work(0, 0, 1, 0, 0.0), moments_s=(0.0, 1.0, 1.0, 1.0, 1.5))
    spans = recorder.segment([]).spans
    assert spans.worker.tolist() == [0, -1]
    assert np.array_equal(spans.end_s, [1.0, 1.5])
