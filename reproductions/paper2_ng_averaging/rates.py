"""First rates of the mean gradient: found on development data, setting by setting.

Whatever is compared has a rate of its own, found by the same search (`sweep`). A scale that was
not searched takes the paper's rate, 0.32 times the workers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from harness.algorithms.schedules import Exponential, Halving
from harness.speech.frames import RunConfig
from reproductions.paper2_ng_averaging.prediction import FOLDER, REPORTED

RATES = FOLDER / "rates.toml"
SWEPT_AT = {"smoke": "laptop", "laptop": "laptop", "overnight": "overnight"}
"""Whose rates a scale uses."""
AROUND = {"half": 0.5, "chosen": 1.0, "double": 2.0}
"""What the report shows of a search: the chosen rate is the best of these multiples of it."""


@lru_cache
def found(scale: str) -> Mapping[str, Any]:
    """What the search at a scale found: ``rates`` by setting, and ``newbob_passes``."""
    return tomllib.loads(RATES.read_text(encoding="utf-8")).get(SWEPT_AT.get(scale, scale), {})


def rated(scale: str, name: str, config: RunConfig) -> RunConfig:
    """A setting at the rate that was found for it, or at the paper's."""
    paper = REPORTED["paper"]["first_rate"] * config.workers
    return with_rate(config, float(found(scale).get("rates", {}).get(name, paper)))


def newbob_passes(scale: str, otherwise: int) -> int:
    """How many passes newbob took on 16 workers on development data."""
    return int(found(scale).get("newbob_passes", otherwise))


def with_rate(config: RunConfig, rate: float) -> RunConfig:
    """The same run from another first rate."""
    assert isinstance(config.schedule, Exponential | Halving)
    return replace(config, schedule=replace(config.schedule, rate=float(rate)))


def tuning(name: str, config: RunConfig) -> dict[str, RunConfig]:
    """A setting around its rate, without tests, by what its runs are called."""
    return {
        tuned(name, label): replace(
            with_rate(config, factor * config.schedule.rate), tested="never"
        )
        for label, factor in AROUND.items()
    }


def tuned(name: str, label: str) -> str:
    """What a run of a search is called."""
    return f"{name}, {label} the rate" if label != "chosen" else f"{name}, its rate"
