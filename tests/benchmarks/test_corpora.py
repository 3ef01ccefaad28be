"""How fast corpora are made and aligned, each beside the least that such work must do."""

import numpy as np
import pytest

from data_synth import continuous, presets
from data_synth.align import Aligner
from data_synth.features import utterance_features
from harness.base.seeds import stream


@pytest.fixture(scope="module")
def maker():
    made = continuous.Maker(presets.recipe("mandarin-like", "smoke"))
    made.utterance("train", 0)  # compiles
    return made


def test_synthetic_sentences_over_drawing_their_noise(compare, maker):
    shape = maker.chunk("train", 0, 10).features.shape
    noise = lambda: stream(0, "benchmark noise").normal(size=(10, *shape))  # noqa: E731
    compare(lambda: maker.chunk("train", 0, 10), noise, at_most=3.4)


def test_plp_features_over_their_fourier_transforms(compare):
    signal = 1000 * stream(0, "benchmark sound").normal(size=10 * 16_000)
    windows = np.lib.stride_tricks.sliding_window_view(signal, 400)[::160]
    features = lambda: utterance_features(signal, 16_000)  # noqa: E731
    assert features().shape == (998, 39)
    compare(features, lambda: np.fft.rfft(windows, 512), at_most=14.0)


def test_forced_alignment_over_numpys_pass_along_a_chain(compare, maker):
    chunk = maker.chunk("train", 0, 5)
    aligner = Aligner(maker.lexicon, (0, 1, 2))
    likely = np.log(np.eye(maker.senones.tree.n_targets)[chunk.targets] + 1e-9)

    def align():
        return aligner.align_all(chunk.utterances, lambda start, rows: likely[start : start + rows])

    def chain() -> None:
        best = np.zeros(likely.shape[1])
        for row in likely:
            best[1:] = np.maximum(best[1:], best[:-1])
            best += row

    assert (align().targets == chunk.targets).all()
    compare(align, chain, at_most=4.0)
