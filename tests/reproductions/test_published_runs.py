"""Published verdicts and curves come out of the archived runs, by the code of today."""

from importlib import import_module

import pytest

from harness.judge.builders import build_claim
from harness.judge.parts import LOOKS, correct_verdicts
from harness.judge.results import Results, read_results
from harness.store import Store
from harness.store.archive import ARCHIVE, read_archive
from reports import PUBLISHED
from reproductions.command import PAPERS
from reproductions.curve_runs import find_finished
from reproductions.paper import Paper, Subject
from reproductions.scale_curves import build_curve
from tests.stand_in import stand_in

NAMES = ["paper1", "paper2", "paper3"]


def published(name: str, store: Store) -> tuple[Paper, Results]:
    """A paper and its published report, whose runs are put into a store."""
    folder = PUBLISHED / name / "overnight"
    read_archive(folder / ARCHIVE, store)
    return import_module(PAPERS[name]).PAPER, read_results(folder / "results.json")


def test_a_curve_comes_out_of_archived_runs(tmp_path):
    """Paper 1's and paper 3's are of former registrations or identities, and are run anew."""
    store = Store(tmp_path)
    paper, results = published("paper2", store)
    (curve,) = paper.curves
    (known,) = (exhibit for exhibit in results.exhibits if exhibit.id == curve.id)
    finished = find_finished(curve, store.runs())
    rows = build_curve(curve, finished).rows
    assert len(finished) >= 6
    assert [(row.column, row.runs) for row in rows] == [(r.column, r.runs) for r in known.rows]
    assert [row.measured for row in rows] == pytest.approx([row.measured for row in known.rows])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_verdicts_come_out_of_archived_runs(name, tmp_path):
    store = Store(tmp_path)
    paper, results = published(name, store)
    settings = results.provenance["settings"]
    needs = {name for maker in paper.claims for name in maker.needs}
    if {c.id for c in results.claims} != {m.id for m in paper.claims} or needs - settings.keys():
        pytest.skip("of claims that were registered anew since")
    runs = {name: [store.load(hash_) for hash_ in hashes] for name, hashes in settings.items()}
    subject = Subject("overnight", stand_in(paper.corpus), results.seeds[0], "cpu")
    claims = paper.conditions.ask([build_claim(maker, subject, runs) for maker in paper.claims])
    if paper.registration:
        claims = paper.registration.arrange(claims, [maker.id for maker in paper.claims])
    judged = correct_verdicts(claims, results.provenance.get(LOOKS, 1))
    for claim, known in zip(judged, results.claims, strict=True):
        assert (claim.id, claim.here, claim.corrected) == (known.id, known.here, known.corrected)
        assert claim.measured == pytest.approx(known.measured), claim.id
        assert claim.verdict == known.verdict, claim.id
