"""Real processes: their record replays to the same bits, and deaths cost little."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.fidelity.replay import ReplayResult, load_finished_run, replay_run
from harness.simulator.timeline import LOST, Timeline
from harness.simulator.timeline_file import load_timeline
from harness.store.schema import TIMELINE
from tests.processes import PATIENCE_S
from tests.run_files import ASYNCHRONOUS, OUTER_LOOP, ROUNDS, STREAMING, written
from tests.silence import silent

OTHER_SEED = """
import os, sys
from harness.train import main

os._exit(main([*sys.argv[1:], "--seed", "5"]))
"""
Launch = Callable[..., Any]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return written(tmp_path, ASYNCHRONOUS, 0.005)


def again(folder: Path) -> ReplayResult:
    found = replay_run(folder, silent)
    assert found.replayed_sha256 == found.recorded_sha256
    return found


def finished(running: Any) -> Path:
    """The folder of a run whose three processes end well."""
    codes, told = running.ended()
    assert codes == [0, 0, 0], told
    return running.folder()


def each_step_once(timeline: Timeline) -> None:
    steps = timeline.folded().first_step.tolist()
    assert sorted(steps) == list(range(len(steps)))


def test_a_run_under_torchrun_is_recorded_and_replays_to_the_same_bits(run_file: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    store = run_file.parent / "s"
    options = ["-m", "harness.train", str(run_file), "--out", str(store)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    (folder,) = [config.parent for config in store.glob("*/config.json")]
    timeline = load_timeline(load_finished_run(folder).dir / TIMELINE)
    each_step_once(timeline)
    assert set(timeline.folded().worker.tolist()) == {0, 1}
    assert timeline.staleness().max() >= 1
    lags, spans = timeline.lag_s(), timeline.spans
    assert (lags > 0).all()
    assert (spans.end_s > spans.start_s).all()
    assert again(folder).folds == len(timeline.folds) > 100


def test_a_killed_worker_costs_its_contribution_and_the_other_goes_on(
    tmp_path: Path, launch: Launch
) -> None:
    running = launch(written(tmp_path, ASYNCHRONOUS, 0.02))
    running.wait_until_told("passes")
    running.kill(2)
    codes, told = running.ended()
    assert codes == [0, 0, -9]
    assert "worker 1 is gone: its connection closed; 1 left" in told[0]
    folder = running.folder()
    timeline = load_timeline(folder / TIMELINE)
    each_step_once(timeline)
    lost = timeline.contributions.where(timeline.contributions.fold == LOST)
    assert lost.worker.tolist() == [1]
    again(folder)


def test_a_worker_that_died_and_is_started_again_has_work_again(
    tmp_path: Path, launch: Launch, waiting_server: Path
) -> None:
    running = launch(written(tmp_path, ASYNCHRONOUS, 0.01), instead={0: waiting_server})
    running.wait_until_told("passes")
    running.kill(2)
    running.wait_until_told("worker 1 is gone")
    running.processes.append(running.start(2))
    codes, told = running.ended()
    assert codes == [0, 0, -9, 0], told
    assert "worker 1 is back; 2 at work" in told[0]
    folder = running.folder()
    timeline = load_timeline(folder / TIMELINE)
    each_step_once(timeline)
    (lost,) = timeline.lost().read_time_s.tolist()
    rows = timeline.folded()
    assert (rows.read_time_s[rows.worker == 1] > lost).sum() > 10
    again(folder)


def test_a_worker_with_another_seed_is_refused_before_it_begins_and_the_other_goes_on(
    tmp_path: Path, launch: Launch
) -> None:
    (tmp_path / "other.py").write_text(OTHER_SEED, encoding="utf-8")
    running = launch(written(tmp_path, ASYNCHRONOUS, 0.001), instead={2: tmp_path / "other.py"})
    codes, told = running.ended()
    assert codes == [0, 0, 2], told
    assert "(the same file, corpus and options for every process)" in told[2]
    assert "worker 1 is gone: its connection closed; 1 left" in told[0]
    timeline = load_timeline(running.folder() / TIMELINE)
    assert set(timeline.folded().worker.tolist()) == {0}
    each_step_once(timeline)


def test_a_killed_server_goes_on_from_its_checkpoint(
    tmp_path: Path, launch: Launch, pausing_server: Path
) -> None:
    run = ASYNCHRONOUS.replace("evaluations = 4", "evaluations = 40")  # boundaries on the way
    killed = launch(written(tmp_path, run, 0.001), instead={0: pausing_server})
    killed.wait_for_pause()
    killed.kill(0)
    codes, told = killed.ended()
    assert codes == [-9, 3, 3]
    assert all("the server is gone; the same command resumes" in line for line in told[1:])
    folder = finished(launch(tmp_path / "run.toml"))
    timeline = load_timeline(folder / TIMELINE)
    each_step_once(timeline)
    times = timeline.folds.time_s
    assert (times[1:] > times[:-1]).all()
    again(folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "run",
    [OUTER_LOOP, OUTER_LOOP.replace('"Constant"', '"Cosine"'), STREAMING],
    ids=["outer loop", "outer loop, cosine", "streaming"],
)
def test_workers_that_remember_their_optimizers_replay_to_the_same_bits(
    run: str, tmp_path: Path, launch: Launch
) -> None:
    folder = finished(launch(written(tmp_path, run, 0.001)))
    timeline = load_timeline(folder / TIMELINE)
    assert set(timeline.folded().steps.tolist()) == {4}
    assert again(folder).folds == len(timeline.folds) > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["Exponential", "Linear"])
def test_rounds_of_natural_gradient_replay_to_the_same_bits_too(
    schedule: str, tmp_path: Path, launch: Launch
) -> None:
    run = ROUNDS
    if schedule == "Linear":  # from round to round, on every worker by itself
        run = "".join(run.replace('is = "Exponential"', 'is = "Linear"').rsplit("passes = 2\n", 1))
    folder = finished(launch(written(tmp_path, run, 0.001)))
    timeline = load_timeline(folder / TIMELINE)
    rows = timeline.folded()
    assert len(rows) == 2 * len(timeline.folds)
    assert timeline.staleness().max() == 0
    assert (timeline.lag_s() >= 0.005).all()
    again(folder)
    assert finished(launch(tmp_path / "run.toml")) == folder


def test_rounds_whose_worker_was_killed_go_on_with_what_all_of_them_remembered(
    tmp_path: Path, launch: Launch, pausing_server: Path
) -> None:
    run = ROUNDS.replace("evaluations = 2", "evaluations = 40")
    running = launch(written(tmp_path, run, 0.001), instead={0: pausing_server})
    running.wait_for_pause()
    running.kill(2)
    running.go_on()
    codes, told = running.ended()
    assert codes == [3, 3, -9], told
    why = "worker 1 is gone: its connection closed; a round needs all workers"
    assert f"error: {why}; the same command resumes" in told[0]
    assert "error: worker 0: the server is gone; the same command resumes" in told[1]
    again(finished(launch(tmp_path / "run.toml")))


def test_a_wrong_number_of_processes_is_one_line_and_nobody_waits(
    run_file: Path, launch: Launch
) -> None:
    text = run_file.read_text(encoding="utf-8")
    run_file.write_text(text.replace("workers = 2", "workers = 3"), encoding="utf-8")
    running = launch(run_file)
    codes, told = running.ended()
    assert codes == [2, 3, 3]
    assert "workers: 3 is not allowed; allowed: 2, as there are 3 processes" in told[0]
