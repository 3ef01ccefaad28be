"""Curves over scale: registered runs execute once, are found again, and told as far as they are."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from data_synth import check_known, load_corpus, presets
from harness.base.errors import UserError
from harness.judge.results import Claim, Exhibit, Row, read_results, write_results
from harness.judge.scaling import LEAST_EXPONENT
from harness.store import Store
from harness.store.archive import ARCHIVE, write_archive
from reports import extrapolation
from reproductions import curve_runs
from reproductions.curve_runs import (
    Request,
    find_curves,
    find_finished,
    publish,
    read_published,
    reproduce_curve,
)
from reproductions.paper import Paper, Scaling, Subject, corpus_without_speech
from reproductions.paper1_async_asgd import PAPER as PAPER1
from reproductions.paper2_ng_averaging import PAPER as PAPER2
from reproductions.paper3_async_mmi import PAPER as PAPER3
from reproductions.scale_curves import build_curve, describe_progress, estimate_core_hours

TEXT = """
[scaling."p9.scaling"]
claim = "p9.close"
statistic = "error of one over many"
grows = "speech"
unit = "h"
paper = 100
band = { at_most = 1.08 }
laws = ["power", "power above a floor"]
held_out = 8
sizes = [
    { at = 2, corpus = "mandarin-like@4", seeds = [71, 72, 73], core_minutes = 6 },
    { at = 4, corpus = "mandarin-like@8", seeds = [71, 72, 73], core_minutes = 30 },
    { at = 8, corpus = "mandarin-like@12", seeds = [71, 72, 73], core_minutes = 60 },
]
"""

MISSING = "Seeds that are not run, or diverged:"


@dataclass(frozen=True)
class Config:
    """A run whose error falls with the size and differs between seeds, without training."""

    arm: str
    seed: int
    at: float
    fingerprint: str
    effort: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("arm", "seed", "at", "fingerprint")}

    def execute(self, store: Store, watch: object) -> object:
        error = 0.1 + 0.001 * self.seed
        if self.arm == "one":
            error *= 1.0 + self.at**-0.5 + 0.001 * (self.seed % 2)
        return store.obtain(self.to_dict(), lambda writer: writer.finish(summary={"error": error}))


@pytest.fixture(scope="module")
def scaling(tmp_path_factory) -> Scaling:
    path = tmp_path_factory.mktemp("registered") / "scaling.toml"
    path.write_text(TEXT)
    return Scaling(
        "p9.scaling", "A ratio by hours", path,
        lambda subject, seed, size: {
            arm: Config(arm, seed, size.at, subject.corpus.fingerprint) for arm in ("one", "many")
        },
        {"clean": ("one", "many", 1.034)}, lambda run, arm, label: run.summary["error"], "smoke",
    )  # fmt: skip


@pytest.fixture(scope="module")
def out(scaling, tmp_path_factory) -> Path:
    """The folder of a whole curve."""
    folder = tmp_path_factory.mktemp("whole")
    reproduce_curve(paper(scaling), scaling, asked(folder), "cpu")
    return folder


@pytest.fixture(scope="module")
def finished(scaling, out):
    """Its runs."""
    return find_finished(scaling, Store(out / "runs").runs())


def asked(out: Path, budget_s: float | None = None) -> Request:
    return Request((), (), 1, budget_s, out)


def paper(scaling: Scaling) -> Paper:
    return replace(PAPER1, id="paper9", curves=(scaling,))


def test_missing_runs_are_executed_and_found_again_without_a_corpus(scaling, out, monkeypatch):
    results = read_results(out / "results.json")
    monkeypatch.setattr(curve_runs, "load_corpus", lambda *_, **__: pytest.fail("a corpus is made"))
    again = reproduce_curve(paper(scaling), scaling, asked(out), "cpu")
    (exhibit,), (same,) = results.exhibits, again.exhibits
    assert replace(exhibit, files=()) == replace(same, files=())
    assert exhibit.curve is not None
    assert exhibit.curve.missing == {}
    # By hand: ratio - 1 = at^-0.5, and a little more for odd seeds.
    assert [row.measured for row in exhibit.rows][:2] == pytest.approx(
        [1 + 2**-0.5 + 0.002 / 3, 1.5 + 0.002 / 3], abs=1e-5
    )
    law = exhibit.curve.trends[0].law
    assert law is not None
    assert law.value == pytest.approx(1.1, abs=2e-3)
    assert (out / "figures" / "p9.scaling.png").exists()
    assert same.curve == exhibit.curve


def test_spent_budget_leaves_a_report_that_says_what_is_missing(scaling, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        reproduce_curve(paper(scaling), scaling, asked(tmp_path / "out", 1e-9), "cpu")
    assert "p9.scaling: about 4.8 core-hours are left" in capsys.readouterr().err
    (exhibit,) = read_results(tmp_path / "out" / "results.json").exhibits
    assert exhibit.note.startswith(f"{MISSING} 2 h (3), 4 h (3), 8 h (3).")


def test_every_size_gets_a_seed_before_one_gets_its_second(scaling, tmp_path, monkeypatch):
    order = list[tuple[float, int]]()

    def note(scaling, size, seed, runner, end_s, device):
        order.append((size.at, seed))
        return {}

    monkeypatch.setattr(curve_runs, "_execute_seed", note)
    request = asked(tmp_path)
    curve_runs.execute_missing(scaling, request.store, request, "cpu")
    assert order == [(at, seed) for seed in (71, 72, 73) for at in (2, 4, 8)]


def test_partial_curve_is_unclear_and_says_so(scaling, finished):
    some = {key: arms for key, arms in finished.items() if key != (8.0, 72)}
    curve = build_curve(scaling, some).curve
    assert curve is not None
    assert curve.missing == {"8": 1}
    assert [trend.word for trend in curve.trends] == ["unclear"]
    assert describe_progress(scaling, some).startswith(f"{MISSING} 8 h (1).")
    assert estimate_core_hours(scaling, some) == pytest.approx(1.0)
    told = extrapolation.summarise(build_curve(scaling, some), "It")
    assert f". {MISSING} 8 h (1). Until all are" in told


def test_curve_with_a_diverged_run_is_not_whole_and_says_so(scaling, finished):
    arms = finished[8.0, 72]
    lost = finished | {(8.0, 72): {**arms, "one": replace(arms["one"], status="diverged")}}
    exhibit = build_curve(scaling, lost)
    assert exhibit.curve is not None
    assert exhibit.curve.missing == {"8": 1}
    assert [trend.word for trend in exhibit.curve.trends] == ["unclear"]
    assert [row.column for row in exhibit.rows] == [2.0, 4.0, 100.0]
    assert exhibit.note.startswith(f"{MISSING} 8 h (1).")


def test_arms_on_different_corpora_are_no_pair(scaling, tmp_path):
    store = Store(tmp_path / "runs")
    for arm, fingerprint in (("one", "a"), ("many", "b")):
        Config(arm, 71, 2.0, fingerprint).execute(store, None)
    assert find_finished(scaling, store.runs()) == {}
    Config("many", 71, 2.0, "a").execute(store, None)
    assert list(find_finished(scaling, store.runs())) == [(2.0, 71)]


def test_published_runs_are_taken_where_the_store_lacks_them(scaling, out, tmp_path):
    folder = tmp_path / "published" / "paper9" / "smoke"
    folder.mkdir(parents=True)
    write_results(folder / "results.json", read_results(out / "results.json"))
    write_archive(folder / ARCHIVE, Store(out / "runs").runs())
    fresh = Store(tmp_path / "fresh")
    (told,) = find_curves(paper(scaling), "smoke", fresh, tmp_path / "published")
    assert told.curve == read_results(out / "results.json").exhibits[0].curve
    read_published(folder, fresh)
    assert len(find_finished(scaling, fresh.runs())) == 9
    assert find_curves(paper(scaling), "smoke", fresh, tmp_path)[0].curve == told.curve
    assert find_curves(paper(scaling), "laptop", fresh, tmp_path / "published") == []


def check_published(there, folder):
    kept = Store(folder / "kept")
    read_published(there, kept)
    assert len(kept.runs()) == 18
    assert (there / "report.pdf").exists()


def test_curve_is_published_with_its_runs_and_replaced_when_it_has_grown(out, tmp_path):
    there = tmp_path / "published"
    there.mkdir()
    table = Exhibit("p9.table1", "table", "Errors", (Row("a", "b", None, 1.0, (0.5, 1.5)),))
    results = read_results(out / "results.json")
    write_results(there / "results.json", replace(results, exhibits=(table,)))
    for _ in range(2):
        assert publish(out, there) == 18
        second, first = read_results(there / "results.json").exhibits
        assert replace(first, files=()) == table
        assert second.curve == results.exhibits[0].curve
        lines = (there / "runs.csv").read_text().splitlines()
        assert sum(line.startswith("p9.scaling 1,") for line in lines) == 19  # and the usual values
    check_published(there, tmp_path)


def test_a_whole_report_takes_the_published_ones_place_with_the_runs_it_cites(out, tmp_path):
    there, whole = tmp_path / "published", tmp_path / "whole"
    there.mkdir()
    shutil.copytree(out, whole)
    claim = Claim("p9.close", "It is close", "Table 1", "", None, None, None, "unclear")
    results = replace(read_results(out / "results.json"), claims=(claim,))
    write_results(whole / "results.json", results)
    write_archive(there / ARCHIVE, Store(out / "runs").runs()[:3])
    assert publish(whole, there) == 18
    assert read_results(there / "results.json") == results
    check_published(there, tmp_path)


def test_curve_runs_by_itself(scaling):
    with pytest.raises(UserError, match="--only: 'scaling,fig2' is not allowed"):
        paper(scaling).curve(("scaling", "fig2"))
    assert paper(scaling).curve(("fig2",)) is None


@pytest.mark.parametrize("declared", [PAPER1, PAPER2, PAPER3], ids=lambda paper: paper.id)
def test_every_curve_is_registered_and_names_a_claim(declared):
    for curve in declared.curves:
        entry = curve.entries
        assert entry["claim"] in {claim.id for claim in declared.claims}
        sizes = [size.at for size in curve.sizes]
        assert sizes == sorted(set(sizes))
        assert entry["held_out"] == sizes[-1]
        assert entry["laws"] in ([], list(LEAST_EXPONENT))
        assert not entry["laws"] or min(len(size.seeds) for size in curve.sizes) >= 3
        # Finished runs are found without a corpus, so no setting follows from its content.
        size = curve.sizes[0]
        arms = {each for over, under, _ in curve.ratios.values() for each in (over, under)}
        subject = Subject(curve.scale, corpus_without_speech(size.corpus), size.seeds[0], "cpu")
        assert set(curve.configs(subject, size.seeds[0], size)) >= arms
        # Seeds serve nothing else, but for a cell that has the report's own runs.
        used = {declared.seeds_of(scale) for scale in declared.seeds}
        sizes = [size for size in curve.sizes if entry["laws"] or size.seeds not in used]
        assert {s for seeds in used for s in seeds}.isdisjoint(s for z in sizes for s in z.seeds)


def test_corpus_with_a_size_differs_in_training_speech_alone(tmp_path):
    plain, sized = (
        presets.recipe(name, "smoke", 3) for name in ("mandarin-like", "mandarin-like@15")
    )
    assert (sized.train, sized.speakers) == (15, 2)
    assert replace(sized, train=plain.train, speakers=plain.speakers) == plain
    made = load_corpus("mandarin-like@15", scale="smoke", seed=3, cache=tmp_path)
    assert made.name == "mandarin-like@15"
    assert len(made.split("train")) == 15
    assert len(made.split("clean")) == 40


@pytest.mark.parametrize("name", ["mandarin-like@", "mandarin-like@0", "mandarin-like@x", "fsdd@5"])
def test_bad_sizes_are_refused(name):
    with pytest.raises(UserError, match="corpus"):
        check_known(name, "smoke")
