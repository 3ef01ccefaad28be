"""What each scale decides, and what was fixed on development data before any verdict."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.acoustics.decoder import Beam
from harness.algorithms.async_sgd import AsyncSgd, Gradients
from harness.algorithms.stale import DelayCompensated, StalenessAware

FOLDER = Path(__file__).parent
REPORTED: dict[str, Any] = tomllib.loads((FOLDER / "reported.toml").read_text(encoding="utf-8"))
CLUSTER = FOLDER.parent / "clusters" / "distbelief.toml"
SMALL, LARGE = "voice-search-small", "voice-search-large"


@dataclass(frozen=True)
class Preset:
    """What a scale decides.

    Args:
        hidden: units of the hidden layers (the paper: four of 1024).
        large_hidden: the same of the large task (the paper: eight layers).
        seeds: how many by default.
        minibatch: frames, of cross-entropy training (the paper: 200).
        ce_passes: of cross-entropy training.
        slots: of an MMI minibatch (the paper: 32).
        rates: of each setting that is tuned, of summed gradients; see `TUNED`.
        passes: of every MMI run whose error on the test set is compared.
        evaluations: a pass.
        held_out: utterances.
        fetch: the intervals of each fetch sweep, in passes over the corpus; see `intervals`.
        fetch_rate: of these sweeps. The paper has the largest that is stable with fifty replicas.
        halvings: of the search for a largest stable rate.
    """

    hidden: tuple[int, ...]
    large_hidden: tuple[int, ...]
    seeds: int
    minibatch: int
    ce_passes: int
    slots: int
    rates: Mapping[str, float]
    passes: int
    evaluations: int
    held_out: int
    fetch: Mapping[str, tuple[float, ...]]
    fetch_rate: float
    halvings: int


TUNED = ("one", "ten", "fifty", "last", "large", "full", "on the fly", "none")
"""What has a rate of its own: replicas, layers and task of MMI; shufflings of cross-entropy."""
TRIED = (0.5, 1.0, 2.0)
"""Multiples of each rate that the development seed tries."""
SWEEPS = {"last": "last layer", "all": "all layers", "no silence": "last layer, silence fixed"}
INTERVALS = 5
"""How many every sweep has: exhibits name them by number."""


def _same(*intervals: float) -> Mapping[str, tuple[float, ...]]:
    return dict.fromkeys(SWEEPS, intervals)


def _rates(*rates: float) -> Mapping[str, float]:
    return dict(zip(TUNED, rates, strict=True))


PRESETS = {
    "smoke": Preset(
        hidden=(64,) * 4, large_hidden=(64,) * 8, seeds=2, minibatch=50, ce_passes=3, slots=8,
        rates=_rates(0.0002, 0.0001, 0.0001, 0.0001, 0.00004, 0.002, 0.002, 0.002),
        passes=1, evaluations=1, held_out=10,
        fetch=_same(0.04, 0.075, 0.15, 0.3, 0.6), fetch_rate=0.0001, halvings=2,
    ),
    "laptop": Preset(
        hidden=(128,) * 4, large_hidden=(128,) * 8, seeds=3, minibatch=100, ce_passes=4, slots=8,
        rates=_rates(0.0003, 0.0003, 0.000075, 0.0006, 0.0003, 0.002, 0.002, 0.002),
        passes=1, evaluations=4, held_out=100,
        fetch=_same(0.04, 0.075, 0.15, 0.3, 0.6), fetch_rate=0.0003, halvings=3,
    ),
    "overnight": Preset(
        hidden=(128,) * 4, large_hidden=(128,) * 8, seeds=8, minibatch=100, ce_passes=4, slots=4,
        rates=_rates(0.0003, 0.0003, 0.0002, 0.0006, 0.0002, 0.002, 0.001, 0.001),
        passes=3, evaluations=6, held_out=200,
        fetch={
            "last": (0.035, 0.071, 0.12, 0.19, 0.38),
            "all": (0.0073, 0.015, 0.024, 0.039, 0.078),
            "no silence": (0.035, 0.071, 0.12, 0.19, 0.38),
        },
        fetch_rate=0.0004,
        halvings=4,
    ),
    "gpu": Preset(
        hidden=(512,) * 4, large_hidden=(512,) * 8, seeds=3, minibatch=200, ce_passes=4, slots=16,
        rates=_rates(0.0003, 0.00015, 0.00015, 0.00015, 0.00004, 0.0005, 0.0005, 0.00025),
        passes=3, evaluations=8, held_out=200,
        fetch=_same(0.005, 0.01, 0.02, 0.04, 0.08), fetch_rate=0.00015, halvings=4,
    ),
    "paper": Preset(
        hidden=(1024,) * 4, large_hidden=(2560,) * 8, seeds=3, minibatch=200, ce_passes=10,
        slots=32, rates=_rates(0.002, 0.001, 0.001, 0.001, 0.001, 0.0005, 0.0005, 0.00025),
        passes=5, evaluations=20, held_out=750,
        fetch=_same(0.005, 0.01, 0.02, 0.04, 0.08), fetch_rate=0.001, halvings=4,
    ),
}  # fmt: skip


def replicas(n: int) -> str:
    """So many, in words."""
    return f"{n} replica{'s' * (n > 1)}"


@dataclass(frozen=True)
class Cell:
    """Where the largest stable rate is sought.

    Args:
        replicas: decoders and trainers.
        slots: as a multiple of the scale's.
        cancel_below: the criterion's threshold: the larger, the fewer frames are kept.
    """

    replicas: int
    slots: float = 1.0
    cancel_below: float = 0.002

    def rival(self, name: str) -> str:
        """The setting of an algorithm in its place, by what that is called."""
        return f"{self.name}, {name}"

    @property
    def name(self) -> str:
        """Its setting."""
        return f"law {replicas(self.replicas)}, slots × {self.slots:g}, τ {self.cancel_below:g}"


FITTED = (Cell(1), Cell(10), Cell(50), Cell(10, 0.5), Cell(10, 2.0), Cell(50, 2.0))
HELD_OUT = (Cell(25), Cell(50, 0.5), Cell(25, 2.0), Cell(25, 1.0, 0.05))
CELLS = (*FITTED, *HELD_OUT)
"""Of the stability law: those it is fitted on, and those it is held against."""
STRENGTHS = (1.0, 100.0, 10_000.0)
"""λ of the delay compensation that are tried, in `STRENGTHENED`; of the summed gradient."""
STRENGTHENED = Cell(50)
STRENGTHENED_BY = {one: STRENGTHENED.rival(f"λ {one:g}") for one in STRENGTHS}
"""Their settings."""
STRENGTH = 1.0
"""The one that the held-out cells are asked with; decision 83 says what it was chosen from."""
VERSIONS = 256
"""That a compensating server keeps, more than fifty replicas ever miss: 0.16 GB overnight."""
RIVALS: Mapping[str, AsyncSgd | Gradients] = {
    "staleness-aware rates": StalenessAware(),
    "delay compensation": DelayCompensated(STRENGTH, VERSIONS),
}
"""Algorithms for stale gradients, which are asked for their largest rates in `ASKED`."""
ALIKE = (Cell(10), Cell(25), Cell(50))
"""Cells that differ in replicas alone."""
ASKED = (*HELD_OUT, *(cell for cell in ALIKE if cell not in HELD_OUT))
MOST_STATES = 10_000
"""States of the words' loop up to which sums over all of it are cheaper than wide searches."""
LATTICES = Beam(width=10.0, max_active=2000, lattice=6.0)
"""Of lattices where the loop has more; a frame of 39,000 states then takes 0.26 ms, not 1.5."""
KEPT = 0.2
"""Share of frames that ten replicas keep overnight; it says how long a pass takes."""
DECODE_COST = 1.27
"""What decoding a frame takes, in frames trained on; measured with the paper's sizes."""
KAPPA = 0.3
NUMERATOR = "sum"
"""The paper says neither; settled on development data."""
