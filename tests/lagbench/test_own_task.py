"""A task from scratch, outside of lagbench: trained, compared, resumed; and the way of a call."""

import pickle
import shutil
import sys
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from traceback import walk_stack
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lagbench
from harness import cli
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.experiment import loop
from harness.experiment.pools import Parcel
from harness.experiment.run_file import load_folds
from harness.store import Store
from tests.killed import kept_bytes

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MOST_FRAMES = 10
MOST_FILES = {"task": 31, "module": 39, "run file": 30}
OURS = tuple(str(Path(lagbench.__file__).parents[1] / room) for room in ("lagbench", "harness"))
RUN = """import = ["own_task"]
cluster = "k20m-server"
workers = 4
passes = 2
algorithm = { is = "AsyncSgd" }
schedule = { is = "Constant", rate = 0.05 }
stages = [{ minibatch = 8, timed_minibatch = 8 }]
task = { is = "Fit", slope = 2.0 }
"""


@pytest.fixture
def task(tmp_path, monkeypatch, capsys):
    """The example's class; its comparison is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    import own_task

    assert "async with 4 workers" in capsys.readouterr().out
    yield own_task.Fit
    sys.modules.pop("own_task")


def test_a_task_of_forty_lines_is_compared_and_resumes_to_the_same_bytes(
    task, tmp_path, monkeypatch
):
    (tmp_path / "run.toml").write_text(RUN)
    experiment, killed = load_folds(tmp_path / "run.toml"), Store(tmp_path / "killed")
    assert experiment.task == task(slope=2.0)
    (whole,) = lagbench.run_all([experiment], tmp_path / "whole")
    assert whole.summary["dev_loss/iterate"] < 1e-2
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)

    def die(progress):
        if progress.done > 1.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lagbench.run(experiment, killed, die)
    assert kept_bytes(lagbench.run(experiment, killed)) == kept_bytes(whole)


def walk(call):
    """Our frames from a call to the simulated cluster, the files entered before, and its result."""
    files, stack = set[str](), list[str]()

    def note(frame, event, _):
        if event == "call" and not stack and frame.f_code.co_filename.startswith(OURS):
            files.add(frame.f_code.co_filename)
            if frame.f_code.co_qualname == "Simulation.advance":
                codes = [code for caller, _ in walk_stack(frame) if (code := caller.f_code)]
                stack.extend(c.co_qualname for c in codes if c.co_filename.startswith(OURS))

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return stack, files, result


# as in README
compare = partial(
    lagbench.compare, cluster="k20m-server", workers=[1, 16], algorithms=["async"], rates=0.05
)


@pytest.mark.nightly
def test_few_frames_and_files_lie_between_a_call_and_the_simulated_cluster(task, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    data = torch.randn(100, 8), torch.randint(2, (100,))
    calls = {
        "task": lambda: compare(task()),
        "module": lambda: compare(nn.Linear(8, 2), cross_entropy, data, seeds=1),
        "run file": lambda: cli.main(["train", "run.toml", "--out", "runs"]),
    }
    for name, call in calls.items():
        call()  # imports, once
        shutil.rmtree("runs" if name == "run file" else "lagbench-runs")
        stack, files, result = walk(call)
        assert len(stack) <= MOST_FRAMES, (name, stack)
        assert len(files) <= MOST_FILES[name], (name, sorted(files))
        if name == "task":
            assert result.report(tmp_path / "page")
            assert "Fit(slope=3.0)" in (tmp_path / "page/index.html").read_text()


def test_an_edit_of_what_a_task_calls_is_another_run(task, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    experiment = load_folds(tmp_path / "run.toml")
    text = (EXAMPLES / "own_task.py").read_text().rpartition("\nprint")[0]

    def hash_of(text: str) -> str:
        edited = ModuleType("edited")
        exec(text, vars(edited))
        return identity(replace(experiment, task=edited.Fit()).to_dict())

    assert hash_of(text) == hash_of(text)
    assert hash_of(text) != hash_of(text.replace("(error * x)", "0.5 * (error * x)"))


def test_mistakes_of_a_task_are_refused_in_one_line(task, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    experiment = load_folds(tmp_path / "run.toml")

    @dataclass(frozen=True)
    class Seeded(task):
        seed: int = 0

    with pytest.raises(UserError, match=r"^task.seed: not allowed; it is a field of every"):
        replace(experiment, task=Seeded())
    with pytest.raises(UserError, match=r"^task.slope: Tensor is not data .*; allowed: numbers"):
        replace(experiment, task=task(slope=torch.zeros(2)))

    @dataclass(frozen=True)
    class Silent(task):
        def open(self, experiment, store=None, watch=None):
            problem = super().open(experiment)
            problem.evaluate = lambda model: {}
            return problem

    with pytest.raises(UserError, match=r"^Line.evaluate: no 'loss'; needed: loss"):
        lagbench.run(replace(experiment, task=Silent()), Store(tmp_path / "store"))


def test_a_task_goes_to_another_process_with_its_defaults(task):
    sent = pickle.loads(pickle.dumps(Parcel(task))).content
    assert [entry.default_factory for entry in fields(sent)] == [MISSING]
