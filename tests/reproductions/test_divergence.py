"""A run that diverges: the report appears, and the question decides whether that is a failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from data_synth import load_corpus
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Constant
from harness.experiment.experiment import Experiment, Stage
from harness.judge.builders import Runs
from harness.judge.results import Row, read_results
from harness.simulator.cluster import load_cluster
from harness.speech.task import Frames
from harness.store import files
from reproductions.command import _print_results
from reproductions.curve_runs import Request
from reproductions.makers import Exhibits
from reproductions.paper import Paper, Subject
from reproductions.reproduce import reproduce
from tests.experiments import experiment

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"


def wild(subject: Subject, seed: int) -> dict[str, Experiment[Frames]]:
    corpus = subject.corpus
    return {
        "wild": experiment(Frames,
            corpus=corpus.name, scale=subject.scale, corpus_seed=subject.corpus_seed,
            fingerprint=corpus.fingerprint, hidden=(8,), activation="relu", initial=None,
            algorithm=AsyncSgd(), schedule=Constant(1e6), stages=(Stage(32, 256, 0.05),), passes=1,
            chunk=1.0, evaluations=5, cluster=load_cluster(CLUSTER), workers=2,
            timed_layers=(429, 8, 30), seed=seed, device="cpu",
        )
    }  # fmt: skip


def outcome(subject: Subject, runs: Runs) -> Iterator[Row]:
    del subject
    run = runs["wild"][0]
    yield Row("rate 1e6", run.status, runs=(run.hash,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("asked", [True, False])
def test_the_report_of_a_diverged_run_appears_and_says_so(
    tmp_path: Path, asked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Path] = []
    keep = files.write_json

    def noted(path: Path, it: object, **given: object) -> None:
        written.append(path)
        keep(path, it, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write_json", noted)
    subject = Subject("smoke", load_corpus("parametric", scale="smoke", seed=11), 11, "cpu")
    exhibits = Exhibits()
    exhibits.table("p1.map", "Stable", ("wild",), divergence=asked)(outcome)
    paper = Paper(
        "paper1", "parametric", {"title": "A paper", "authors": "Its authors"}, {"smoke": 1},
        wild, lambda subject: [], tuple(exhibits), (),
    )  # fmt: skip
    request = Request(seeds=(11,), only=(), jobs=1, budget_s=None, out=tmp_path)
    results = reproduce(paper, subject, request)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert written.count(tmp_path / "results.json") == 1
    (exhibit,) = results.exhibits
    (stored,) = read_results(tmp_path / "results.json").exhibits
    assert stored.files == (("tables/p1.map.csv",) if asked else ())
    if asked:
        assert exhibit.rows[0].column == "diverged"
        assert _print_results(results, tmp_path) == 0
    else:
        assert not exhibit.rows
        assert "diverged" in exhibit.note
        ((run,),) = results.provenance["settings"].values()
        told = f"wild, seed 11 ({run[:12]}) diverged in AsyncSgd at fold "
        assert exhibit.note.startswith(told)
        capsys.readouterr()
        assert _print_results(results, tmp_path) == 3
        line = capsys.readouterr().err
        assert line.startswith(f"paper1: {told}")
        assert line.endswith("rate 1e+06\n")
