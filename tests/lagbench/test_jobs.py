"""Runs of `import lagbench` side by side: equal to those of one process, whatever carries them."""

import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lagbench
from harness.experiment.digests import digest_of_code
from harness.experiment.pools import Parcel
from harness.experiment.run import run_job
from harness.modules.settings import USUAL
from harness.store import Store
from tests.modules import mlp, points
from tests.processes import Started


@pytest.fixture
def usual(cluster: Path) -> dict[str, Any]:
    return {"cluster": cluster, "minibatch": 8, "passes": 1, "seeds": 2, "step_seconds": 0.01}


def figures(result: lagbench.Result) -> list[tuple[Any, ...]]:
    """Everything of the runs that does not say when and where they were made."""
    return [
        (row.cell.method, row.cell.workers, row.cell.rate, run.hash, run.summary)
        for row in result.rows
        for run in row.cell.runs
    ]


def names(store: Path) -> list[str]:
    return sorted(path.name for path in store.iterdir() if len(path.name) == 64)


def of_threads(jobs: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(jobs)


def test_whatever_carries_the_runs_a_break_point_is_the_same(tmp_path, usual) -> None:
    there = {"submit": f"{__name__}:of_threads", "jobs": 2}
    found = [
        lagbench.tolerate(
            mlp, functional.cross_entropy, points(80), between=(1, 4), rate=0.1, halvings=1,
            store=tmp_path / name, **further, **usual,
        )
        for name, further in (("here", {}), ("there", there))
    ]  # fmt: skip
    assert str(found[0]) == str(found[1])
    assert names(tmp_path / "here") == names(tmp_path / "there")


@pytest.mark.parametrize("argument", ["model", "loss", "metric"])
def test_what_belongs_to_one_process_alone_is_refused_by_its_name(
    argument, tmp_path, usual
) -> None:
    lock = threading.Lock()

    def held(outputs, targets):
        with lock:
            return functional.cross_entropy(outputs, targets)

    class Held(nn.Linear):
        lock = threading.Lock()

    parts = {"model": mlp, "loss": functional.cross_entropy, "metric": "error"}
    asked = {**parts, argument: Held(6, 3) if argument == "model" else held}
    told = rf"{argument}: .*(cannot be sent to another process|lock).*"
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.train(
            asked["model"], asked["loss"], points(80), metric=asked["metric"], rate=0.1,
            store=tmp_path / "store", jobs=2, **usual,
        )  # fmt: skip
    assert names(tmp_path / "store") == []


def test_what_a_loss_raises_is_told_with_its_place_and_no_result(tmp_path, usual) -> None:
    def sometimes(outputs, targets):
        if not torch.is_grad_enabled():
            raise ZeroDivisionError("a mistake of the user's")
        return functional.cross_entropy(outputs, targets)

    for jobs in (1, 2):
        told = r"sometimes \(test_jobs.py, line \d+\) raised ZeroDivisionError: a mistake"
        with pytest.raises(lagbench.UserError, match=told):
            lagbench.train(
                mlp, sometimes, points(80), rate=0.1, store=tmp_path / str(jobs), jobs=jobs, **usual
            )
        assert not any((path / "run.json").exists() for path in (tmp_path / str(jobs)).iterdir())


SCRIPT = """
import sys
import lagbench
from torch import nn
from tests.modules import points

print("the script runs", flush=True)

class Own(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

result = lagbench.train(Own, loss, points(80), cluster=sys.argv[1], rate=0.1, seeds=3, passes=1,
                        minibatch=8, step_seconds=0.01, store=sys.argv[2], jobs=int(sys.argv[3]))
print(*[run.hash for run in result.runs])
"""


def test_a_script_without_a_guard_runs_once_and_its_classes_reach_the_other_processes(
    tmp_path, usual
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ended = [
        Started([script, usual["cluster"], tmp_path / jobs, jobs]).ended() for jobs in ("1", "2")
    ]
    assert [each.returncode for each in ended] == [0, 0], ended[1].stderr
    assert ended[0].stdout == ended[1].stdout
    assert ended[1].stdout.count("the script runs") == 1


def test_a_problem_is_unpacked_once_and_has_its_identity_there(usual, tmp_path) -> None:
    from harness.modules.call import Call

    given = {key: value for key, value in usual.items() if key != "cluster"}
    asked = (mlp, lambda outputs, targets: functional.cross_entropy(outputs, targets), points(80))
    with Call(*asked, usual["cluster"], {**given, "store": tmp_path / "s"}) as experiment:
        config = experiment.first("async", 2)
    plain = config.to_dict()
    packed = [pickle.dumps(Parcel(config)) for _ in range(2)]
    found = [pickle.loads(data).content for data in packed]
    assert found[0].task.problem is found[1].task.problem is not config.task.problem
    assert found[0].task.problem.to_identity() == config.task.problem.to_identity()
    assert found[0].to_dict() == plain


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"jobs": 0}, "jobs: 0 is not allowed; allowed: a whole number at least 1"),
        ({"runs_per_job": 1.5}, "runs_per_job: 1.5 is not allowed"),
        ({"submit": "slurn"}, "^submit: unknown 'slurn'"),
        ({"submit": "nowhere_at_all:f"}, "^submit nowhere_at_all:f: No module"),
        ({"submit": 3}, "submit: 3 is not allowed"),
    ],
)
def test_mistakes_are_one_line(given, told, usual, tmp_path) -> None:
    asked = {**usual, "rate": 0.1, "store": tmp_path / "store", **given}
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.train(mlp, functional.cross_entropy, points(80), **asked)


def test_every_setting_is_on_the_page_and_in_the_signature() -> None:
    assert USUAL.keys() < signature(lagbench.train).parameters.keys()
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in USUAL if not re.search(rf"\b{name}(=|`|\*\*)", page)] == []


@pytest.mark.nightly
def test_a_job_runs_the_code_that_was_submitted_though_its_file_was_edited(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "import {0}_parts\nFACTOR = 2\ndef loss(x):\n    return x * FACTOR * {0}_parts.one()\n"
    (tmp_path / "queued_parts.py").write_text("def one():\n    return 1\n")
    path = tmp_path / "queued_code.py"
    path.write_text(source.format("queued"))
    asked = import_module("queued_code").loss
    packed = tmp_path / "job.pickle"
    packed.write_bytes(pickle.dumps(Parcel(asked)))
    path.write_text(source.format("queued").replace("FACTOR = 2", "FACTOR = 3"))
    (tmp_path / "queued_parts.py").write_text("def one():\n    return 5\n")
    script = "import pickle, sys; from harness.experiment.digests import digest_of_code\n"
    script += f"loss = pickle.load(open({str(packed)!r}, 'rb')).content\n"
    script += "print(loss(1), digest_of_code(loss))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout.split() == ["2", digest_of_code(asked)]


def test_a_job_whose_code_is_not_that_of_its_hash_is_refused(usual, tmp_path):
    from harness.modules.call import Call

    given = {key: value for key, value in usual.items() if key != "cluster"}
    asked = (mlp, functional.cross_entropy, points(80), usual["cluster"])
    with Call(*asked, {**given, "store": tmp_path / "s"}) as experiment:
        config = experiment.first("async", 2)
    packed = pickle.dumps(Parcel({"another hash": config}))
    told = run_job(packed, Store(tmp_path / "s"), keeps_faults=False)
    assert told.startswith("code that another process reads otherwise, or that has been edited")
