"""A corpus of five utterances, made of random numbers, and what tests of corpora share."""

import os
import wave
from pathlib import Path

import numpy as np
import pytest

from data_synth.align import Aligner
from data_synth.corpus import Corpus, Utterances, join
from harness.base.seeds import stream


def utterances(frames, split="train", start=0):
    frames = np.array(frames, np.int64)
    n = len(frames)
    return Utterances(
        id=np.array([f"{split}-{i}" for i in range(n)]),
        speaker=np.array([f"s{i % 2}" for i in range(n)]), split=np.full(n, split),
        start=start + np.cumsum(frames) - frames, frames=frames,
        words=tuple(("one", "two") if i % 2 else ("one",) for i in range(n)),
    )  # fmt: skip


def small_corpus():
    table = join([utterances([3, 1, 4]), utterances([2, 5], "dev", 8)])
    rng = stream(0, "small corpus")
    return Corpus(
        name="small", features=rng.normal(size=(15, 2)).astype(np.float32),
        targets=rng.integers(5, size=15).astype(np.int32), utterances=table,
        lexicon={"one": (2, 3), "two": (3, 4)}, silence=(0, 1),
    )  # fmt: skip


def write_wav(path, samples, rate=8000):
    """A file of whole numbers of 16 bits, one channel."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes(np.asarray(samples).astype("<i2").tobytes())


def recorded_digits():
    """The folder of the recorded digits; skips where there is none."""
    root = os.environ.get("LAGBENCH_CORPORA")
    if not root or not (Path(root) / "fsdd" / "recordings").is_dir():
        pytest.skip("recorded digits are absent: LAGBENCH_CORPORA names no folder with fsdd/")
    return Path(root) / "fsdd" / "recordings"


def check_alignment(corpus):
    """Every utterance walks through silence, its words' states and silence."""
    likely = np.log(np.eye(corpus.n_targets)[corpus.targets] + 1e-9)
    aligner = Aligner(corpus.lexicon, corpus.silence)
    walks = aligner.align_all(corpus.utterances, lambda start, n: likely[start : start + n])
    assert (walks.targets == corpus.targets).all()


def check_noise(corpus):
    """The noisy test set is the clean one, said by the same people, in another background."""
    clean, noise = corpus.split("clean"), corpus.split("noise")
    assert clean.words == noise.words
    assert clean.speaker.tolist() == noise.speaker.tolist()
    assert clean.frames.tolist() == noise.frames.tolist()
    rows, there = (slice(u.start[0], u.start[0] + u.total_frames) for u in (clean, noise))
    assert (corpus.targets[rows] == corpus.targets[there]).all()
    assert (corpus.features[rows] != corpus.features[there]).mean() > 0.9
