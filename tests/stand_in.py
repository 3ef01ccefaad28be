"""Corpora of one short utterance a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from data_synth.corpus import Corpus, Utterances
from data_synth.presets import PRESETS

FRAMES = 24


def utterances(splits: Sequence[str], frames: int = FRAMES, word: str = "yes") -> Utterances:
    """One utterance of one word for each of the splits."""
    n = len(splits)
    return Utterances(
        np.array([f"u{i}" for i in range(n)]),
        np.array(["s"] * n),
        np.array(splits),
        np.arange(n, dtype=np.int64) * frames,
        np.full(n, frames, np.int64),
        ((word,),) * n,
    )


def stand_in(name: str) -> Corpus:
    """A corpus which has a name and sizes and no speech."""
    known = PRESETS[name]().conditions if name in PRESETS else ()
    tests = tuple(each.name for each in known) or ("clean", "noise")
    table = utterances(("train", "dev", *tests))
    total = table.total_frames
    features, targets = np.zeros((total, 40), np.float32), np.zeros(total, np.int32)
    lexicon: dict[str, tuple[int, ...]] = {"yes": (0, 1), "no": (2,)}
    made = Corpus(name, features, targets, table, lexicon, tests=tests)
    return replace(made, stored_fingerprint="0" * 64)


def noise_of(splits: Sequence[str], dim: int, n_targets: int) -> Corpus:
    """A corpus of noise, of so many features and targets as a paper has."""
    table, draw, last = utterances(splits), np.random.default_rng(0), n_targets - 1
    features = draw.standard_normal((table.total_frames, dim)).astype(np.float32)
    targets = draw.choice([0, 1, last], table.total_frames).astype(np.int32)
    return Corpus("tiny", features, targets, table, {"yes": (0, 1), "no": (last,)})
