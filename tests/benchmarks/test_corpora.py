"""How fast corpora are made and aligned, each beside the least that such work must do."""

from __future__ import annotations

import time

import numpy as np
import pytest

from data_synth import continuous, presets
from data_synth.align import Aligner
from data_synth.features import utterance_features
from harness.base.seeds import stream

pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.fixture(scope="module")
def maker():
    made = continuous.Maker(presets.recipe("mandarin-like", "smoke"))
    made.utterance("train", 0)  # compiles
    return made


@pytest.mark.benchmark(group="corpus frames")
def test_synthetic_sentences_over_drawing_their_noise(benchmark, over, maker):
    chunk = benchmark(maker.chunk, "train", 0, 10)
    benchmark.extra_info["frames"] = len(chunk.targets)
    assert len(chunk.utterances) == 10
    over(lambda: stream(0, "benchmark noise").normal(size=(10, *chunk.features.shape)))


@pytest.mark.benchmark(group="corpus frames")
def test_plp_features_over_their_fourier_transforms(benchmark, over):
    signal = 1000 * stream(0, "benchmark sound").normal(size=10 * 16_000)
    features = benchmark(utterance_features, signal, 16_000, "plp")
    benchmark.extra_info["frames"] = len(features)
    assert features.shape == (998, 39)
    windows = np.lib.stride_tricks.sliding_window_view(signal, 400)[::160]
    over(lambda: np.fft.rfft(windows, 512))


@pytest.mark.benchmark(group="corpus frames")
def test_forced_alignment_over_numpys_pass_along_a_chain(benchmark, over, maker):
    chunk = maker.chunk("train", 0, 5)
    aligner = Aligner(maker.lexicon, (0, 1, 2))
    likely = np.log(np.eye(maker.senones.tree.n_targets)[chunk.targets] + 1e-9)
    scores = lambda start, rows: likely[start : start + rows]  # noqa: E731
    aligner.align_all(chunk.utterances, scores)  # builds the graphs
    found = benchmark(aligner.align_all, chunk.utterances, scores)
    benchmark.extra_info["frames"] = len(chunk.targets)
    assert (found.targets == chunk.targets).all()

    def along_a_chain():
        best = np.zeros(likely.shape[1])
        for row in likely:
            best[1:] = np.maximum(best[1:], best[:-1])
            best += row

    over(along_a_chain)
