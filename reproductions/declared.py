"""Declaration of a paper's verdicts by its code: known before a run, and without a corpus.

Claims are made of runs that did not end, so they have statistics, bands and conditions and no
values. Configurations ask a corpus for its name and sizes only, which a stand-in has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_synth.corpus import Corpus, Utterances
from data_synth.presets import PRESETS
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.grid.grid import OF_A_SEED, drop_keys
from harness.judge.builders import build_claim
from harness.judge.registrations import require_registered
from harness.judge.results import Bounds, Claim
from harness.store import Run
from reproductions.paper import Paper, Subject

__all__ = ["check_registered", "declare", "stand_in"]

FRAMES = 24
"""Frames of each utterance of a stand-in."""

DIGITS = 12
"""Hexadecimal digits of a configuration's digest."""

APART = (
    *("cluster", "start", "network", "timed_layers", "device", "format", "evaluations", "test"),
    *("tested", "tested_models", *OF_A_SEED),
)
"""Keys that are not shown beside a setting's digest: long tables, and what changes no training."""

LATER = ("StabilityConfig", "StaleGradientConfig")
"""Kinds of settings that a paper has got after its first registration."""

DEPTH = 2
"""Tables within tables that entries are shown of."""


def stand_in(name: str) -> Corpus:
    """A corpus with one short utterance a split, which has a name and sizes and no speech."""
    known = PRESETS[name]().conditions if name in PRESETS else ()
    tests = tuple(each.name for each in known) or ("clean", "noise")
    splits = ("train", "dev", *tests)
    n = len(splits)
    table = Utterances(
        np.array([f"u{i}" for i in range(n)]),
        np.array(["s"] * n),
        np.array(splits),
        np.arange(n, dtype=np.int64) * FRAMES,
        np.full(n, FRAMES, np.int64),
        (("yes",),) * n,
    )
    features, targets = np.zeros((n * FRAMES, 40), np.float32), np.zeros(n * FRAMES, np.int32)
    lexicon: dict[str, tuple[int, ...]] = {"yes": (0, 1), "no": (2,)}
    made = Corpus(name, features, targets, table, lexicon, tests=tests)
    return replace(made, stored_fingerprint="0" * 64)


def declare(paper: Paper, scale: str) -> dict[str, Any]:
    """The content of a registration according to the code.

    Args:
        paper: the reproduction.
        scale: one of its scales.
    """
    seeds = paper.seeds_of(scale)
    subject = Subject(scale, stand_in(paper.corpus), seeds[0], "cpu", load=_stand_in_at)
    needed = list(dict.fromkeys(name for maker in paper.claims for name in maker.needs))
    configs = paper.experiments(subject, seeds[0])
    tables = {name: configs[name].to_dict() for name in needed}
    nothing = {name: [_make_unfinished_run(tables[name])] * len(seeds) for name in needed}
    made = [build_claim(maker, subject, nothing) for maker in paper.claims]
    claims = paper.conditions.ask(made)
    needs = {maker.id: maker.needs for maker in paper.claims}
    return {
        "corpus": paper.corpus,
        "seeds": list(seeds),
        "looks": paper.looks.get(scale, 1),
        "settings": _describe_settings(tables),
        "conditions": {
            name: {
                "statistic": each.statistic,
                "limit": _ends((each.rule.low, each.rule.high)),
                "source": each.source,
            }
            for name, each in paper.conditions.named.items()
        },
        "claims": {claim.id: _describe_claim(claim, needs[claim.id]) for claim in claims},
    }


def check_registered(paper: Paper, scale: str) -> None:
    """Refuse to run what is registered incompletely, or otherwise than the code has it.

    A scale without a registration passes.

    Raises:
        UserError: the entry that is missing or differs.
    """
    registered = paper.registration(scale)
    if registered is None:
        return
    mend = f"python -m reproductions.register {paper.id} --scale {scale} writes it from the code"
    require_registered(registered, declare(paper, scale), mend)


def _stand_in_at(name: str, scale: str, seed: int) -> Corpus:
    del scale, seed
    return stand_in(name)


def _make_unfinished_run(table: dict[str, Any]) -> Run:
    return Run(identity(table), table, "unfinished", {}, "", Path())


def _describe_claim(claim: Claim, needs: Sequence[str]) -> dict[str, Any]:
    """Statistic, settings, bands and conditions of a claim.

    Raises:
        UserError: nothing of it is judged, or two parts have one label.
    """
    judged = [part for part in claim.parts if part.band is not None]
    bands = {part.label or "value": _ends(part.band) for part in judged if part.band}
    if not bands or len(bands) != len(judged):
        raise UserError(
            f"{claim.id}: no band without runs; allowed: parts with labels of their own"
        )
    return {
        "statement": claim.statement,
        "statistic": claim.statistic,
        "settings": list(needs),
        "bands": bands,
        "conditions": sorted({each.name for each in claim.conditions}),
    }


def _ends(band: Bounds) -> list[float]:
    low, high = band
    ends = -math.inf if low is None else low, math.inf if high is None else high
    return [float(f"{end:.12g}") for end in ends]  # as a reader would write it


def _describe_settings(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The digest of each configuration, and its short entries that most others do not have.

    Settings of `LATER` kinds are no others: a claim that is added with some of these leaves the
    entries of all earlier settings as their runs were begun under.
    """
    digests = {
        name: identity(drop_keys(table, (*OF_A_SEED, "device")))[:DIGITS]
        for name, table in tables.items()
    }
    short = {name: dict(_short_entries(table)) for name, table in tables.items()}
    others = [name for name, table in tables.items() if table.get("is") not in LATER]
    counts = Counter(repr(item) for name in others for item in short[name].items())
    return {
        name: {"digest": digests[name]}
        | {k: v for k, v in short[name].items() if 2 * counts[repr((k, v))] <= len(others)}
        for name in tables
    }


def _short_entries(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Numbers and words of a table and of those in it, by dotted keys."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        if key in APART or prefix.count(".") >= DEPTH:
            continue
        if isinstance(value, Mapping):
            found += _short_entries(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, str | int | float):
            found.append((prefix + key, value))
    return found
