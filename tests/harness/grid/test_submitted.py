"""Runs as jobs, and several who fill one store at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError

import cloudpickle
import pytest
from submitit.core.utils import FailedJobError, UncompletedJobError

from harness.base.errors import ProcessDied, UserError
from harness.grid import carriers
from harness.grid.carriers import Carrier, carrier, check
from harness.store import Store
from tests.processes import Started

# This module has no name in a job's process: what it defines travels whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
CLUSTER = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"
FILL = f"""
from dataclasses import replace
from pathlib import Path
from sys import argv
from harness.grid.grid import execute
from harness.grid.carriers import Submission
from harness.runs.timing import TimingConfig
from harness.simulator import load_cluster

if __name__ == "__main__":
    one = TimingConfig(load_cluster(Path({str(CLUSTER)!r})), 4, (429, 64, 100), 256, 200, 0)
    configs = [replace(one, seed=seed) for seed in range(3)]
    submit = Submission("local", 2) if argv[2] == "local" else None
    execute(configs, Path(argv[1]), 2, lambda report: None, submit=submit)
"""


def hashes(store: Path) -> dict[str, str]:
    """Timeline hashes of the runs of a store, by run."""
    runs = Store(store).runs()
    assert {run.status for run in runs} == {"done"}
    return {run.hash: run.summary["timeline_sha256"] for run in runs}


def test_jobs_give_the_runs_that_processes_give_whoever_fills_the_store(tmp_path: Path) -> None:
    shared, alone = tmp_path / "shared" / "runs", tmp_path / "alone" / "runs"
    (tmp_path / "fill.py").write_text(FILL, encoding="utf-8")
    fillers = [
        Started([tmp_path / "fill.py", store, submit])
        for store, submit in ((shared, ""), (shared, "local"), (alone, ""))
    ]
    assert [filler.ended().returncode for filler in fillers] == [0, 0, 0]
    assert len(hashes(alone)) == 3
    assert hashes(shared) == hashes(alone)


@dataclass(frozen=True)
class Task:
    folder: Path
    mistake: bool

    def __call__(self) -> None: ...


def do(task: Task) -> None:
    if task.mistake:
        raise UserError("corpus x: changed on disk")
    (task.folder / "done").touch()


def test_a_jobs_bad_input_comes_back_as_its_line(tmp_path: Path) -> None:
    tasks = {"good": Task(tmp_path, False), "bad": Task(tmp_path, True)}
    finished: list[str] = []
    with pytest.raises(UserError, match="changed on disk"):
        carriers.submit(tasks, do, carrier("local", tmp_path / "jobs", 1), finished.append, 1e18)
    assert finished == ["good"]
    assert (tmp_path / "done").exists()


def test_a_spent_budget_cancels_the_jobs(tmp_path: Path) -> None:
    carried = carrier("local", tmp_path / "jobs", 1)
    with pytest.raises(KeyboardInterrupt):
        carriers.submit({"a": Task(tmp_path, False)}, do, carried, print, -1.0)
    assert not (tmp_path / "done").exists()


def test_a_job_that_cannot_be_cancelled_keeps_no_other(monkeypatch) -> None:
    monkeypatch.setattr(carriers, "POLL_S", 0.0)
    cancelled: list[str] = []

    @dataclass
    class Endless:
        name: str

        def done(self) -> bool:
            if self.name == "b":
                raise KeyboardInterrupt
            return False

        def result(self) -> str: ...

        def cancel(self) -> None:
            cancelled.append(self.name)
            raise CalledProcessError(1, ["scancel", self.name])

    def start(work: object, jobs: Sequence[Sequence[str]]) -> list[Endless]:
        return [Endless(task) for (task,) in jobs]

    tasks = {name: name for name in "ab"}
    with pytest.raises(KeyboardInterrupt):
        carriers.submit(tasks, do, Carrier(start, 2, ()), print, 1e18)
    assert cancelled == ["a", "b"]


def test_an_unknown_batch_system_is_refused() -> None:
    with pytest.raises(UserError, match=r"--submit: unknown 'slurn' \(did you mean 'slurm'\?\)"):
        check("slurn")


class Flaky:
    """A batch system that loses the first jobs of each task, and keeps count.

    Each of the first jobs that are lost makes so many folds before.
    """

    def __init__(self, losses: dict[str, int], moving: int = 0) -> None:
        self.losses, self.moving, self.submitted = losses, moving, list[str]()

    def reached(self, task: str) -> float:
        return min(self.submitted.count(task), self.moving)

    def start(self, work: object, jobs: Sequence[Sequence[str]]) -> list[Flaky.Job]:
        return [self.begun(task) for (task,) in jobs]

    def begun(self, task: str) -> Flaky.Job:
        self.submitted.append(task)
        return Flaky.Job(self.submitted.count(task) <= self.losses[task])

    @dataclass
    class Job:
        lost: bool

        def done(self) -> bool:
            return True

        def result(self) -> str:
            if self.lost:
                raise UncompletedJobError("the node is gone")
            return ""

        def cancel(self) -> None: ...


def submitted_to(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What finished, in its order."""
    monkeypatch.setattr(carriers, "POLL_S", 0.0)
    finished: list[str] = []
    tasks = {name: name for name in flaky.losses}
    try:
        carried = Carrier(flaky.start, 1, (UncompletedJobError,))
        carriers.submit(tasks, do, carried, finished.append, 1e18, 1, flaky.reached)
    except ProcessDied as error:
        finished.append(str(error))
    return finished


def test_a_lost_job_is_submitted_again_after_those_that_wait(monkeypatch) -> None:
    flaky = Flaky({"a": 2, "b": 0, "c": 1})
    assert submitted_to(flaky, monkeypatch) == ["b", "c", "a"]
    assert flaky.submitted == ["a", "b", "c", "a", "c", "a"]


def test_a_task_that_loses_all_its_jobs_is_given_up_after_the_others(monkeypatch) -> None:
    flaky = Flaky({"a": 100, "b": 3})
    assert submitted_to(flaky, monkeypatch) == [
        "b",
        "1 of 2 runs lost 4 jobs each; not submitted again",
    ]
    assert flaky.submitted.count("a") == carriers.ATTEMPTS


def test_a_task_that_goes_further_with_each_job_has_as_many_as_it_needs(monkeypatch) -> None:
    flaky = Flaky({"a": 50}, moving=50)
    assert submitted_to(flaky, monkeypatch) == ["a"]
    assert len(flaky.submitted) == 51


def test_a_task_that_goes_no_further_any_more_is_given_up(monkeypatch) -> None:
    flaky = Flaky({"a": 50}, moving=10)
    assert submitted_to(flaky, monkeypatch) == ["1 of 1 runs lost 4 jobs each; not submitted again"]
    assert len(flaky.submitted) == 10 + carriers.ATTEMPTS


def raises(task: Task) -> None:
    raise ImportError("No module named 'corpora'")


def test_a_job_that_raises_is_told_at_once_and_not_tried_again(tmp_path: Path) -> None:
    tasks = {"bad": Task(tmp_path, False)}
    told = r"a job raised ImportError: No module named 'corpora'; not submitted again"
    with pytest.raises(UserError, match=told):
        carriers.submit(tasks, raises, carrier("local", tmp_path / "jobs", 1), print, 1e18)
    assert len(list((tmp_path / "jobs").glob("*_submitted.pkl"))) == 1


def test_what_submitit_says_of_time_that_is_up_is_a_loss_and_no_failure(tmp_path: Path) -> None:
    carried = carrier("local", tmp_path, 1)
    assert carried.failed(FailedJobError("Job failed: ImportError"))
    assert not carried.failed(FailedJobError("Job not requeued because: timed-out"))
    assert not carried.failed(UncompletedJobError("has not produced any output"))


@pytest.mark.parametrize("number", carriers.LEAVES)
def test_a_job_whose_time_is_nearly_up_leaves_its_run_and_no_result_of_it(number) -> None:
    def work(task: str) -> None:
        try:
            signal.raise_signal(number)
        except Exception:
            pytest.fail("an error of the run")

    before = signal.getsignal(number)
    assert carriers.run_tasks(work, ["a"]) is None
    assert signal.getsignal(number) == before
