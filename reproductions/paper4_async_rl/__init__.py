"""Paper 4: asynchronous reinforcement learning (Fu et al., AReaL)."""

from __future__ import annotations

from pathlib import Path

from reproductions.paper import NO_CORPUS, Paper
from reproductions.paper4_async_rl.claims import CLAIMS, CONDITIONS
from reproductions.paper4_async_rl.exhibits import EXHIBITS
from reproductions.paper4_async_rl.experiments import PRESETS, REPORTED, differences, experiments

PAPER = Paper(
    id="paper4",
    corpus=NO_CORPUS,
    reference={name: REPORTED["paper"][name] for name in ("title", "authors")},
    seeds={scale: preset.seeds for scale, preset in PRESETS.items()},
    experiments=experiments,
    differences=differences,
    exhibits=EXHIBITS,
    claims=CLAIMS,
    conditions=CONDITIONS,
    folder=Path(__file__).parent,
)
