"""What a paper is: named runs, and the exhibits and claims that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from data_synth.corpus import Corpus
from harness.errors import unknown
from harness.execution.runs.executed import Configuration
from harness.judge.makers import Maker
from harness.judge.results import Claim, Exhibit


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
    exhibits: tuple[Maker[Subject, Exhibit], ...]
    claims: tuple[Maker[Subject, Claim], ...]
    first_seed: int = 11

    def first_seeds(self, count: int) -> tuple[int, ...]:
        """So many seeds, from the first."""
        return tuple(range(self.first_seed, self.first_seed + count))

    def chosen(
        self, only: Sequence[str], scale: str
    ) -> tuple[list[Maker[Subject, Exhibit]], list[Maker[Subject, Claim]]]:
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


def levels(sizes: Sequence[int]) -> str:
    """The sizes of a network's levels, as reports write them."""
    return "–".join(map(str, sizes))
