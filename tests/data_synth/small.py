"""A corpus of five utterances, made of random numbers."""

from __future__ import annotations

import numpy as np

from data_synth.corpus import Corpus, Utterances, join
from harness.base.seeds import stream


def utterances(frames, split="train", start=0):
    frames = np.array(frames, np.int64)
    n = len(frames)
    return Utterances(
        id=np.array([f"{split}-{i}" for i in range(n)]),
        speaker=np.array([f"s{i % 2}" for i in range(n)]),
        split=np.full(n, split),
        start=start + np.cumsum(frames) - frames,
        frames=frames,
        words=tuple(("one", "two") if i % 2 else ("one",) for i in range(n)),
    )


def small_corpus():
    table = join([utterances([3, 1, 4]), utterances([2, 5], "dev", 8)])
    rng = stream(0, "small corpus")
    return Corpus(
        name="small",
        features=rng.normal(size=(15, 2)).astype(np.float32),
        targets=rng.integers(5, size=15).astype(np.int32),
        utterances=table,
        lexicon={"one": (2, 3), "two": (3, 4)},
        silence=(0, 1),
    )
