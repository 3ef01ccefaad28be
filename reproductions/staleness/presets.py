"""What each scale decides, and what was fixed on development data before any verdict."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
REGISTERED: dict[str, Any] = tomllib.loads((FOLDER / "registered.toml").read_text(encoding="utf-8"))
PROBLEMS = {
    "text": "characters of a book, transformer",
    "digits": "handwritten digits, perceptron",
    "acoustic": "frames of speech, acoustic model",
}
NATURAL = "natural gradient"
OPTIMIZERS = ("SGD", "momentum", "AdamW", "Muon", NATURAL)
TAUS = (0, 1, 4, 16, 64)
CLUSTERS = ("wide-area-10", "heterogeneous-10k")
"""Unequal cards at ten sites, over again for more; and workers that differ each from all others."""
CLUSTER_TAUS = (4, 16, 64)
"""τ + 1 workers, each with one contribution under way, are τ versions late in the mean."""
MOMENTUM = 0.9
LADDER = 2.0
"""The factor between the rates that are tried: that of the search, which judges may not import."""
LOOKS = {"laptop": 2}
"""At verdicts, of a scale: at three seeds, and six, after three left most predictions undecided."""
EDGES = {"SGD": 0.0, "momentum": MOMENTUM}
"""Optimizers whose largest stable rate is looked for, and their momentum: theory knows of these."""


@dataclass(frozen=True)
class Preset:
    """What a scale decides.

    Args:
        seeds: how many by default.
        folds: of every run, a minibatch each.
        minibatches: examples (frames of speech) in a minibatch, by problem.
        above: rungs that a search of `EDGES` climbs above the best rate, at most.
    """

    seeds: int
    folds: int
    minibatches: Mapping[str, int]
    above: int


PRESETS = {
    "smoke": Preset(1, 70, {"text": 2, "digits": 16, "acoustic": 32}, 4),
    "laptop": Preset(6, 400, {"text": 4, "digits": 32, "acoustic": 64}, 12),
}


def cell(problem: str, optimizer: str, tau: int, cluster: str = "") -> str:
    """The setting of a search for rates: fixed staleness, or that of a cluster's workers."""
    where = f"{tau + 1} workers of {cluster}" if cluster else f"τ = {tau}"
    return f"{problem}, {optimizer}, {where}"


CELLS = tuple(
    (problem, optimizer, tau) for problem in PROBLEMS for optimizer in OPTIMIZERS for tau in TAUS
)
ON_CLUSTERS = tuple(
    (problem, optimizer, tau, cluster)
    for problem in PROBLEMS
    for cluster in CLUSTERS
    for optimizer in OPTIMIZERS
    for tau in CLUSTER_TAUS
)
GUESSES: Mapping[str, Mapping[str, list[float]]] = tomllib.loads(
    (FOLDER / "guesses.toml").read_text(encoding="utf-8")
)
"""Where searches begin, by problem, optimizer and τ; they end elsewhere if it is better there."""


def guess(problem: str, optimizer: str, tau: int) -> float:
    """The first rate of a search."""
    return GUESSES[problem][optimizer][TAUS.index(tau)]
