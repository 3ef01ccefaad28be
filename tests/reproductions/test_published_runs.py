"""Published verdicts come out of the archived runs, by the code of today."""

from importlib import import_module

import pytest

from harness.judge.builders import build_claim
from harness.judge.parts import LOOKS, correct_verdicts
from harness.judge.results import read_results
from harness.store import Store
from harness.store.archive import ARCHIVE, read_archive
from reports import PUBLISHED
from reproductions.command import PAPERS
from reproductions.paper import Paper, Subject
from tests.stand_in import stand_in


@pytest.mark.parametrize("name", ["paper1", "paper2", "paper3"])
def test_verdicts_come_out_of_archived_runs(name, tmp_path):
    folder, store = PUBLISHED / name / "overnight", Store(tmp_path)
    read_archive(folder / ARCHIVE, store)
    results = read_results(folder / "results.json")
    runs = {
        setting: [store.load(hash_) for hash_ in hashes]
        for setting, hashes in results.provenance["settings"].items()
    }
    paper: Paper = import_module(PAPERS[name]).PAPER
    subject = Subject("overnight", stand_in(paper.corpus), results.seeds[0], "cpu")
    claims = paper.conditions.ask([build_claim(maker, subject, runs) for maker in paper.claims])
    judged = correct_verdicts(claims, results.provenance[LOOKS])
    for claim, published in zip(judged, results.claims, strict=True):
        assert (claim.id, claim.here, claim.corrected) == (
            published.id,
            published.here,
            published.corrected,
        )
        assert claim.measured == pytest.approx(published.measured), claim.id
        assert claim.verdict == published.verdict, claim.id
