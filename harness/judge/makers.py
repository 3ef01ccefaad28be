"""From finished runs to exhibits and claims, whatever paper they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from harness.judge.missing import DidNotEnd, Unreadable
from harness.judge.results import Claim, Exhibit, Results
from harness.store import Run, Store

Runs = Mapping[str, Sequence[Run]]
"""Finished runs by setting, one for each seed, in the order of the seeds."""
ASKED = "divergence_asked_of"
"""In the provenance of results: runs of which nothing is asked but whether they diverge."""

Subject = TypeVar("Subject")
Made = TypeVar("Made", Exhibit, Claim)


@dataclass(frozen=True)
class Maker(Generic[Subject, Made]):
    """One exhibit or claim: its id, the settings it is made from, and how.

    Args:
        id: as in the list of exhibits and claims, e.g. ``"p1.table2"``.
        needs: names of settings; empty for what needs no runs.
        make: from what the report is about and the finished runs to the result.
        smoke: whether it is made at smoke scale, which has two minutes for everything.
        divergence: whether a run that diverges is what it asks about: then it is made from
            diverged runs too, and they do not make the whole report a failure.
        timelines: of so many runs of each setting it reads the timeline, in the order of the seeds.
    """

    id: str
    needs: tuple[str, ...]
    make: Callable[[Subject, Runs], Made]
    smoke: bool = True
    divergence: bool = False
    timelines: float = 0

    def sound(self, run: Run) -> bool:
        """Whether the run ended in a way that this can be made from."""
        return run.status == "done" or (self.divergence and run.status == "diverged")

    def readable(self, runs: Runs) -> Runs:
        """The runs it needs; those that are not sound can be named, and not read."""
        return {
            setting: [run if self.sound(run) else Unreadable.of(run) for run in runs[setting]]
            for setting in self.needs
        }


def made_exhibit(maker: Maker[Subject, Exhibit], subject: Subject, runs: Runs) -> Exhibit:
    """The exhibit, and why it lacks something if a run it needs did not end."""
    try:
        made = maker.make(subject, maker.readable(runs))
    except DidNotEnd:
        made = Exhibit(maker.id, "table", maker.id)
    return replace(made, note=_explained(made.note, maker, runs))


def made_claim(maker: Maker[Subject, Claim], subject: Subject, runs: Runs) -> Claim:
    """The claim; of parts whose runs did not all end, those that can be judged, and why not all."""
    try:
        made = maker.make(subject, maker.readable(runs))
    except DidNotEnd:
        hashes = tuple(run.hash for setting in maker.needs for run in runs[setting])
        made = Claim(
            maker.id, (maker.make.__doc__ or maker.id).splitlines()[0], "", "", None, None, None,
            "undecided", hashes,
        )  # fmt: skip
    missing = [p.label for p in made.parts if p.measured is None and p.ci95 == (None, None)]
    return replace(made, note=_explained(made.note, maker, runs, missing))


def asked_of_divergence(makers: Sequence[Maker[Any, Any]], runs: Runs) -> list[str]:
    """Hashes of the runs that are needed only where divergence is the question."""
    asked, others = (
        {run.hash for m in makers if m.divergence == asks for s in m.needs for run in runs[s]}
        for asks in (True, False)
    )
    return sorted(asked - others)


def failures(store: Store, results: Results) -> list[str]:
    """One line for each run behind the results that diverged or failed: which, where and why.

    Runs of which nothing is asked but whether they diverge are not among them.
    """
    asked = set(results.provenance.get(ASKED, ()))
    names: dict[str, str] = {}
    for setting, hashes in results.provenance["settings"].items():
        for hash_ in hashes:
            names.setdefault(hash_, setting)
    behind = [(setting, store.load(hash_)) for hash_, setting in names.items()]
    return [
        f"{results.paper}: {run.ending(_named(setting, run))}"
        for setting, run in behind
        if run.status != "done" and not (run.status == "diverged" and run.hash in asked)
    ]


def _explained(note: str, maker: Maker[Any, Any], runs: Runs, missing: Sequence[str] = ()) -> str:
    """A note, and which runs did not end, so that something is missing."""
    broken = {
        run.ending(_named(setting, run)): None
        for setting in maker.needs
        for run in runs[setting]
        if not maker.sound(run)
    }
    if not broken:
        return note
    what = f"Not measured: {', '.join(missing)}." if missing else ""
    return " ".join(filter(None, (note, what, f"{'; '.join(broken)}.")))


def _named(setting: str, run: Run) -> str:
    return f"{setting}, seed {run.config['seed']}" if "seed" in run.config else setting
