"""What a cluster would do with a sequence training: closed forms, and a run that was simulated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_synth.corpus import Corpus
from harness import cli
from harness.acoustics.mmi import Criterion
from harness.base.errors import UserError
from harness.experiment.experiment import Experiment
from harness.experiment.run import time_run
from harness.fidelity.predict import prediction
from harness.simulator import Cluster, load_cluster
from harness.store import Run

RUNS = Path(__file__).parents[3] / "reproductions" / "runs"
COMPUTE_S, FOLD_S = 0.020, 0.002


@pytest.fixture
def slow() -> Cluster:
    """Two machines: a minibatch takes 20 ms, a fold 2 ms, and nothing else takes any time."""
    return load_cluster(RUNS / "clusters" / "two-replicas.toml")


def test_trainers_set_the_pace_where_decoding_is_cheap(sequence, corpus, slow) -> None:
    config = sequence(cluster=slow, workers=1, decode_cost=0.001)
    assert time_run(config, corpus.split("train")).per_s == pytest.approx(
        1.0 / (COMPUTE_S + FOLD_S), rel=1e-6
    )


@pytest.mark.parametrize("kept", [0.25, 0.5])
def test_decoders_set_the_pace_where_decoding_is_dear(sequence, corpus, slow, kept: float) -> None:
    cost = 50.0
    config = sequence(cluster=slow, workers=1, decode_cost=cost)
    rate = time_run(config, corpus.split("train"), kept).per_s
    # Of a minibatch's frames each was kept out of 1 / kept decoded ones.
    assert rate == pytest.approx(kept / (cost * COMPUTE_S), rel=0.1)


def said(lines: list[str], name: str) -> list[float]:
    (line,) = [line for line in lines if line.startswith(name)]
    return [float(word) for word in line[28:].replace(",", "").split() if word[0].isdigit()]


def test_a_prediction_with_what_a_run_kept_agrees_with_that_run(
    sequence: Callable[..., Experiment[Any]],
    corpus: Corpus,
    slow: Cluster,
    run_sequence: Callable[..., Run],
) -> None:
    config = sequence(
        cluster=slow, workers=2, passes=4, decode_cost=0.5, tested="never",
        criterion=Criterion(kappa=0.5, reject_below=0.0, cancel_below=0.3),
    )  # fmt: skip
    run = run_sequence(config)
    assert 0.1 < run.summary["kept_frames"] < 0.9
    lines = list(prediction(config, corpus.split("train"), kept=run.summary["kept_frames"]))
    assert said(lines, "frames kept") == [pytest.approx(run.summary["kept_frames"], rel=1e-2)]
    passes, whole_s = said(lines, "all passes")
    assert passes == 4
    assert whole_s == pytest.approx(run.summary["virtual_s"], rel=0.1)


def test_other_frames_replicas_and_clusters_may_be_asked_for(sequence, corpus, slow) -> None:
    train = corpus.split("train")
    config = sequence(cluster=slow, workers=1, passes=20)
    two = list(prediction(config, train, workers=2, kept=0.5))
    assert two[0].endswith("two replicas, 2 replicas")
    assert said(two, "frames kept") == [0.5]
    (speed_up,) = said(two, "speed-up")
    assert 1.5 < speed_up <= 2.01
    every = prediction(sequence(cluster=slow, workers=1, frames="all"), train)
    assert said(list(every), "frames kept") == [1.0]


def test_the_staleness_from_every_read_is_predicted(sequence, corpus, slow) -> None:
    config, train = sequence(cluster=slow, workers=2, passes=20), corpus.split("train")
    lines = list(prediction(config, train, kept=0.5))
    timeline = time_run(config, train, 0.5).timeline
    found = [(name, said(lines, f"{name} staleness")) for name in ("inner", "outer", "push")]
    for name, (mean, largest) in found:
        staleness = config.reads()[name](timeline).staleness
        assert (mean, largest) == (float(f"{staleness.mean():.3g}"), staleness.max())
    (inner, _), (outer, _), (push, _) = (figures for _, figures in found)
    assert outer > inner > push > 0.0


@pytest.mark.parametrize(
    ("choices", "kept", "line"),
    [
        ({"passes": 0}, None, "passes: 0 trains nothing"),
        ({}, 0.0001, "frames kept: 0.0001 of all fill no minibatch"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(
    sequence, corpus, slow, choices: dict[str, object], kept: float | None, line: str
) -> None:
    config = sequence(cluster=slow, workers=1, **choices)
    with pytest.raises(UserError, match=line):
        list(prediction(config, corpus.split("train"), kept=kept))


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
