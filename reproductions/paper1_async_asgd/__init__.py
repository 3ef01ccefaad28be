"""Paper 1: asynchronous averaged SGD (You and Xu)."""

from __future__ import annotations

from pathlib import Path

from harness.experiment.contract import Configuration
from reproductions.paper import Paper, Subject
from reproductions.paper1_async_asgd.claims import CLAIMS, CONDITIONS
from reproductions.paper1_async_asgd.exhibits import EXHIBITS
from reproductions.paper1_async_asgd.experiments import (
    PRESETS,
    REPORTED,
    differences,
    experiments,
    minibatch_timings,
    reading_timings,
)
from reproductions.paper1_async_asgd.scaling import SCALING
from reproductions.paper1_async_asgd.tuning import TUNING, tuning_configs


def _experiments(subject: Subject, seed: int) -> dict[str, Configuration]:
    """The paper's own runs, timings beyond them, and the tuning runs."""
    timings = minibatch_timings(seed) | reading_timings(seed)
    return {**experiments(subject, seed), **timings, **tuning_configs(subject)}


PAPER = Paper(
    id="paper1",
    corpus="mandarin-like",
    reference={name: REPORTED["paper"][name] for name in ("title", "authors")},
    seeds={scale: preset.seeds for scale, preset in PRESETS.items()},
    looks={"overnight": 2},  # at nine seeds, and at fifteen: README
    experiments=_experiments,
    differences=differences,
    exhibits=(*EXHIBITS, *TUNING),
    claims=CLAIMS,
    conditions=CONDITIONS,
    folder=Path(__file__).parent,
    curves=(SCALING,),
)
