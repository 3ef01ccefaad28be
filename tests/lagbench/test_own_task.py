"""A task from scratch, outside of lagbench: trained, compared, resumed; and the way of a call."""

import os
import sys
from pathlib import Path

import pytest

import lagbench
from harness.experiment import loop
from harness.experiment.run_file import load_folds
from harness.store import Store
from tests.killed import kept_bytes

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MOST_FRAMES, MOST_FILES = 10, 70
OURS = tuple(
    f"{Path(lagbench.__file__).parents[1] / name}{os.sep}" for name in ("lagbench", "harness")
)


@pytest.fixture
def task(tmp_path, monkeypatch, capsys):
    """The example's class; its comparison is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    import own_task

    assert "async with 4 workers" in capsys.readouterr().out
    yield own_task.Fit
    sys.modules.pop("own_task")


def experiment_of(task) -> lagbench.Experiment:
    return lagbench.Experiment(
        task=task, cluster=lagbench.cluster_of("k20m-server"), algorithm=lagbench.AsyncSgd(),
        schedule=lagbench.Constant(0.05), stages=(lagbench.Stage(8, 8),), workers=4, passes=2,
        protocol=lagbench.ParameterServer(),
    )  # fmt: skip


def test_a_task_of_forty_lines_is_compared_and_resumes_to_the_same_bytes(
    task, tmp_path, monkeypatch
):
    assert len((EXAMPLES / "own_task.py").read_text().splitlines()) <= 40
    experiment, killed = experiment_of(task(slope=2.0)), Store(tmp_path / "killed")
    (whole,) = lagbench.run_all([experiment], tmp_path / "whole")
    assert whole.summary["dev_loss/iterate"] < 1e-2
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)

    def die(progress):
        if progress.done > 1.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lagbench.run(experiment, killed, die)
    assert kept_bytes(lagbench.run(experiment, killed)) == kept_bytes(whole)
    (tmp_path / "run.toml").write_text(
        'import = ["own_task"]\ncluster = "k20m-server"\nworkers = 4\npasses = 2\n'
        'algorithm = { is = "AsyncSgd" }\nschedule = { is = "Constant", rate = 0.05 }\n'
        'stages = [{ minibatch = 8, timed_minibatch = 8 }]\ntask = { is = "Fit", slope = 2.0 }\n'
    )
    assert load_folds(tmp_path / "run.toml").to_dict() == experiment.to_dict()


def test_few_frames_lie_between_a_call_and_the_simulated_cluster(task, tmp_path):
    files, stacks = set[str](), list[list[str]]()

    def note(frame, event, _):
        if event == "call" and not stacks and frame.f_code.co_filename.startswith(OURS):
            files.add(frame.f_code.co_filename)
            if frame.f_code.co_qualname == "Simulation.advance":
                stacks.append([])
                while frame:
                    stacks[0] += [frame.f_code.co_qualname] * frame.f_code.co_filename.startswith(
                        OURS
                    )
                    frame = frame.f_back

    sys.setprofile(note)
    try:
        lagbench.compare(
            task(), cluster="k20m-server", workers=[2], rates=0.05, store=tmp_path, seeds=1
        )
    finally:
        sys.setprofile(None)
    assert len(stacks[0]) <= MOST_FRAMES, stacks[0]
    assert len(files) <= MOST_FILES, sorted(files)
