"""Paper 2: natural gradient and model averaging (Su, Chen and Xu)."""

from __future__ import annotations

from reproductions.paper import Paper
from reproductions.paper2_ng_averaging.beyond import BEYOND
from reproductions.paper2_ng_averaging.claims import CLAIMS
from reproductions.paper2_ng_averaging.exhibits import FIGURES, PREDICTION
from reproductions.paper2_ng_averaging.experiments import differences, experiments
from reproductions.paper2_ng_averaging.law_exhibits import LAW
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.paper2_ng_averaging.presets import SEEDS
from reproductions.paper2_ng_averaging.tables import TABLES

PAPER = Paper(
    id="paper2",
    corpus="conversational",
    reference={name: REPORTED["paper"][name] for name in ("title", "authors")},
    seeds=SEEDS,
    experiments=experiments,
    differences=differences,
    exhibits=(*FIGURES, *TABLES, *BEYOND, *LAW, *PREDICTION),
    claims=CLAIMS,
    looks={"overnight": 3},  # at three seeds, at six, and with pretraining's own length
)
