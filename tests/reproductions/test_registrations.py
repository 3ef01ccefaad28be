"""Registrations of the papers: as the code has them, complete, and compared with their runs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from harness.base.errors import EXIT_RUN_FAILED, UserError
from harness.judge import read_results
from harness.judge.claims import ANSWERS
from harness.judge.registrations import (
    YOUNGER,
    Registration,
    mark_changes,
    read_registration,
    require_curve,
    require_registered,
)
from harness.judge.results import Claim, Results
from harness.store import Run, Store
from harness.store.archive import ARCHIVE, read_archive
from reports.site import FROM
from reproductions import register
from reproductions.changes_after_runs import (
    OLDER,
    REGISTRATION,
    compare_with_registration,
    keep_changes,
)
from reproductions.command import PAPERS, main
from reproductions.declared import declare
from reproductions.paper import Paper, Subject
from tests.reproductions.book import Book, made

NAMES = ("paper1", "paper2", "paper3", "paper4")
REGISTERED = [(name, scale) for name in NAMES for scale in register.SCALES]
TEXT = """
corpus = "words"
seeds = [1, 2]
looks = 1
[settings]
a = { digest = "1" }
b = { digest = "2" }
[conditions.regime]
limit = [0.0, 1.0]
[claims.one]
statement = "words"
settings = ["a"]
bands.ratio = [-inf, 1.1]
conditions = ["regime"]
[claims.two]
settings = ["b"]
bands.ratio = [-inf, 1.1]
conditions = []
[scaling.curve]
held_out = 3
"""


def paper_of(name: str) -> Paper:
    return register.paper_of(name)


def registration(text: str = TEXT) -> Registration:
    return Registration(Path("registered/smoke.toml"), text.encode())


def claim(id_: str, *runs: str, **given: Any) -> Claim:
    return Claim(id_, "", "", "", None, None, None, ANSWERS[0], runs=runs, **given)


def facts(text: str = TEXT) -> dict[str, Any]:
    """Facts of a run that was begun under a registration of this text."""
    return {"commit": "abc", "registration": registration(text).describe()}


def changed(was: str, now: str) -> list[str]:
    """What both claims say after a change of the file that is younger than their runs."""
    claims = [claim("one", "x"), claim("two", "y")]
    under = {"x": facts(), "y": facts()}
    assert was in TEXT
    marked = mark_changes(claims, registration(TEXT.replace(was, now, 1)), under)
    return [each.changed_after_runs for each in marked]


@pytest.mark.parametrize(("name", "scale"), REGISTERED)
def test_the_committed_file_is_as_the_code_has_it(name, scale):
    paper = paper_of(name)
    path = paper.path_of_registration(scale)
    assert path is not None
    there = path.read_text(encoding="utf-8")
    mended = f"python -m reproductions.register {name} --scale {scale}"
    assert there == register.compose(paper, scale), mended


@pytest.mark.parametrize("name", NAMES)
def test_what_is_registered_is_what_runs_are_judged_by(name, book: Book):
    paper = paper_of(name)
    declared = declare(paper, "laptop")["claims"]
    judged = [
        made(maker, paper, {setting: book.group(setting) for setting in maker.needs})
        for maker in paper.claims
    ]
    for each in paper.conditions.ask(judged):
        bands = {part.label or "value": part.band for part in each.parts if part.band}
        told = {
            label: tuple(pytest.approx(end) if abs(end) < 1e300 else None for end in ends)
            for label, ends in declared[each.id]["bands"].items()
        }
        assert bands == told, each.id
        assert {c.name for c in each.conditions} == set(declared[each.id]["conditions"]), each.id


def test_a_changed_band_is_noticed_and_only_by_its_claim():
    assert changed("ratio = [-inf, 1.1]", "ratio = [-inf, 1.2]") == ["its bands", ""]


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("limit = [0.0, 1.0]", "limit = [0.0, 2.0]", ["its conditions", ""]),
        ('a = { digest = "1" }', 'a = { digest = "3" }', ["its settings", ""]),
        ("looks = 1", "looks = 2", ["its looks", "its looks"]),
        ("seeds = [1, 2]", "seeds = [1, 2, 3]", ["its seeds", "its seeds"]),
        ('statement = "words"', 'statement = "other words"', ["", ""]),
        ("held_out = 3", "held_out = 4", ["", ""]),
    ],
)
def test_a_claim_says_which_of_its_entries_were_changed(was, now, told):
    assert changed(was, now) == told


def test_a_run_without_the_entry_is_older_than_the_registration():
    claims = [claim("one", "x", "y"), claim("two", "x")]
    marked = mark_changes(claims, registration(), {"x": facts(), "y": {"commit": "abc"}})
    assert [each.changed_after_runs for each in marked] == [YOUNGER, ""]
    seen = mark_changes(claims, registration(), {"x": facts(), "y": facts()}, {"x"})
    assert [each.changed_after_runs for each in seen] == [YOUNGER, YOUNGER]


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("seeds = [1, 2]\n", "", "seeds: missing"),
        ('b = { digest = "2" }\n', "", "settings.b: missing"),
        ("bands.ratio = [-inf, 1.1]\n", "", "claims.one.bands: missing"),
        ('conditions = ["regime"]\n', "", "claims.one.conditions: missing"),
        (
            "[-inf, 1.1]",
            "[-inf, 1.3]",
            r"claims.one.bands.ratio: \[-inf, 1.3\]; allowed: \[-inf, 1.1",
        ),
        ("[scaling.curve]", "[claims.three]\n[scaling.curve]", "claims.three: not in the code"),
    ],
)
def test_an_incomplete_registration_is_refused(was, now, told):
    assert was in TEXT
    declared = tomllib.loads(TEXT)
    require_registered(registration(), declared, "mended by it")
    other = registration(TEXT.replace(was, now, 1))
    with pytest.raises(UserError, match=rf"smoke\.toml: {told}.*; mended by it"):
        require_registered(other, declared, "mended by it")


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


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("scaling.curve", "scaling.other", "curve: missing"),
        ("[scaling.curve]", "scaling = 3", "curve: missing"),
        ("band = { at_most = 1.08 }", "", "curve.band: missing"),
        ("laws = [", "lows = [", "curve.laws: missing"),
        ('seeds = [1, 2], corpus = "words@3"', 'corpus = "words@3"', r"curve.sizes\[1\].seeds: "),
        ("held_out = 3", "held_out = 1", "curve.held_out: 1; allowed: 3, the largest size"),
    ],
)
def test_a_curve_without_an_entry_is_refused(was, now, told):
    require_curve(registration(CURVE), "curve")
    assert was in CURVE
    with pytest.raises(UserError, match=rf"smoke\.toml: scaling\.{told}"):
        require_curve(registration(CURVE.replace(was, now)), "curve")


def test_the_command_refuses_before_a_run_and_loses_nothing(tmp_path, monkeypatch, capsys):
    paper = paper_of("paper2")
    path = paper.path_of_registration("smoke")
    assert path is not None
    (tmp_path / "registered").mkdir()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith('bands."1024')]
    (tmp_path / "registered/smoke.toml").write_text("".join(kept), encoding="utf-8")
    monkeypatch.setattr(f"{PAPERS['paper2']}.PAPER", replace(paper, folder=tmp_path))
    out = tmp_path / "out"
    assert main(["paper2", "--scale", "smoke", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert (
        "smoke.toml: claims.p2.minibatch.bands: missing; python -m reproductions.register" in told
    )
    assert len(told.splitlines()) == 1
    assert not out.exists()


def subject_of(paper: Paper, corpus: str = "words") -> Subject:
    made: Any = type("Named", (), {"name": corpus})()
    return Subject("smoke", made, 1, "cpu")


def registered_paper(folder: Path, text: str = TEXT) -> Paper:
    (folder / "registered").mkdir(exist_ok=True)
    (folder / "registered/smoke.toml").write_text(text)
    return replace(paper_of("paper1"), corpus="words", folder=folder)


def run_under(hash_: str, under: dict[str, Any]) -> Run:
    run = Run(hash_, {}, "done", {}, "", Path())
    vars(run)["provenance"] = {"under": under} if under else {}
    return run


def compared(
    paper: Paper, claims: Sequence[Claim], under: dict[str, dict[str, Any]], **given: Any
) -> tuple[list[Claim], str]:
    """Claims and entry of a report with a run under each of these facts."""
    runs = {"a": [run_under(hash_, facts) for hash_, facts in under.items()]}
    chosen = {"subject": subject_of(paper), "seeds": (1, 2), "published": None} | given
    told, entry = compare_with_registration(paper, claims=claims, runs=runs, **chosen)
    return list(told), entry.get(REGISTRATION, "")


def test_runs_older_than_the_registration_are_told_of_once(tmp_path):
    paper = registered_paper(tmp_path)
    claims = [claim("one", "x"), claim("two", "y")]
    told, entry = compared(paper, claims, {"x": {}, "y": {}})
    assert told == claims
    assert entry.endswith(OLDER)
    told, entry = compared(paper, claims, {"x": {}, "y": facts()}, seeds=(1, 3))
    assert [each.changed_after_runs for each in told] == [YOUNGER, ""]
    digest = registration().digest
    where = f"{tmp_path.name}/registered/smoke.toml"
    assert entry == f"{where}, SHA-256 {digest}, which has other seeds"


def test_another_corpus_is_not_what_was_registered(tmp_path):
    paper, claims = registered_paper(tmp_path), [claim("one", "x")]
    other = subject_of(paper, "speech")
    assert compared(paper, claims, {"x": {}}, subject=other) == (claims, "none of this corpus")
    (tmp_path / "registered/smoke.toml").unlink()
    assert compared(paper, claims, {"x": {}}) == (claims, "none at this scale")
    assert compared(replace(paper, folder=None), claims, {"x": {}}) == (claims, "")


def published(*claims: Claim, **provenance: Any) -> Results:
    return Results("paper1", "smoke", "words", (1, 2), provenance, (), claims)


def test_runs_that_were_published_are_not_registered_by_being_made_again(tmp_path):
    paper, claims = registered_paper(tmp_path), [claim("one", "x"), claim("two", "y")]
    known = published(claim("one", "x"), claim("two", "z"))
    told, _ = compared(paper, claims, {"x": facts(), "y": facts()}, published=known)
    assert [each.changed_after_runs for each in told] == [YOUNGER, ""]
    believed = published(claim("one", "x"), **{REGISTRATION: "smoke.toml"})
    told, _ = compared(paper, claims, {"x": facts(), "y": facts()}, published=believed)
    assert [each.changed_after_runs for each in told] == ["", ""]


def test_published_changes_of_the_same_runs_are_kept_and_their_verdicts(tmp_path):
    old = claim("one", "x", changed_after_runs="frames too", before="mixed", undetermined="open")
    paper = registered_paper(tmp_path)
    one, two = claim("one", "x", changed_after_runs="its bands"), claim("two", "y")
    told = keep_changes(paper, [one, two], published(old, claim("two", "z")))
    assert [each.changed_after_runs for each in told] == ["frames too; its bands", ""]
    assert [each.before for each in told] == ["mixed, then holds here", ""]
    assert keep_changes(paper, [one, two], None) == (one, two)


@pytest.mark.parametrize("path", sorted(FROM.glob("paper[1234]/*/results.json")), ids=str)
def test_a_published_report_has_the_committed_digest_or_says_that_it_is_older(path):
    results = read_results(path)
    name, _, told = results.provenance[REGISTRATION].partition(", ")
    there = read_registration(Path("reproductions") / name)
    assert there is not None
    behind = {hash_ for claim in results.claims for hash_ in claim.runs}
    kept = provenance_of(path.parent) if (path.parent / ARCHIVE).exists() else {}
    begun = [kept[hash_] for hash_ in sorted(behind & kept.keys())]
    if told == OLDER:
        assert not any("registration" in each.get("under", {}) for each in begun)
        return
    assert all(each["under"]["registration"] for each in begun)
    changed = any(claim.changed_after_runs for claim in results.claims)
    assert changed or told == f"SHA-256 {there.digest}"


@pytest.mark.parametrize("name", ["paper1", "paper2", "paper3"])
def test_published_runs_of_a_curve_have_the_committed_digest(name):
    paper = paper_of(name)
    for scaling in paper.curves:
        there = FROM / name / scaling.scale
        exhibits = read_results(there / "results.json").exhibits
        kept = provenance_of(there)
        curves = [each for each in exhibits if each.curve is not None]
        for hash_ in {run for each in curves for row in each.rows for run in row.runs}:
            under = kept[hash_]["under"]
            assert under["commit"]
            assert under["registration"]["sha256"] == scaling.registration.digest
        told = [each.curve.registered for each in curves if each.curve]
        assert told == [scaling.registration.digest] * len(curves)


@cache
def provenance_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The provenance of the archived runs of a report, by hash."""
    with TemporaryDirectory() as place:
        store = Store(place)
        read_archive(folder / ARCHIVE, store)
        return {run.hash: run.provenance for run in store.runs()}


def test_a_file_is_written_from_the_code_and_compared_with_it(tmp_path, monkeypatch, capsys):
    paper = replace(paper_of("paper1"), folder=tmp_path)
    monkeypatch.setattr(f"{PAPERS['paper1']}.PAPER", paper)
    asked = ["paper1", "--scale", "smoke"]
    assert register.main([*asked, "--check"]) == EXIT_RUN_FAILED
    assert not (tmp_path / "registered").exists()
    assert register.main(asked) == 0
    assert register.main([*asked, "--check"]) == 0
    found = paper.registration("smoke")
    assert found is not None
    require_registered(found, declare(paper, "smoke"), "")
    told = [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert told == ["differs from the code", "written", "as the code has it"]


def test_an_unknown_paper_or_scale_is_refused(capsys):
    assert register.main(["paper9"]) == 2
    assert register.main(["paper1", "--scale", "night"]) == 2
    assert "night" in capsys.readouterr().err
