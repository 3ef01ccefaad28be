"""Paper 2: natural gradient and model averaging (Su, Chen and Xu)."""

from __future__ import annotations

from pathlib import Path

from reproductions.paper import Paper
from reproductions.paper2_ng_averaging.claims import CLAIMS, CONDITIONS
from reproductions.paper2_ng_averaging.exhibits import EXHIBITS
from reproductions.paper2_ng_averaging.experiments import PRESETS, differences, experiments
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.paper2_ng_averaging.scaling import SCALING

PAPER = Paper(
    id="paper2",
    corpus="conversational",
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
