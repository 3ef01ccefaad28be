"""Changes of claims after their runs: by the registration, and as published reports tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.judge import read_results
from harness.judge.builders import Runs
from harness.judge.registrations import YOUNGER, mark_changes
from harness.judge.results import Claim, Results
from harness.store.schema import UNDER
from reports.site import FROM
from reproductions.paper import Paper, Subject

__all__ = ["REGISTRATION", "compare_with_registration", "read_published"]

REGISTRATION = "registration"
"""Provenance key of what a report was registered under."""

OLDER = "younger than all runs of this report"
"""End of that entry where no run was registered before it began; then no claim says so."""


def read_published(paper: Paper, subject: Subject, folder: Path = FROM) -> Results | None:
    """The published results at the scale and on the kind of corpus; None if there are none.

    Args:
        paper: the paper.
        subject: the scale and the corpus.
        folder: published results, ``PAPER/SCALE/results.json``.
    """
    path = folder / paper.id / subject.scale / "results.json"
    if not path.exists() or (found := read_results(path)).corpus != subject.corpus.name:
        return None
    return found


def compare_with_registration(
    paper: Paper,
    subject: Subject,
    seeds: Sequence[int],
    claims: Sequence[Claim],
    runs: Runs,
    folder: Path = FROM,
) -> tuple[tuple[Claim, ...], dict[str, str]]:
    """The claims with what was changed after their runs, and the report's `REGISTRATION`.

    Of runs that a published report shows, its own changes are kept; where that report is older
    than the registration, such runs are too, whenever they were made again.

    Args:
        paper: the paper.
        subject: the scale and the corpus.
        seeds: of the report.
        claims: judged.
        runs: runs by setting.
        folder: published results, see `read_published`.
    """
    registered = paper.registration(subject.scale)
    if registered is None or subject.corpus.name != paper.corpus:
        return tuple(claims), {}
    published = read_published(paper, subject, folder)
    known = {claim.id: claim for claim in published.claims} if published else {}
    under = {run.hash: run.provenance.get(UNDER, {}) for group in runs.values() for run in group}
    marked = mark_changes(claims, registered, under, _looked_at(published))
    told = f"{'/'.join(registered.path.parts[-3:])}, SHA-256 {registered.digest}"
    if list(seeds) != registered.table["seeds"]:
        told += ", which has other seeds"
    if all(claim.changed_after_runs == YOUNGER for claim in marked):
        marked, told = tuple(claims), f"{told}, {OLDER}"
    return tuple(_keep_changes(each, known.get(each.id)) for each in marked), {REGISTRATION: told}


def _looked_at(published: Results | None) -> set[str]:
    """Hashes of the runs behind published claims that are older than their registration."""
    if published is None:
        return set()
    all_older = OLDER in published.provenance.get(REGISTRATION, OLDER)
    return {
        hash_
        for claim in published.claims
        if all_older or YOUNGER in claim.changed_after_runs
        for hash_ in claim.runs
    }


def _keep_changes(claim: Claim, published: Claim | None) -> Claim:
    """The claim with the changes that are published of it, if it rests on the same runs."""
    if published is None or not set(claim.runs).intersection(published.runs):
        return claim
    told = dict.fromkeys((published.changed_after_runs, claim.changed_after_runs))
    changed = "; ".join(filter(None, told))
    before = published.before or (published.verdict if changed else "")
    return replace(
        claim, changed_after_runs=changed, before="" if before == claim.verdict else before
    )
