"""Paper 3: asynchronous MMI sequence training (Heigold et al.)."""

from __future__ import annotations

from pathlib import Path

from harness.experiment.contract import Configuration
from reproductions.paper import Paper, Subject
from reproductions.paper3_async_mmi.claims import CLAIMS, CONDITIONS
from reproductions.paper3_async_mmi.exhibits import EXHIBITS
from reproductions.paper3_async_mmi.experiments import (
    PRESETS,
    REPORTED,
    SMALL,
    differences,
    experiments,
)
from reproductions.paper3_async_mmi.machines import scan_machines
from reproductions.paper3_async_mmi.scaling import SCALING


def _experiments(subject: Subject, seed: int) -> dict[str, Configuration]:
    """The paper's own runs, and the machines it may have had."""
    return {**experiments(subject, seed), "machines": scan_machines(subject)}


PAPER = Paper(
    id="paper3",
    corpus=SMALL,
    reference={name: REPORTED["paper"][name] for name in ("title", "authors")},
    seeds={scale: preset.seeds for scale, preset in PRESETS.items()},
    experiments=_experiments,
    differences=differences,
    exhibits=EXHIBITS,
    claims=CLAIMS,
    conditions=CONDITIONS,
    folder=Path(__file__).parent,
    curves=(SCALING,),
)
