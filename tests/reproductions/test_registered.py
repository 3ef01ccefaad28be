"""Registrations of the papers: as the code judges, complete, and told of by runs and reports."""

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.judge.builders import Maker
from harness.judge.parts import correct_verdicts
from harness.judge.results import Claim, Exhibit
from harness.store import Store
from reproductions.command import PAPERS
from reproductions.curve_runs import Request, describe_facts
from reproductions.paper import (
    DEVELOPMENT,
    NO_CORPUS,
    Paper,
    Subject,
    corpus_without_speech,
)
from reproductions.registered import Registration
from reproductions.reproduce import reproduce
from tests.reproductions.book import SUBJECTS, Book

CURVE = """
[scaling.curve]
claim = "one"
statistic = "words"
grows = "speech"
paper = 500
band = { at_most = 1.08 }
laws = ["power"]
held_out = 3
sizes = [{ at = 1, seeds = [1, 2], corpus = "words@1", core_minutes = 2 },
         { at = 3, seeds = [1, 2], corpus = "words@3", core_minutes = 6 }]
"""


def paper_of(name: str) -> Paper:
    return import_module(PAPERS[name]).PAPER


@pytest.mark.parametrize("scale", ["smoke", "laptop", "overnight"])
@pytest.mark.parametrize("name", ["paper1", "paper2", "paper3", "paper4"])
def test_what_is_registered_is_what_runs_are_judged_by(name, scale, book: Book):
    paper, subject = paper_of(name), SimpleNamespace(**{**vars(SUBJECTS[name]), "scale": scale})
    table = paper.registration.table
    paper.registration.arrange((), [maker.id for maker in paper.claims])  # names no other claim
    assert table["corpus"] == paper.corpus
    assert table["seeds"][scale] == list(paper.seeds_of(scale))
    assert table.get("looks", {}) == paper.looks
    registered = table["bands"] | table.get(scale, {}).get("bands", {})
    claims = [
        maker.make(subject, {setting: book.group(setting) for setting in maker.needs})
        for maker in paper.claims
    ]
    judged = {
        claim.id: {part.label or "value": part.band for part in claim.parts if part.band}
        for claim in claims
    }
    assert judged == {
        id_: {label: tuple(map(ending, ends)) for label, ends in bands.items()}
        for id_, bands in registered.items()
    }


def ending(end: float) -> Any:
    """An end of a band as results have it."""
    return pytest.approx(end) if abs(end) < 1e300 else None


@dataclass(frozen=True)
class Config:
    """A run without training."""

    seed: int
    effort: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def execute(self, store: Store, watch: object) -> object:
        return store.obtain(self.to_dict(), lambda writer: writer.finish())


def paper_in(folder: Path, text: str = CURVE) -> Paper:
    (folder / "registered.toml").write_text(text)
    return Paper(
        "paper", "corpus", {}, {"smoke": 2},
        lambda subject, seed: {"a": Config(seed)},
        lambda subject: [],
        (Maker("p.fig1", ("a",), lambda subject, runs: Exhibit("p.fig1", "table", "")),), (),
        folder=folder,
    )  # fmt: skip


def test_runs_keep_the_digest_of_their_beginning_and_a_report_counts_others(tmp_path):
    def execute(paper: Paper, seeds: tuple[int, ...]) -> list[Any]:
        subject = Subject("smoke", corpus_without_speech(NO_CORPUS), 1, "cpu")
        request = Request(seeds, (), 1, None, tmp_path)
        reproduce(paper, subject, request)
        return [request.store.load(identity({"seed": seed})) for seed in seeds]

    paper = paper_in(tmp_path)
    tuned = execute(paper, (1, DEVELOPMENT))
    (run,) = execute(paper_in(tmp_path), (1,))
    digest = hashlib.sha256(CURVE.encode()).hexdigest()
    assert run.provenance["under"]["registration"] == digest
    assert run.provenance["under"]["commit"]
    line = f"{tmp_path.name}/registered.toml, SHA-256 "
    assert paper.registration.compare([run]) == f"{line}{digest}"
    changed = paper_in(tmp_path, CURVE.replace("1.08", "1.10"))
    runs = execute(changed, (1, 2))
    told = describe_facts(changed, "cpu", {}, datetime.now(UTC), {"a": [tuned[1], *runs]}, set())
    line += f"{changed.registration.digest}; 1 of 2 runs were begun under another"
    assert told["registration"] == line
    assert replace(paper, folder=None).registration is None


@pytest.mark.parametrize(
    ("was", "now", "key"),
    [
        ("scaling.curve", "scaling.other", "claim"),
        ("band = { at_most = 1.08 }", "", "band"),
        ('seeds = [1, 2], corpus = "words@3"', 'corpus = "words@3"', r"sizes\[1\].seeds"),
    ],
)
def test_a_curve_without_an_entry_is_refused(tmp_path, was, now, key):
    path = tmp_path / "registered.toml"
    path.write_text(CURVE)
    assert Registration(path).curve("curve")["held_out"] == 3
    path.write_text(CURVE.replace(was, now))
    with pytest.raises(UserError, match=rf"registered\.toml: scaling\.curve\.{key}: missing"):
        Registration(path).curve("curve")


def test_claims_come_in_the_registered_order_and_those_by_construction_are_marked(tmp_path):
    path, known = tmp_path / "registered.toml", ["p.a", "p.b", "p.c"]
    path.write_text('order = ["p.c"]\nby_construction = ["p.b"]')
    claims = [Claim(id_, "", "", "", None, None, None, "holds", p_value=0.03) for id_ in known]
    arranged = Registration(path).arrange(claims, known)
    assert [claim.id for claim in arranged] == ["p.c", "p.a", "p.b"]
    assert [bool(claim.cannot_fail) for claim in arranged] == [False, False, True]
    assert [claim.corrected for claim in correct_verdicts(arranged)] == ["unclear"] * 2 + ["holds"]
    for key in ("order", "by_construction"):
        path.write_text(f'{key} = ["p.aa"]')
        with pytest.raises(UserError, match=rf"registered\.toml: {key}: unknown 'p.aa'"):
            Registration(path).arrange(claims, known)


def test_a_file_that_is_no_toml_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"registered\.toml: cannot be read as TOML"):
        _ = paper_in(tmp_path, "seeds =").registration
    with pytest.raises(UserError, match=r"registered\.toml: cannot be read as TOML"):
        Registration(tmp_path / "lost" / "registered.toml")
