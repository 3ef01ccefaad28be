"""A grid gives the same runs wherever its jobs run, and loses nothing with a killed worker."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest

from harness.base.errors import ProcessDied, UserError
from harness.base.seeds import identity
from harness.experiment import run as running
from harness.experiment.contract import Configuration
from harness.experiment.pools import ProcessExecutor, Submission, check
from harness.experiment.run import Runner, longest_first, split_into_jobs
from harness.store import Store
from harness.store.store import CLAIM
from tests.harness.experiment import counting
from tests.harness.experiment.counting import STEPS, Counting, begun_at
from tests.processes import Started

HERE = f"{__name__}:"


@pytest.fixture(autouse=True)
def by_value():
    """The module of the runs has no name that workers of other programs could import."""
    cloudpickle.register_pickle_by_value(counting)
    yield
    cloudpickle.unregister_pickle_by_value(counting)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "begun").mkdir()
    return tmp_path / "begun"


def threads(jobs):
    return ThreadPoolExecutor(jobs)


def processes(jobs):
    return ProcessPoolExecutor(jobs)


def place(name):
    """Where jobs run; skipped where its package is missing."""
    if name == "processes":
        return None
    if name == "ray":
        pytest.importorskip("ray", reason="80 MB: pip install --group ray")
    return Submission(name)


PLACES = ["processes", "local", "dask", "ray", f"{HERE}processes"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PLACES)
def test_a_grid_gives_the_same_runs_everywhere_and_a_killed_worker_resumes(
    name, tmp_path, folder, monkeypatch, capfd
):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    Runner(here, 1).run({seed: Counting(seed, tmp_path) for seed in range(4)})
    configs = [Counting(seed, folder, "is killed" * (seed == 1)) for seed in range(4)]
    with Runner(there, 2, place(name)) as runner:
        runs = runner.run(dict(enumerate(configs)))
    assert {run.status for run in runs.values()} == {"done"}
    for run in runs.values():
        assert (run.dir / "run.json").read_bytes() == here.load(run.hash).path(
            "run.json"
        ).read_bytes()
    assert begun_at(folder, 1) == [0, 2]
    if not name.startswith(HERE):  # whose executor loses all that runs beside it
        assert [begun_at(folder, seed) for seed in (0, 2)] == [[0]] * 2
    if name != "dask":  # which itself repeats what a lost worker was doing
        told = capfd.readouterr().err
        assert f"run {configs[1].hash[:12]}: its job was lost (" in told
        assert "); another one resumes it\n" in told


def test_runs_that_lose_all_their_jobs_are_given_up_after_the_others(tmp_path, folder):
    configs = [Counting(0, folder, "is always killed"), Counting(1, folder)]
    with (
        pytest.raises(ProcessDied, match="1 of 2 runs lost 4 jobs each; not submitted again"),
        Runner(Store(tmp_path / "runs"), 2) as runner,
    ):
        runner.run(dict(enumerate(configs)))
    assert begun_at(folder, 0) == [0, 2, 2, 2, 2]  # the first one has moved on
    assert Store(tmp_path / "runs").has(configs[1].hash)


def test_a_run_that_gets_further_with_each_job_has_as_many_as_it_needs(tmp_path, folder):
    configs = [Counting(0, folder, "moves on"), Counting(1, folder)]
    with Runner(Store(tmp_path / "runs"), 2) as runner:
        runs = runner.run(dict(enumerate(configs)))
    assert runs[0].status == "done"
    assert begun_at(folder, 0) == [*range(STEPS)]


@pytest.mark.parametrize("submit", [None, Submission(f"{HERE}threads", 2)])
def test_bad_input_is_one_line_and_a_fault_a_failed_run(submit, tmp_path, folder, capfd):
    faulty = [Counting(0, folder, "a fault"), Counting(1, folder)]
    with Runner(Store(tmp_path / "runs"), 2, submit) as runner:
        runs = runner.run(dict(enumerate(faulty)))
    assert [run.status for run in runs.values()] == ["failed", "done"]
    bad = [Counting(2, folder, "bad input"), Counting(3, folder)]
    with (
        pytest.raises(UserError, match="corpus x: changed on disk"),
        Runner(Store(tmp_path / "runs"), 2, submit) as runner,
    ):
        runner.run(dict(enumerate(bad)))


def test_an_error_that_is_not_kept_is_told_with_its_run(tmp_path, folder, capfd):
    configs = [Counting(0, folder, "a fault"), Counting(1, folder)]
    with (
        Runner(Store(tmp_path / "runs"), 2, keeps_faults=False) as runner,
        pytest.raises(UserError),
    ):
        runner.run(dict(enumerate(configs)))
    assert not Store(tmp_path / "runs").has(configs[0].hash)


def test_a_run_that_cannot_be_sent_is_one_line_and_is_executed_here_alone(tmp_path, folder):
    configs = [Counting(seed, folder, unpackable=threading.Lock()) for seed in range(2)]
    with (
        pytest.raises(UserError, match="a run cannot be sent to another process: "),
        Runner(Store(tmp_path / "runs"), 2) as runner,
    ):
        runner.run(dict(enumerate(configs)))
    assert len(Runner(Store(tmp_path / "runs"), 1).run(dict(enumerate(configs)))) == 2


def test_a_single_run_starts_no_process(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(running, "ProcessExecutor", None)
    (run,) = Runner(Store(tmp_path / "runs"), 8).run({0: Counting(0, folder)}).values()
    assert run.status == "done"


def test_a_run_that_another_process_executes_comes_after_the_others(tmp_path, folder):
    store, configs = Store(tmp_path / "runs"), [Counting(seed, folder) for seed in range(3)]
    claim = store.path / configs[0].hash / CLAIM
    claim.parent.mkdir(parents=True)
    claim.write_text("node12-77 0123")
    late = threading.Timer(0.5, claim.unlink)
    late.start()
    began = []
    configs = [Noting(**vars(each)) for each in configs]
    Noting.began = began
    Runner(store, 1).run(dict(enumerate(configs)))
    assert began == [1, 2, 0]


class Noting(Counting):
    """Notes the order in which runs begin."""

    def execute(self, store, watch):
        self.began.append(self.seed)
        return super().execute(store, watch)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_spent_budget_ends_the_grid(jobs, tmp_path, folder):
    configs = [Counting(seed, folder) for seed in range(2)]
    with pytest.raises(KeyboardInterrupt), Runner(Store(tmp_path / "runs"), jobs) as runner:
        runner.run(dict(enumerate(configs)), budget_s=-1.0)
    assert list(folder.iterdir()) == []


def test_an_idle_process_that_was_killed_is_replaced():
    executor = ProcessExecutor((), print)
    first = executor.submit(os.getpid).result()
    while not executor._idle:
        time.sleep(0.001)
    os.kill(first, signal.SIGKILL)
    while not executor._idle[0]._broken:
        time.sleep(0.001)
    assert executor.submit(os.getpid).result() != first
    executor.shutdown()


INTERRUPTED = """
import sys, time
from harness.cli import exit_code, run_process
from harness.experiment.pools import ProcessExecutor
from harness.experiment.run import Runner

def run():
    executor = ProcessExecutor((), print)
    futures = [executor.submit(time.sleep, 600) for _ in range(2)]
    pids = [pid for pool in executor._pools for pid in pool._processes]
    print(*pids, file=sys.stderr, flush=True)
    try:
        futures[0].result()
    finally:
        executor.shutdown()

sys.exit(run_process(lambda: exit_code(run)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_command(number):
    command = Started(["-c", INTERRUPTED], leads=True)
    command.wait_until_told("\n")
    pids = [int(pid) for pid in command.err.read_text().split()]
    command.kill(number)
    done = command.ended()
    assert done.returncode == (-number if number == signal.SIGKILL else 130)
    assert done.stderr.splitlines()[1:] == ["interrupted"] * (number != signal.SIGKILL)
    end = time.monotonic() + 60.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, "a process lives on"
        time.sleep(0.01)


def test_equal_configurations_run_once_under_all_their_names(tmp_path, folder, monkeypatch):
    configs = {1: Counting(0, folder), 2: Counting(1, folder), 3: Counting(0, folder)}
    shown = {}
    monkeypatch.setattr(
        running, "Display", lambda titles, *rest: shown.update(titles) or Display(titles, *rest)
    )
    from harness.experiment.display import Display

    with Runner(Store(tmp_path / "runs"), 1) as runner:
        runs = runner.run(configs, "number {}".format)
    assert {key: run.hash for key, run in runs.items()} == {
        key: identity(config.to_dict()) for key, config in configs.items()
    }
    assert len(Store(tmp_path / "runs").runs()) == 2
    assert shown == {runs[1].hash: "number 1 = number 3", runs[2].hash: "number 2"}


def test_an_unknown_place_is_one_line():
    with pytest.raises(UserError, match=r"--submit: unknown 'slurn' \(did you mean 'slurm'\?\)"):
        check("slurn")
    for where in ("no.such:Executor", "concurrent.futures:Nothing"):
        with pytest.raises(UserError, match=f"--submit {where}: .*; allowed: MODULE:FUNCTION"):
            check(where)


class Timing(Configuration):
    """Says nothing of its effort."""


def test_the_longest_run_begins_first_and_equals_keep_their_order(folder):
    configs = {
        name: Counting(0, folder, effort=effort)
        for name, effort in (("short", 1.0), ("a", 4.0), ("b", 4.0))
    }
    assert list(longest_first({"timing": Timing(), **configs})) == ["a", "b", "short", "timing"]
    assert split_into_jobs(["a", "b", "c"], 100) == [("a", "b", "c")]


def test_runs_on_speech_take_as_long_as_their_weights_make_them(configure, sequence):
    longer = sequence(start=configure(hidden=(8, 4), passes=9), passes=3)
    assert configure(hidden=(8, 4), passes=2).effort == 2 * (8 * 8 + 8 * 4)
    assert longer.effort == 3 * (8 * 8 + 8 * 4)
