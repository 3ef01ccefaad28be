"""Judge published reports anew from the runs that are kept beside them, without training.

::

    python -m reproductions.rejudge reports/published/paper1/overnight

Claims and exhibits are made of ``runs.tar.xz`` by the present code. Exhibits that read timelines,
which are not kept, and those of searches stay as they were published. A verdict changes only where
the paper's ``changes.toml`` says what of its claim was changed after the runs; the claim then keeps
the verdict that was published before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import reports
from data_synth import load_corpus
from harness.base.errors import UserError
from harness.base.registry import entries
from harness.cli import Parser, exit_code
from harness.judge import Claim, Exhibit, Results, read_results
from harness.judge.builders import Maker, Runs, build_claim, build_exhibit
from harness.judge.parts import LOOKS, correct_verdicts
from harness.judge.results import write_results
from harness.store import Store
from harness.store.archive import ARCHIVE, read_archive
from reproductions.changes_after_runs import (
    CHANGES_TOML,
    compare_with_registration,
    read_changes,
    tell_change,
)
from reproductions.paper import Paper, Subject

FROM_RUNS = {"judged_again": "from the runs that are kept beside the report"}
"""Entry of provenance."""


def judge_anew(folder: Path) -> Results:
    """Results of a folder with ``results.json`` and ``runs.tar.xz``, judged anew.

    Raises:
        UserError: a run is missing, or a verdict changes that ``changes.toml`` does not explain.
    """
    old = read_results(folder / "results.json")
    paper: Paper = entries("papers")[old.paper].load()
    corpus = load_corpus(old.corpus, scale=old.scale, seed=old.seeds[0])
    subject = Subject(old.scale, corpus, old.seeds[0], str(old.provenance["device"]))
    with tempfile.TemporaryDirectory() as place:
        runs = _unpack_runs(folder, old.provenance["settings"], Path(place))
        claims = [
            build_claim(each, subject, runs) for each in paper.claims if _has(runs, each.needs)
        ]
        exhibits = _make_exhibits(paper, subject, runs, old.exhibits)
        judged = correct_verdicts(paper.conditions.ask(claims), old.provenance.get(LOOKS, 1))
        marked, entry = compare_with_registration(paper, subject, old.seeds, judged, runs, old)
    changes = read_changes(paper.folder)
    before = {claim.id: claim for claim in old.claims}
    told = [keep_verdict(each, before.get(each.id), changes.get(each.id, "")) for each in marked]
    return replace(
        old,
        claims=tuple(told),
        exhibits=exhibits,
        provenance=dict(old.provenance) | entry | FROM_RUNS,
    )


def keep_verdict(claim: Claim, old: Claim | None, change: str) -> Claim:
    """The claim with the verdict that was published before, and what was changed.

    Raises:
        UserError: the verdict changes, and no change is declared.
    """
    if old is None:
        return claim
    if not change and claim.verdict != old.verdict:
        raise UserError(
            f"{claim.id}: was {old.verdict!r}, is {claim.verdict!r}; needed: its line in "
            f"{CHANGES_TOML}, which says what was changed after its runs"
        )
    return tell_change(claim, old, change)


def _has(runs: Runs, needs: Sequence[str]) -> bool:
    return all(name in runs for name in needs)


def _make_exhibits(
    paper: Paper, subject: Subject, runs: Runs, old: Sequence[Exhibit]
) -> tuple[Exhibit, ...]:
    """Exhibits made of the runs; as they were where they need what is not kept.

    An exhibit that the published report lacks is made too if its runs are there.
    """
    before = {exhibit.id: exhibit for exhibit in old}

    def make(maker: Maker[Subject, Exhibit]) -> Exhibit | None:
        if maker.timelines or maker.searches or not _has(runs, maker.needs):
            return before.get(maker.id)
        return build_exhibit(maker, subject, runs)

    made = [exhibit for exhibit in map(make, paper.exhibits) if exhibit is not None]
    declared = {maker.id for maker in paper.exhibits}
    return (*made, *(exhibit for exhibit in old if exhibit.id not in declared))


def _unpack_runs(folder: Path, settings: Mapping[str, Sequence[str]], place: Path) -> Runs:
    store = Store(place)
    read_archive(folder / ARCHIVE, store)
    return {name: [store.load(each) for each in group] for name, group in settings.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    p = Parser(prog="reproductions.rejudge", description="Judge published reports anew.")
    p.add_argument("folder", nargs="+", type=Path, help="e.g. reports/published/paper1/overnight")
    return exit_code(lambda: _run(p.parse_args(arguments)))


def _run(asked: argparse.Namespace) -> int:
    for folder in asked.folder:
        made = judge_anew(folder)
        for claim in made.claims:
            print(
                f"{claim.verdict:>12}  {claim.id}{'  was ' + claim.before if claim.before else ''}"
            )
        write_results(folder / "results.json", made)
        reports.build(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
