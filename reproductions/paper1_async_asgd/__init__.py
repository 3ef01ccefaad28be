"""Paper 1: asynchronous averaged SGD (You and Xu)."""

from __future__ import annotations

from reproductions.paper import Paper
from reproductions.paper1_async_asgd.beyond import BEYOND
from reproductions.paper1_async_asgd.claims import CLAIMS
from reproductions.paper1_async_asgd.exhibits import EXHIBITS
from reproductions.paper1_async_asgd.experiments import (
    PRESETS,
    REPORTED,
    differences,
    experiments,
)

PAPER = Paper(
    "paper1",
    {name: REPORTED["paper"][name] for name in ("title", "authors")},
    {scale: preset.seeds for scale, preset in PRESETS.items()},
    experiments,
    differences,
    (*EXHIBITS, *BEYOND),
    CLAIMS,
)
