"""Staleness and the optimizer: no paper, but predictions that were registered before the runs."""

from __future__ import annotations

from reproductions.paper import Paper
from reproductions.staleness.claims import CLAIMS, CONDITIONS
from reproductions.staleness.exhibits import EXHIBITS
from reproductions.staleness.experiments import (
    FOLDER,
    LOOKS,
    PRESETS,
    REGISTERED,
    differences,
    experiments,
)

PAPER = Paper(
    id="staleness",
    corpus="parametric",
    reference={name: REGISTERED["paper"][name] for name in ("title", "authors")},
    seeds={scale: preset.seeds for scale, preset in PRESETS.items()},
    experiments=experiments,
    differences=differences,
    exhibits=EXHIBITS,
    claims=CLAIMS,
    conditions=CONDITIONS,
    held_against="prediction",
    looks=LOOKS,
    folder=FOLDER,
)
