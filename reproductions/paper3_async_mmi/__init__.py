"""Paper 3: asynchronous MMI sequence training (Heigold et al.)."""

from __future__ import annotations

from pathlib import Path

from reproductions.paper import Paper
from reproductions.paper3_async_mmi.claims import CLAIMS, CONDITIONS
from reproductions.paper3_async_mmi.exhibits import EXHIBITS
from reproductions.paper3_async_mmi.experiments import (
    PRESETS,
    REPORTED,
    SMALL,
    differences,
    experiments,
)
from reproductions.paper3_async_mmi.scaling import SCALING

PAPER = Paper(
    id="paper3",
    corpus=SMALL,
    reference={name: REPORTED["paper"][name] for name in ("title", "authors")},
    seeds={scale: preset.seeds for scale, preset in PRESETS.items()},
    experiments=experiments,
    differences=differences,
    exhibits=EXHIBITS,
    claims=CLAIMS,
    conditions=CONDITIONS,
    folder=Path(__file__).parent,
    curves=(SCALING,),
)
