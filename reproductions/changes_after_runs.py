"""Changes of claims after their runs: by the registration, and as published reports tell them."""

from __future__ import annotations

import tomllib
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

__all__ = [
    "CHANGES_TOML",
    "REGISTRATION",
    "compare_with_registration",
    "keep_changes",
    "read_changes",
    "read_published",
    "tell_change",
]

CHANGES_TOML = "changes.toml"
THEN = ", then "
"""Between the verdicts of a claim that was published with several."""

REGISTRATION = "registration"
"""Provenance key of what a report was registered under."""

OLDER = "younger than all runs of this report"
"""End of that entry where no run was registered before it began; then no claim says so."""

NONE = "none"
"""Beginning of that entry where nothing was registered."""


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
    published: Results | None,
) -> tuple[tuple[Claim, ...], dict[str, str]]:
    """The claims with what was changed after their runs, and the report's `REGISTRATION`.

    Where a published report is older than the registration, its runs are too, whenever they were
    made again.

    Args:
        paper: the paper.
        subject: the scale and the corpus.
        seeds: of the report.
        claims: judged.
        runs: runs by setting.
        published: the published results, see `read_published`.
    """
    registered = paper.registration(subject.scale)
    if registered is None or subject.corpus.name != paper.corpus:
        which = "at this scale" if registered is None else "of this corpus"
        return tuple(claims), {REGISTRATION: f"{NONE} {which}"} if paper.folder else {}
    under = {run.hash: run.provenance.get(UNDER, {}) for group in runs.values() for run in group}
    marked = mark_changes(claims, registered, under, _find_seen_runs(published))
    name = "/".join(registered.path.parts[-3:])
    if all(claim.changed_after_runs == YOUNGER for claim in marked):
        return tuple(claims), {REGISTRATION: f"{name}, {OLDER}"}
    others = "" if list(seeds) == registered.table["seeds"] else ", which has other seeds"
    return marked, {REGISTRATION: f"{name}, SHA-256 {registered.digest}{others}"}


def keep_changes(
    paper: Paper, claims: Sequence[Claim], published: Results | None
) -> tuple[Claim, ...]:
    """The claims, each with the changes and verdicts that are published of it.

    Only claims that rest on published runs have any.
    """
    changes, known = read_changes(paper.folder), published.claims if published else ()
    before = {claim.id: claim for claim in known}

    def keep(claim: Claim) -> Claim:
        old = before.get(claim.id)
        if old is None or not set(claim.runs).intersection(old.runs):
            return claim
        return tell_change(claim, old, changes.get(claim.id, old.changed_after_runs))

    return tuple(map(keep, claims))


def read_changes(folder: Path | None) -> dict[str, str]:
    """Claim id -> what of it was changed after its published runs; empty without ``changes.toml``.

    Args:
        folder: the paper's.
    """
    path = None if folder is None else folder / CHANGES_TOML
    if path is None or not path.exists():
        return {}
    return {
        id_: " ".join(what.split())
        for id_, what in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }


def tell_change(claim: Claim, old: Claim, change: str) -> Claim:
    """The claim with a change and the verdicts that were published before.

    Args:
        claim: judged anew, perhaps with changes since its registration.
        old: the published claim.
        change: of the claim after its published runs; empty if there is none.
    """
    chain = old.before.split(THEN) if old.before else []
    told = dict.fromkeys((change, claim.changed_after_runs))
    changed = "; ".join(filter(None, told))
    if changed and (claim.verdict != old.verdict or not chain):
        chain.append(old.verdict)
    return replace(claim, changed_after_runs=changed, before=THEN.join(chain))


def _find_seen_runs(published: Results | None) -> set[str]:
    """Hashes of the runs behind published claims that are older than their registration."""
    if published is None:
        return set()
    told = published.provenance.get(REGISTRATION, OLDER)
    all_older = told.startswith(NONE) or OLDER in told
    return {
        hash_
        for claim in published.claims
        if all_older or YOUNGER in claim.changed_after_runs
        for hash_ in claim.runs
    }
