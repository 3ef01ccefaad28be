"""What a paper is to the harness: named runs, exhibits and claims, each saying what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from data_synth.corpus import Corpus
from harness.errors import unknown
from harness.execution.runs.executed import Configuration
from harness.judge.results import Claim, Exhibit
from harness.store import Run

Runs = Mapping[str, Sequence[Run]]
"""Finished runs by setting, one for each seed, in the order of the seeds."""

Made = TypeVar("Made", Exhibit, Claim)


@dataclass(frozen=True)
class Subject:
    """What one report is about.

    Args:
        scale: ``"smoke"``, ``"laptop"``, ``"gpu"`` or ``"paper"``.
        corpus: what is trained on.
        corpus_seed: what it was made with.
        device: ``"cpu"`` or ``"cuda"``.
    """

    scale: str
    corpus: Corpus
    corpus_seed: int
    device: str


@dataclass(frozen=True)
class Maker(Generic[Made]):
    """One exhibit or claim: its id, the settings it is made from, and how.

    Args:
        id: as in the list of exhibits and claims, e.g. ``"p1.table2"``.
        needs: names of settings; empty for what needs no training.
        make: from what was run and the finished runs to the result.
        smoke: whether it is made at smoke scale, which has two minutes for everything.
        divergence: whether a run that diverges is what it asks about: then it is made from
            diverged runs too, and they do not make the whole report a failure.
    """

    id: str
    needs: tuple[str, ...]
    make: Callable[[Subject, Runs], Made]
    smoke: bool = True
    divergence: bool = False


@dataclass(frozen=True)
class Paper:
    """A reproduction.

    Args:
        id: ``"paper1"`` …
        corpus: what it is reproduced on unless told otherwise.
        reference: the paper's ``title`` and ``authors``.
        seeds: how many seeds each scale takes by default; its keys are the scales.
        experiments: the named configurations of one seed.
        differences: what a reader must know to be different here, as rows of ``what``,
            ``paper`` and ``here``.
        exhibits, claims: what is made of the finished runs.
        first_seed: of those a verdict rests on; the ones before, and 100, served development.
    """

    id: str
    corpus: str
    reference: Mapping[str, str]
    seeds: Mapping[str, int]
    experiments: Callable[[Subject, int], Mapping[str, Configuration]]
    differences: Callable[[Subject], list[dict[str, str]]]
    exhibits: tuple[Maker[Exhibit], ...]
    claims: tuple[Maker[Claim], ...]
    first_seed: int = 11

    def first_seeds(self, count: int) -> tuple[int, ...]:
        """So many seeds, from the first."""
        return tuple(range(self.first_seed, self.first_seed + count))

    def chosen(
        self, only: Sequence[str], scale: str
    ) -> tuple[list[Maker[Exhibit]], list[Maker[Claim]]]:
        """The exhibits named by ``only`` (the scale's own if empty) and the claims they carry.

        Raises:
            UserError: no such exhibit.
        """
        names = {maker.id.split(".", 1)[1]: maker for maker in self.exhibits}
        for name in only:
            if name not in names:
                raise unknown("--only", name, names)
        if not only:
            made = [maker for maker in self.exhibits if maker.smoke or scale != "smoke"]
            return made, list(self.claims)
        exhibits = [names[name] for name in only]
        settings = {setting for maker in exhibits for setting in maker.needs}
        return exhibits, [claim for claim in self.claims if settings.issuperset(claim.needs)]
