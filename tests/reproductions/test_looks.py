"""Verdicts that were looked at while seeds were added: counted at the scale where that was."""

from pathlib import Path

import pytest

from data_synth import load_corpus
from harness.experiment.experiment import Experiment
from harness.judge.builders import Maker, Runs
from harness.judge.claims import ABOVE
from harness.judge.parts import LOOKS, Quantity, claim_of
from harness.judge.results import Claim
from harness.judge.statistics import mean_ci
from harness.speech.task import Frames
from reproductions.curve_runs import Request
from reproductions.paper import Paper, Subject
from reproductions.reproduce import reproduce

VALUES = [0.30, 0.02, 0.16, 0.25, 0.10]
"""Their mean's p-value is 0.03: clear by itself, not if it counts twice."""


def no_runs(subject: Subject, seed: int) -> dict[str, Experiment[Frames]]:
    del subject, seed
    return {}


def clear(subject: Subject, runs: Runs) -> Claim:
    del subject, runs
    values = Quantity("all", "above 0", mean_ci(VALUES), ABOVE)
    return claim_of("p1.clear", "It is above 0.", "", "a mean", [values], ())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scale", "after"), [("overnight", "unclear"), ("laptop", "holds")])
def test_looks_count_at_their_scale_alone(tmp_path: Path, scale: str, after: str) -> None:
    subject = Subject(scale, load_corpus("parametric", scale="smoke", seed=11), 11, "cpu")
    seen = Paper(
        "paper1", "parametric", {"title": "A paper", "authors": "Its authors"},
        {"overnight": 1, "laptop": 1}, no_runs, lambda subject: [], (),
        (Maker("p1.clear", (), clear),), looks={"overnight": 2},
    )  # fmt: skip
    request = Request(seeds=(11,), only=(), jobs=1, budget_s=None, out=tmp_path)
    results = reproduce(seen, subject, request)
    (judged,) = results.claims
    assert (judged.here, judged.corrected) == ("holds", after)
    assert results.provenance.get(LOOKS, 1) == (2 if scale == "overnight" else 1)
