"""The acoustic scale of test sets: each model's own, by an even part of the development set."""

from __future__ import annotations

import numpy as np
import pytest

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.scoring import recognise, tune, word_errors
from harness.base.seeds import stream
from harness.speech import evaluation
from harness.speech.evaluation import BEAM, ORDER, Sentences

LEXICON = {"yes": (0, 1), "no": (2, 3), "perhaps": (0, 3, 1)}
TEXT = (("yes", "no"), ("no",), ("yes", "yes", "no"), ("perhaps", "no"), ("no", "yes"))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Ten development sentences, five of a test set; features number the frames."""
    words = [*TEXT, *TEXT, *TEXT]
    targets = [np.repeat([t for w in said for t in LEXICON[w]], 3) for said in words]
    frames = np.array([len(t) for t in targets])
    table = Utterances(
        np.array([str(i) for i in range(15)]),
        np.full(15, "s"),
        np.array(["dev"] * 10 + ["clean"] * 5),
        np.cumsum(frames) - frames,
        frames,
        tuple(words),
    )
    every = np.concatenate(targets).astype(np.int32)
    features = np.arange(len(every), dtype=np.float32)[:, None]
    return Corpus("tiny", features, every, table, LEXICON, lm_text=TEXT)


def scores_with(corpus, asked, gain):
    """A model that tells the targets under noise, with scores of some size; notes who asks."""

    def scores_of(part: Utterances) -> list[np.ndarray]:
        asked.append(part.id.tolist())
        scores = []
        for start, frames in zip(part.start.tolist(), part.frames.tolist(), strict=True):
            rows = corpus.targets[start : start + frames]
            noise = stream(8, "noise", start).normal(size=(frames, 4))
            scores.append(gain * (3.0 * np.eye(4)[rows] + 4.0 * noise))
        return scores

    return scores_of


def test_a_scale_is_tuned_on_development_utterances_that_lie_evenly(corpus, monkeypatch):
    monkeypatch.setattr(evaluation, "TUNED_ON", 4)
    asked = []
    scores_of, recogniser = scores_with(corpus, asked, 1.0), Sentences(corpus)
    tuned = recogniser.tune_decoding(scores_of)
    errors = recogniser.errors("clean", scores_of, tuned)
    assert asked == [["0", "3", "6", "9"], ["10", "11", "12", "13", "14"]]

    graph = decoding_graph(train(TEXT, ORDER), Lexicon.from_entries(LEXICON))
    dev, clean = corpus.split("dev").take(np.arange(0, 10, 3)), corpus.split("clean")
    assert tuned == tune(dev.words, scores_of(dev), graph, insertions=(0.0,), beam=BEAM)
    heard = recognise(graph, scores_of(clean), tuned.best.scale, BEAM)
    assert errors.tolist() == word_errors(clean.words, [h.words for h in heard]).errors.tolist()


def test_one_recogniser_gives_every_model_the_scale_it_would_give_it_alone(corpus):
    one, other = scores_with(corpus, [], 1.0), scores_with(corpus, [], 10.0)
    shared = Sentences(corpus)
    for scores_of in (one, other, one):
        alone = Sentences(corpus)
        tuned = shared.tune_decoding(scores_of)
        assert tuned == alone.tune_decoding(scores_of)
        found = shared.errors("clean", scores_of, tuned)
        assert found.tolist() == alone.errors("clean", scores_of, tuned).tolist()
    assert shared.tune_decoding(one).best.scale > shared.tune_decoding(other).best.scale
