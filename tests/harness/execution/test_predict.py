"""What is predicted of a run file is what its training takes: there is one way to a timeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import cli
from harness.algorithms.schedules import Search
from harness.execution.fidelity.predict import whole
from harness.execution.fidelity.predict_sequence import sharing, simulated
from harness.execution.runs.file import load_run
from harness.execution.runs.sequence_file import is_sequence, load_sequence
from harness.execution.training.run import train
from harness.execution.training.sequence_run import train_sequence
from harness.store import Store

RUNS = Path(__file__).parents[3] / "docs" / "runs"
FRAMES = sorted(path for path in RUNS.glob("*.toml") if not is_sequence(path))
SEQUENCES = sorted(path for path in RUNS.glob("*.toml") if is_sequence(path))


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_run_file_is_predicted_to_the_second_and_fold(path: Path, tmp_path: Path, capsys) -> None:
    asked = load_run(path)
    run = train(asked.config, asked.corpus, Store(tmp_path), lambda progress: None)
    predicted = whole(asked.config, asked.corpus.split("train"))
    assert predicted.ends_s[-1] == run.summary["virtual_s"]
    assert sum(predicted.folds) == run.summary["folds"]
    assert predicted.timeline.sha256() == run.summary["timeline_sha256"]
    assert cli.main(["predict", str(path)]) == 0
    assert f"{run.summary['virtual_s']:.6g} s" in capsys.readouterr().out


@pytest.mark.parametrize("path", SEQUENCES, ids=lambda path: path.stem)
def test_a_sequence_run_file_is_predicted_from_the_share_that_it_keeps(path, tmp_path) -> None:
    asked = load_sequence(path)
    run = train_sequence(asked.config, asked.corpus, Store(tmp_path), lambda progress: None)
    train_set = asked.corpus.split("train")
    timeline = simulated(asked.config, train_set, sharing(train_set, run.summary["kept_frames"]))
    assert float(timeline.folds.time_s[-1]) == pytest.approx(run.summary["virtual_s"], rel=0.05)


def test_a_search_for_rates_is_predicted_with_what_it_costs_the_cluster(tmp_path: Path) -> None:
    asked = load_run(RUNS / "async-averaged.toml")
    search = Search(0.008, least_minibatches=5, whole_trials=True)
    config = replace(asked.config, schedule=search, chunk=0.3)
    run = train(config, asked.corpus, Store(tmp_path), lambda progress: None)
    predicted = whole(config, asked.corpus.split("train"))
    assert predicted.ends_s[-1] == run.summary["virtual_s"]
    assert "search" in predicted.timeline.kinds


def test_a_long_run_goes_on_at_the_rate_of_its_beginning() -> None:
    asked = load_run(RUNS / "model-averaging.toml")
    train_set = asked.corpus.split("train")
    known, cut = whole(asked.config, train_set), whole(asked.config, train_set, most=30)
    assert cut.folds == known.folds
    assert len(cut.timeline.folds) == 30
    assert cut.ends_s[-1] == pytest.approx(known.ends_s[-1], rel=0.2)
