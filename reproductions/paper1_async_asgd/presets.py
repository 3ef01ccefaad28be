"""What a scale decides about paper 1: the network, the data's cut, and what was tuned."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
REPORTED: dict[str, Any] = tomllib.loads((FOLDER / "reported.toml").read_text(encoding="utf-8"))
RATE: float = REPORTED["paper"]["first_rate"]


class Chosen(NamedTuple):
    """A method's first rate, and its one other setting; ``tuning`` says which that is."""

    rate: float
    other: float


AS_PRINTED: Mapping[str, Chosen] = {
    "hand": Chosen(RATE, 0.01),
    "adapt": Chosen(RATE, 1.0),
    "search": Chosen(RATE, 0.03),
    "multi_pass": Chosen(RATE, 0.005),
}
"""The paper's rate for every method, and our defaults of what it leaves open: nothing is tuned."""


@dataclass(frozen=True)
class Preset:
    """What a scale decides.

    Args:
        hidden: units of the hidden layers (the paper: seven of 2048).
        minibatch: frames, where the paper has 256. A small corpus gets a smaller one so
            that a pass still makes thousands of folds.
        folds: the most folds a pass makes; a corpus too large for them gets minibatches
            twice the size, or four times, and so on.
        chunk: the smallest chunk's share of the training set (the paper: 1 h of 500);
            table 1's others are as many times larger as in the paper.
        subset: figure 2's share of the training set (the paper: 100 h of 500).
        seeds: how many by default.
        baseline_passes: the multi-pass baseline's limit; its own rule stops it earlier.
        evaluations: development scores a pass; 50 are ten in its first fifth.
        chosen: what development data chose, by method.
    """

    hidden: tuple[int, ...]
    minibatch: int
    folds: float
    chunk: float
    subset: float
    seeds: int
    baseline_passes: int
    evaluations: int
    chosen: Mapping[str, Chosen]


AT_LAPTOP: Mapping[str, Chosen] = {
    "hand": Chosen(0.032, 0.001),
    "adapt": Chosen(0.032, 1.0),
    "search": Chosen(RATE, 0.03),
    "multi_pass": Chosen(0.004, 0.005),
}
AT_OVERNIGHT: Mapping[str, Chosen] = {
    "hand": Chosen(RATE, 0.003),
    "adapt": Chosen(RATE, 8.0),
    "search": Chosen(RATE, 0.01),
    "multi_pass": Chosen(0.004, 0.001),
}
PRESETS = {
    "smoke": Preset((192,) * 2, 16, 5000, 1 / 25, 1.0, 2, 16, 10, AT_LAPTOP),
    "laptop": Preset((128,) * 3, 32, math.inf, 1 / 100, 1.0, 3, 20, 50, AT_LAPTOP),
    "overnight": Preset((64,) * 3, 32, math.inf, 1 / 100, 1.0, 9, 20, 50, AT_OVERNIGHT),
    "gpu": Preset((1024,) * 7, 128, math.inf, 1 / 500, 0.2, 3, 16, 50, AS_PRINTED),
    "paper": Preset((2048,) * 7, 256, math.inf, 1 / 500, 0.2, 3, 20, 50, AS_PRINTED),
}
