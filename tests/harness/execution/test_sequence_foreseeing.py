"""What a cluster would do with a sequence training: closed forms, and a run that was simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_synth.corpus import Corpus
from harness import cli
from harness.acoustics.mmi import Criterion
from harness.errors import UserError
from harness.execution.fidelity.predict_sequence import (
    sequence_prediction,
    sharing,
    simulated,
    steady_rate,
)
from harness.execution.runs.file import RunFile
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import Cluster, load_cluster
from harness.store import Run

RUNS = Path(__file__).parents[3] / "docs" / "runs"
COMPUTE_S, FOLD_S = 0.020, 0.002


@pytest.fixture
def slow() -> Cluster:
    """Two machines: a minibatch takes 20 ms, a fold 2 ms, and nothing else takes any time."""
    return load_cluster(RUNS / "clusters" / "two-replicas.toml")


def test_trainers_set_the_pace_where_decoding_is_cheap(sequence, corpus, slow) -> None:
    config = sequence(cluster=slow, replicas=1, decode_cost=0.001)
    train = corpus.split("train")
    rate = steady_rate(simulated(config, train, sharing(train, 1.0)))
    assert rate == pytest.approx(1.0 / (COMPUTE_S + FOLD_S), rel=1e-6)


@pytest.mark.parametrize("kept", [0.25, 0.5])
def test_decoders_set_the_pace_where_decoding_is_dear(sequence, corpus, slow, kept: float) -> None:
    cost = 50.0
    config = sequence(cluster=slow, replicas=1, decode_cost=cost)
    train = corpus.split("train")
    rate = steady_rate(simulated(config, train, sharing(train, kept)))
    # Of a minibatch's frames each was kept out of 1 / kept decoded ones.
    assert rate == pytest.approx(kept / (cost * COMPUTE_S), rel=0.1)


def said(lines: list[str], name: str) -> list[float]:
    (line,) = [line for line in lines if line.startswith(name)]
    return [float(word) for word in line[28:].replace(",", "").split() if word[0].isdigit()]


def test_a_prediction_with_what_a_run_kept_agrees_with_that_run(
    sequence: Callable[..., SequenceConfig],
    corpus: Corpus,
    slow: Cluster,
    run_sequence: Callable[..., Run],
) -> None:
    config = sequence(
        cluster=slow, replicas=2, passes=4, decode_cost=0.5, test=False,
        criterion=Criterion(kappa=0.5, reject_below=0.0, cancel_below=0.3),
    )  # fmt: skip
    run = run_sequence(config)
    assert 0.1 < run.summary["kept_frames"] < 0.9
    asked = RunFile(config, corpus)
    lines = list(sequence_prediction(asked, None, None, run.dir, None))
    assert said(lines, "frames kept") == [pytest.approx(run.summary["kept_frames"], rel=1e-2)]
    passes, whole_s = said(lines, "all passes")
    assert passes == 4
    assert whole_s == pytest.approx(run.summary["virtual_s"], rel=0.1)
    (_, values, _) = run.curve("dev_frame_error/iterate")
    first = next(i for i, line in enumerate(lines) if line.startswith("frame error")) + 1
    assert f"{values[0]:.2%}" in lines[first]
    assert len(lines) - first == len(set(np.minimum.accumulate(values).tolist()))


def test_other_frames_replicas_and_clusters_may_be_asked_for(sequence, corpus, slow) -> None:
    asked = RunFile(sequence(cluster=slow, replicas=1, passes=20), corpus)
    two = list(sequence_prediction(asked, None, 2, None, 0.5))
    assert two[0].endswith("two replicas, 2 replicas")
    assert said(two, "frames kept") == [0.5]
    (speed_up,) = said(two, "speed-up")
    assert 1.5 < speed_up <= 2.01
    every = RunFile(sequence(cluster=slow, replicas=1, frames="all"), corpus)
    assert said(list(sequence_prediction(every, None, None, None, None)), "frames kept") == [1.0]
    full = RunFile(sequence(cluster=slow, replicas=1, shuffling="full"), corpus)
    with pytest.raises(UserError, match="shuffling: 'full' cannot be predicted"):
        list(sequence_prediction(full, None, None, None, None))


def test_the_command_predicts_a_sequence_run_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", str(RUNS / "sequence.toml"), "--kept", "0.4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert said(lines, "frames kept") == [0.4]
    assert said(lines, "folds a second")[0] > 10.0


@pytest.mark.parametrize(
    ("file", "kept", "line"),
    [
        ("sequence.toml", "0", "--kept 0.0: allowed: above 0, to 1"),
        ("async-averaged.toml", "0.5", "--kept 0.5: for sequence training; "),
    ],
)
def test_a_share_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], file: str, kept: str, line: str
) -> None:
    assert cli.main(["predict", str(RUNS / file), "--kept", kept]) == 2
    assert line in capsys.readouterr().err
