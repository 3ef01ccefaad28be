from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from data_synth.corpus import Corpus, Utterances
from harness.acoustics import tuning
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import train
from harness.acoustics.lexicon import Lexicon
from harness.acoustics.scoring import word_errors
from harness.acoustics.tuning import Trial, recognise, tune
from harness.seeds import stream

LEXICON = {"yes": (0, 1), "no": (2, 3), "perhaps": (0, 3, 1)}
TEXT = [("yes", "no"), ("no",), ("yes", "yes", "no"), ("perhaps", "no"), ("no", "yes")]


def corpus_of(splits):
    """Sentences of frames that sit in each target three times; features number the frames."""
    words = [w for w, _ in splits]
    targets = [np.repeat([t for w in ws for t in LEXICON[w]], 3) for ws in words]
    frames = np.array([len(t) for t in targets])
    table = Utterances(
        id=np.array([str(i) for i in range(len(words))]),
        speaker=np.full(len(words), "s"),
        split=np.array([split for _, split in splits]),
        start=np.cumsum(frames) - frames,
        frames=frames,
        words=tuple(words),
    )
    every = np.concatenate(targets).astype(np.int32)
    features = np.arange(len(every), dtype=np.float32)[:, None]
    return Corpus("tiny", features, every, table, LEXICON)


def noisy(corpus, noise):
    """Log posteriors minus priors that know the target, under noise."""

    def scores_of(utterances):
        for start, frames in zip(utterances.start, utterances.frames, strict=True):
            rows = corpus.targets[start : start + frames]
            draw = stream(5, "noise", int(start)).normal(size=(frames, 4))
            yield 3.0 * np.eye(4)[rows] + noise * draw

    return scores_of


GRAPH = decoding_graph(train(TEXT, 2), Lexicon.of(LEXICON))
CORPUS = corpus_of([(words, "dev") for words in TEXT * 6] + [(("no",), "clean")])
DEV = CORPUS.split("dev")


def test_clean_scores_are_recognised_without_error_and_with_their_times():
    found = recognise(GRAPH, noisy(CORPUS, 0.0)(DEV), 1.0)
    assert [f.words for f in found] == list(DEV.words)
    assert found[0].start == (0, 6)
    assert found[0].end == (6, 12)


def test_the_best_setting_is_the_best_of_those_tried():
    tuned = tune(
        DEV.words, noisy(CORPUS, 4.0)(DEV), GRAPH, scales=(0.05, 0.3, 3.0), insertions=(-3, 3)
    )
    assert [(t.scale, t.insertion) for t in tuned.trials[:3]] == [(0.05, 0), (0.3, 0), (3.0, 0)]
    assert len(tuned.trials) == 5
    assert tuned.best.rate == min(t.rate for t in tuned.trials)
    rates = {t.rate for t in tuned.trials}
    assert len(rates) > 1


@pytest.mark.parametrize("noise", [1.0, 4.0, 8.0])
def test_giving_up_hopeless_settings_finds_what_trying_all_to_the_end_finds(noise):
    scales, insertions = (0.05, 0.3, 1.0, 3.0), (-6.0, -3.0, 3.0, 6.0)
    scores = list(noisy(CORPUS, noise)(DEV))

    def rate(scale, insertion):
        found = recognise(GRAPH.penalised(insertion), scores, scale)
        return word_errors(DEV.words, [each.words for each in found]).rate

    tuned = tune(DEV.words, scores, GRAPH, scales=scales, insertions=insertions)
    scale = min(scales, key=lambda s: rate(s, 0.0))
    insertion = min((0.0, *insertions), key=lambda i: rate(scale, i))
    assert tuned.best == Trial(scale, insertion, rate(scale, insertion))
    assert all(tuned.best.rate <= t.rate <= rate(t.scale, t.insertion) for t in tuned.trials)


def test_characters_can_be_what_is_counted():
    tuned = tune(
        DEV.words, noisy(CORPUS, 6.0)(DEV), GRAPH, scales=(1.0,), insertions=(), unit="characters"
    )
    words = tune(DEV.words, noisy(CORPUS, 6.0)(DEV), GRAPH, scales=(1.0,), insertions=())
    assert 0 < tuned.best.rate != words.best.rate


def test_nothing_to_try_is_refused():
    with pytest.raises(ValueError, match="empty"):
        tune(DEV.words, noisy(CORPUS, 0.0)(DEV), GRAPH, scales=())


def test_of_equally_good_settings_the_first_given_is_kept():
    clean = noisy(CORPUS, 0.0)(DEV)
    tuned = tune(DEV.words, clean, GRAPH, scales=(0.5, 1.0, 0.3), insertions=(0.2, -0.2))
    assert {trial.rate for trial in tuned.trials} == {0.0}
    assert tuned.best == Trial(0.5, 0.0, 0.0)


def test_penalties_are_tried_at_the_best_scale_and_at_no_other():
    scores = list(noisy(CORPUS, 4.0)(DEV))
    for scales in ((0.3, 0.05, 3.0), (3.0, 0.3, 0.05), (0.05, 3.0, 0.3)):
        tuned = tune(DEV.words, scores, GRAPH, scales=scales, insertions=(-1.0, 0.0, 1.0))
        first = tuned.trials[:3]
        best = min(first, key=lambda trial: trial.rate)
        assert [trial.rate for trial in first].count(best.rate) == 1
        tried = [(trial.scale, trial.insertion) for trial in tuned.trials]
        assert tried[3:] == [(best.scale, -1.0), (best.scale, 1.0)]


def test_a_setting_is_given_up_beyond_the_best_ones_errors_and_not_at_them(monkeypatch):
    """The larger scale goes first and errs once; the smaller errs as often at once, then again."""
    heard = {100.0: ("yes",), 200.0: ("no",), 1.0: ("no",), 2.0: ("no",)}
    monkeypatch.setattr(
        tuning, "decode", lambda graph, scores, beam: SimpleNamespace(words=heard[scores[0, 0]])
    )
    scores = [np.full((1, 4), value) for value in (1.0, 2.0)]
    tuned = tune([("yes",)] * 2, scores, GRAPH, scales=(1.0, 100.0), insertions=())
    assert tuned.best == Trial(100.0, 0.0, 0.5)
    assert tuned.trials[0] == Trial(1.0, 0.0, 1.0)
