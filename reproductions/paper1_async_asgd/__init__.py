"""Paper 1: asynchronous averaged SGD (You and Xu)."""

from __future__ import annotations

from harness.execution.grid import Config
from reproductions.paper import Paper, Subject
from reproductions.paper1_async_asgd.beyond import BEYOND
from reproductions.paper1_async_asgd.claims import CLAIMS
from reproductions.paper1_async_asgd.exhibits import EXHIBITS
from reproductions.paper1_async_asgd.experiments import (
    PRESETS,
    REPORTED,
    differences,
    experiments,
)
from reproductions.paper1_async_asgd.underdetermined import UNDERDETERMINED, timings


def _experiments(subject: Subject, seed: int) -> dict[str, Config]:
    """The paper's own runs and those of the three readings."""
    return {**experiments(subject, seed), **timings(seed)}


PAPER = Paper(
    "paper1",
    {name: REPORTED["paper"][name] for name in ("title", "authors")},
    {scale: preset.seeds for scale, preset in PRESETS.items()},
    _experiments,
    differences,
    (*EXHIBITS, *BEYOND, *UNDERDETERMINED),
    CLAIMS,
)
