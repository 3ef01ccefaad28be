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
)
from reproductions.paper1_async_asgd.machines import scan_machines
from reproductions.paper1_async_asgd.regime import SCALING
from reproductions.paper1_async_asgd.tuning import TUNING, tuning_configs


def _experiments(subject: Subject, seed: int) -> dict[str, Configuration]:
    """The paper's own runs, the machines it may have had, and the tuning runs."""
    beside = {"machines": scan_machines(subject), **tuning_configs(subject)}
    return {**experiments(subject, seed), **beside}


PAPER = Paper(
    id="paper1",
    corpus="mandarin-like",
    reference={name: REPORTED["paper"][name] for name in ("title", "authors")},
    seeds={scale: preset.seeds for scale, preset in PRESETS.items()},
    experiments=_experiments,
    differences=differences,
    exhibits=(*EXHIBITS, *TUNING),
    claims=CLAIMS,
    conditions=CONDITIONS,
    folder=Path(__file__).parent,
    curves=(SCALING,),
)
