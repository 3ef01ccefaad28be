"""Declaration of a paper: named runs, exhibits and claims made of them, and curves over scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data_synth import load_corpus
from data_synth.corpus import Corpus, Utterances
from harness.base.errors import UserError, name_error
from harness.experiment.contract import Configuration
from harness.judge.builders import Maker
from harness.judge.claims import Rule
from harness.judge.conditions import Conditions
from harness.judge.results import Claim, Exhibit
from harness.store import Run
from reproductions.registered import Registration

FIRST_SEEDS = {"smoke": 11, "laptop": 1004, "overnight": 2001, "gpu": 3001, "paper": 4001}
"""First seed of each scale's verdicts where a registration has none; below 1000 is development."""
DEVELOPMENT = 100
"""The seed of the corpus, and of the runs, that tune what a paper leaves open."""
NO_CORPUS = "none"
"""`Paper.corpus` of a paper whose runs make their own data."""


@cache
def _load_corpus(name: str, scale: str, seed: int) -> Corpus:
    return load_corpus(name, scale=scale, seed=seed)


def corpus_without_speech(name: str) -> Corpus:
    """A corpus with a name alone, for configurations that are compared without its content."""
    none = np.zeros(0, np.int64)
    words = np.zeros(0, str)
    table = Utterances(words, words, words, none, none, ())
    return Corpus(
        name, np.zeros((0, 1), np.float32), none.astype(np.int32), table, {"": (0,)},
        stored_fingerprint="unknown",
    )  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """Scale, corpus and device of a report, or of one of its seeds.

    Args:
        scale: one of the paper's.
        corpus: training and test data; a name alone if the paper has no corpus. A synthetic one
            is made for each seed, so that seeds, corpora and test utterances vary together; a
            recorded one is the same for all.
        corpus_seed: seed of the corpus.
        device: ``"cpu"`` or ``"cuda"``.
        made: makes the corpus of another seed; None if the corpus is recorded.
        load: loads a further corpus by its name, scale and seed.
    """

    scale: str
    corpus: Corpus
    corpus_seed: int
    device: str
    made: Callable[[int], Corpus] | None = None
    load: Callable[[str, str, int], Corpus] = _load_corpus

    def replicate(self, seed: int) -> Subject:
        """The same with the corpus of another seed."""
        if seed == self.corpus_seed or self.made is None:
            return self
        return replace(self, corpus=self.made(seed), corpus_seed=seed)

    @property
    def names(self) -> dict[str, Any]:
        """The fields of a configuration that name the corpus."""
        corpus = self.corpus
        return {
            "corpus": corpus.name,
            "scale": self.scale,
            "corpus_seed": self.corpus_seed,
            "fingerprint": corpus.fingerprint,
        }

    @property
    def development(self) -> Subject:
        """The subject that settings are tuned on; it shares a recorded corpus with the verdicts."""
        return self.replicate(DEVELOPMENT)


@dataclass(frozen=True)
class SizePlan:
    """A registered size.

    Args:
        at: the size, in the curve's unit.
        seeds: of its runs.
        corpus: name of the corpus, with its number of utterances.
        core_minutes: of one seed, as estimated before the runs.
        settings: what else differs at this size, by name.
    """

    at: float
    seeds: tuple[int, ...]
    corpus: str
    core_minutes: float
    settings: Mapping[str, Any]


Differences = list[tuple[str, str, str]]
"""What differs from the paper: the thing, how it is in the paper, and how here."""

Arms = Mapping[str, Run]
"""The finished runs of one seed at one size, by arm."""

Finished = Mapping[tuple[float, int], Arms]
"""Finished runs by size and seed; a seed without all of its arms is not among them."""


@dataclass(frozen=True)
class Scaling:
    """A headline claim as a curve over scale.

    Args:
        id: of the exhibit, e.g. ``"p1.scaling"``.
        title: of its figure.
        registered: the file.
        configs: the runs of one seed at one size, by arm.
        ratios: label of each ratio -> the arms above and below, and the paper's ratio.
        rate: error rate of a run of an arm for a label.
        further: exhibits without a verdict that the same runs make, by id.
    """

    id: str
    title: str
    registered: Path
    configs: Callable[[Subject, int, SizePlan], Mapping[str, Configuration]]
    ratios: Mapping[str, tuple[str, str, float | None]]
    rate: Callable[[Run, str, str], float]
    scale: str = "overnight"
    further: Mapping[str, Callable[[Finished], Exhibit]] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        """Short name, as ``--only`` takes it."""
        return self.id.partition(".")[2]

    @cached_property
    def registration(self) -> Registration:
        """The registration."""
        return Registration(self.registered)

    @cached_property
    def entries(self) -> dict[str, Any]:
        """The registered entries of the curve.

        Raises:
            UserError: an entry is missing.
        """
        return self.registration.curve(self.id)

    @cached_property
    def sizes(self) -> tuple[SizePlan, ...]:
        """The registered sizes, ascending."""
        return tuple(_read_size(entry) for entry in self.entries["sizes"])

    @property
    def band(self) -> Rule:
        """Band of the claim."""
        band = self.entries["band"]
        return Rule(band.get("at_least", -math.inf), band.get("at_most", math.inf))


def _read_size(entry: Mapping[str, Any]) -> SizePlan:
    keys = ("at", "seeds", "corpus", "core_minutes")
    at, seeds, corpus, minutes = (entry[name] for name in keys)
    settings = {name: value for name, value in entry.items() if name not in keys}
    return SizePlan(float(at), tuple(seeds), corpus, float(minutes), settings)


@dataclass(frozen=True)
class Paper:
    """A reproduction.

    Args:
        id: ``"paper1"`` …
        corpus: name of the default corpus; `NO_CORPUS` if the runs need none.
        reference: the paper's ``title`` and ``authors``.
        seeds: default number of seeds by scale; its keys are the scales.
        experiments: the named configurations of one seed.
        differences: differences from the paper.
        exhibits, claims: functions of the finished runs.
        conditions: conditions of the paper's regime, each asked of every claim of its kinds.
        held_against: kind of the reference, one of ``reports.reference_terms.KINDS``.
        looks: number of looks at the verdicts while seeds were added, at scales with more than
            one; each counts in the correction over all claims.
        folder: its folder, with ``registered.toml``; None if it registers nothing.
        curves: headline claims as curves over scale, each run by itself (``--only``).
    """

    id: str
    corpus: str
    reference: Mapping[str, str]
    seeds: Mapping[str, int]
    experiments: Callable[[Subject, int], Mapping[str, Configuration]]
    differences: Callable[[Subject], Differences]
    exhibits: Sequence[Maker[Subject, Exhibit]]
    claims: Sequence[Maker[Subject, Claim]]
    conditions: Conditions = field(default_factory=lambda: Conditions({}))
    held_against: str = "paper"
    looks: Mapping[str, int] = field(default_factory=dict[str, int])
    folder: Path | None = None
    curves: tuple[Scaling, ...] = ()

    def curve(self, only: Sequence[str]) -> Scaling | None:
        """The curve that ``only`` names; None if it names none.

        Raises:
            UserError: it names a curve and something else.
        """
        curves = [curve for curve in self.curves if curve.name in only]
        if curves and len(only) > 1:
            reason = f"{','.join(only)!r} is not allowed; allowed: {curves[0].name} by itself"
            raise UserError(f"--only: {reason}")
        return curves[0] if curves else None

    def seeds_of(self, scale: str, count: int | None = None) -> tuple[int, ...]:
        """``count`` seeds from the scale's first; the scale's default number if None."""
        table: dict[str, Any] = self.registration.table if self.registration else {}
        start: int = table.get("seeds", {}).get(scale, [FIRST_SEEDS[scale]])[0]
        return tuple(range(start, start + (count or self.seeds[scale])))

    @cached_property
    def registration(self) -> Registration | None:
        """What is registered; None if nothing is.

        Raises:
            UserError: the file is not TOML.
        """
        return self.folder and Registration(self.folder / "registered.toml")

    def select_makers(
        self, only: Sequence[str], scale: str, everything: bool = False
    ) -> tuple[list[Maker[Subject, Exhibit]], list[Maker[Subject, Claim]]]:
        """The exhibits named by ``only`` (the scale's own if empty) and the claims they carry.

        At smoke scale nothing is judged.

        Args:
            only: short names of exhibits.
            scale: the scale.
            everything: whether those that are made on request at this scale are made without being
                named, too.

        Raises:
            UserError: no such exhibit.
        """
        claims = [] if scale == "smoke" else list(self.claims)
        names = {maker.id.split(".", 1)[1]: maker for maker in self.exhibits}
        for name in only:
            if name not in names:
                alone = (curve.name for curve in self.curves if curve.scale == scale)
                raise name_error("--only", name, (*names, *alone))
        if not only:
            makers = [
                maker for maker in self.exhibits if everything or scale not in maker.on_request
            ]
            return makers, claims
        exhibits = [names[name] for name in only]
        # A claim is judged only if the chosen exhibits need all of its runs anyway.
        settings = {setting for maker in exhibits for setting in maker.needs}
        return exhibits, [claim for claim in claims if settings.issuperset(claim.needs)]


def levels(sizes: Sequence[int]) -> str:
    """The sizes of a network's levels, as reports write them."""
    return "–".join(map(str, sizes))
