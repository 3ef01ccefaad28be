"""How fast corpora are made and aligned. ``extra_info`` has the frames of one round."""

from __future__ import annotations

import numpy as np
import pytest

from data_synth import continuous, presets
from data_synth.features import utterance_features
from data_synth.sentences import Aligner
from harness.seeds import stream


@pytest.fixture(scope="module")
def maker():
    made = continuous.Maker(presets.recipe("mandarin-like", "smoke"))
    made.utterance("train", 0)  # compiles
    return made


@pytest.mark.benchmark(group="corpus frames")
def test_synthetic_sentences(benchmark, maker):
    chunk = benchmark(maker.chunk, "train", 0, 10)
    benchmark.extra_info["frames"] = len(chunk.targets)
    assert len(chunk.utterances) == 10


@pytest.mark.benchmark(group="corpus frames")
def test_plp_features_of_recorded_speech(benchmark):
    signal = 1000 * stream(0, "benchmark sound").normal(size=10 * 16_000)
    features = benchmark(utterance_features, signal, 16_000, "plp")
    benchmark.extra_info["frames"] = len(features)
    assert features.shape == (998, 39)


@pytest.mark.benchmark(group="corpus frames")
def test_forced_alignment_of_sentences(benchmark, maker):
    chunk = maker.chunk("train", 0, 5)
    aligner = Aligner(maker.lexicon, (0, 1, 2))
    likely = np.log(np.eye(maker.senones.tree.n_targets)[chunk.targets] + 1e-9)
    scores = lambda start, rows: likely[start : start + rows]  # noqa: E731
    aligner.align_all(chunk.utterances, scores)  # builds the graphs
    found = benchmark(aligner.align_all, chunk.utterances, scores)
    benchmark.extra_info["frames"] = len(chunk.targets)
    assert (found.targets == chunk.targets).all()
