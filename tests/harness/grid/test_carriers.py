"""Whoever carries the runs of a grid, and in which order they begin."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.grid import carriers
from harness.grid.carriers import carrier, carrier_from_executor, check
from harness.grid.grid import longest_first
from harness.tasks.contract import Configuration


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(carriers, "POLL_S", 0.001)


def done_by(carried, tasks, runs_a_job=1, work=Path.touch):
    """What was done, and what was told to be done, of tasks that are paths to touch."""
    finished: list[str] = []
    with closing(carried):
        carriers.submit(tasks, work, carried, finished.append, 1e18, runs_a_job)
    return sorted(name for name, path in tasks.items() if path.exists()), sorted(finished)


@pytest.mark.parametrize("runs_a_job", [1, 2, 100])
def test_any_executor_carries_a_grid(tmp_path, runs_a_job):
    tasks = {str(each): tmp_path / str(each) for each in range(5)}
    found = done_by(carrier_from_executor(lambda: ThreadPoolExecutor(2), 2), tasks, runs_a_job)
    assert found == (list(tasks), list(tasks))


def test_an_executor_of_anybodys_is_named_by_its_module(tmp_path):
    tasks = {"a": tmp_path / "a"}
    named = carrier("concurrent.futures:ThreadPoolExecutor", tmp_path, 2)
    assert done_by(named, tasks) == (["a"], ["a"])


@pytest.mark.parametrize("where", ["no.such:Executor", "concurrent.futures:Nothing"])
def test_an_executor_that_is_not_there_is_one_line(where):
    with pytest.raises(UserError, match=f"--submit {where}: .*; allowed: MODULE:FUNCTION"):
        check(where)


def dies_once(path):
    """Kill the process at the first call, as want of memory would."""
    if not (died := path.with_suffix(".died")).exists():
        died.touch()
        os._exit(1)
    path.touch()


def test_what_a_broken_executor_lost_is_submitted_again_to_another(tmp_path):
    tasks = {str(each): tmp_path / str(each) for each in range(2)}
    carried = carrier_from_executor(lambda: ProcessPoolExecutor(1), 1)
    assert done_by(carried, tasks, work=dies_once) == (list(tasks), list(tasks))


def test_dask_carries_a_grid(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    tasks = {str(each): tmp_path / str(each) for each in range(4)}
    with distributed.LocalCluster(
        n_workers=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0"
    ) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        assert done_by(carrier("dask", tmp_path, 2), tasks, 2) == (list(tasks), list(tasks))


def test_ray_carries_a_grid_and_a_job_whose_worker_dies_is_submitted_again(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="80 MB: pip install --group ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    tasks = {str(each): tmp_path / str(each) for each in range(4)}
    found = done_by(carrier("ray", tmp_path, 2), tasks, work=dies_once)
    assert found == (list(tasks), list(tasks))


@dataclass(frozen=True)
class Config:
    effort: float

    def to_dict(self):
        return vars(self)


class Timing(Configuration):
    """Says nothing of its effort."""


def test_the_longest_run_begins_first_and_equals_keep_their_order():
    configs = {"short": Config(1.0), "a": Config(4.0), "b": Config(4.0)}
    assert list(longest_first({"timing": Timing(), **configs})) == ["a", "b", "short", "timing"]


def test_runs_on_speech_take_as_long_as_their_weights_make_them(configure, sequence):
    longer = sequence(start=configure(hidden=(8, 4), passes=9), passes=3)
    assert configure(hidden=(8, 4), passes=2).effort == 2 * (8 * 8 + 8 * 4)
    assert longer.effort == 3 * (8 * 8 + 8 * 4)
