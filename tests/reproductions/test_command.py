"""``python -m reproductions`` as its users meet it: processes, exit codes, deaths."""

import json
import os
import signal
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from harness.store import Store
from reproductions.command import main
from tests.processes import PATIENCE_S, Started

COMMAND = ["-m", "reproductions"]
QUICK = ["-m", "tests.reproductions.quick"]
SMALL = ["paper1", "--scale", "smoke", "--corpus", "parametric", "--seeds", "1"]
SMALL += ["--only", "fig1,table3", "--jobs", "2"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """One cache for the module: the corpus is made once."""
    return tmp_path_factory.mktemp("cache")


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "LAGBENCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}


def begun(cache: Path, *arguments: object, leads: bool = False) -> Started:
    command = QUICK if arguments[: len(SMALL)] == tuple(SMALL) else COMMAND
    return Started([*command, *arguments], environment(cache), leads=leads)


def run(cache: Path, *arguments: object) -> CompletedProcess[str]:
    return begun(cache, *arguments).ended()


def wait_for(out: Path, pattern: str) -> None:
    """Until a file appears below ``out``."""
    deadline = time.monotonic() + PATIENCE_S
    while not list(out.glob(pattern)):
        assert time.monotonic() < deadline, f"{pattern} never appeared"
        time.sleep(0.05)


def measured(out: Path) -> dict[str, Any]:
    """``results.json`` without its provenance."""
    results = json.loads((out / "results.json").read_text())
    del results["provenance"]
    return results


@pytest.fixture(scope="module")
def whole(cache, tmp_path_factory) -> Path:
    """The output of one uninterrupted reproduction."""
    out = tmp_path_factory.mktemp("whole") / "out"
    done = run(cache, *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_measured_row_names_runs_that_are_in_the_store(whole):
    store = Store(whole / "runs")
    rows = [row for exhibit in measured(whole)["exhibits"] for row in exhibit["rows"]]
    assert rows
    for row in rows + measured(whole)["claims"]:
        assert row["runs"]
        assert all(store.load(name).status == "done" for name in row["runs"])


def test_the_report_and_its_files_exist(whole):
    assert (whole / "report.pdf").read_bytes().startswith(b"%PDF")
    for exhibit in measured(whole)["exhibits"]:
        assert exhibit["files"]
        assert all((whole / name).is_file() for name in exhibit["files"])


@pytest.mark.nightly
def test_the_same_command_again_reuses_every_run(whole, cache):
    before = {path: path.stat().st_mtime_ns for path in whole.glob("runs/*/run.json")}
    results = measured(whole)
    assert run(cache, *SMALL, "--out", whole).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in whole.glob("runs/*/run.json")} == before
    assert measured(whole) == results


@pytest.mark.nightly
def test_a_killed_reproduction_resumes_to_the_same_results(whole, cache, tmp_path):
    out = tmp_path / "out"
    process = begun(cache, *SMALL, "--out", out)
    wait_for(out, "runs/*/checkpoint/checkpoint.safetensors")
    process.kill()
    process.ended()
    assert not (out / "results.json").exists()
    # One process instead of two: how many there are must not show in the result.
    assert run(cache, *SMALL, "--jobs", "1", "--out", out).returncode == 0
    assert measured(out) == measured(whole)


def test_an_interrupt_exits_with_130_and_can_be_resumed(cache, tmp_path):
    out = tmp_path / "out"
    process = begun(cache, *SMALL, "--out", out, leads=True)
    wait_for(out, "runs/*/config.json")
    os.killpg(process.pid, signal.SIGINT)
    done = process.ended()
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "resumes from the last checkpoint" in done.stderr


def test_a_spent_budget_stops_resumably(cache, tmp_path):
    done = run(cache, *SMALL, "--budget", "0.0001", "--out", tmp_path / "out")
    assert done.returncode == 130
    assert not (tmp_path / "out" / "results.json").exists()


BAD = {
    "an unknown paper": (["paper9"], "paper"),
    "an unknown scale": (["paper1", "--scale", "smoek"], "did you mean 'smoke'"),
    "an unknown corpus": (["paper1", "--scale", "smoke", "--corpus", "fsd"], "fsdd"),
    "an unknown device": (["paper1", "--device", "gpu"], "auto, cpu, cuda"),
    "an unknown exhibit": (["paper1", "--scale", "smoke", "--only", "tabel2"], "table2"),
    "an unknown option": (["paper1", "--sclae", "smoke"], "--sclae"),
    "no paper": ([], "paper"),
    "no seeds": (["paper1", "--seeds", "0"], "whole number from 1 to 1000"),
    "a negative budget": (["paper1", "--budget", "-1"], "positive number of minutes"),
    "an endless budget": (["paper1", "--budget", "nan"], "positive number of minutes"),
    "an output folder below a file": (["paper1", "--scale", "smoke", "--out", "file/o"], "--out: "),
    "an output folder without a name": (["paper1", "--out", ""], "name of a folder"),
    "a corpus that is absent": (
        ["paper1", "--scale", "smoke", "--corpus", "fsdd"],
        "LAGBENCH_CORP",
    ),
    "a device that is absent": (["paper1", "--device", "cuda"], "--device: cuda"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_bad_usage_is_one_clear_line_and_exit_code_2(mistake, tmp_path, monkeypatch, capsys):
    arguments, named = BAD[mistake]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("LAGBENCH_CORPORA", str(tmp_path / "none"))
    monkeypatch.setenv("LAGBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["--out", "out", *arguments]) == 2
    told = capsys.readouterr().err
    assert len(told.strip().splitlines()) == 1
    assert told.startswith("error: ")
    assert named in told
    assert not list(tmp_path.rglob("run.json"))


def test_bad_usage_of_a_process_is_that_line_and_code(cache):
    done = run(cache, "paper9")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: paper")
