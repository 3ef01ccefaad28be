"""The acoustic scale of test sets: each model's own, by an even part of the development set."""

from dataclasses import replace

import numpy as np
import pytest

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.scoring import recognise, tune
from harness.base.seeds import stream
from harness.speech.evaluation import BEAM, ORDER, Transcriber
from tests.arpa_files import write_arpa
from tests.stand_in import LEXICON, TEXT, spoken


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Ten development sentences, five of a test set; features number the frames."""
    return spoken(TEXT * 3, ["dev"] * 10 + ["clean"] * 5, lm_text=TEXT)


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


def test_a_scale_is_tuned_on_development_utterances_that_lie_evenly(corpus):
    asked = []
    scores_of = scores_with(corpus, asked, 1.0)
    transcriber = Transcriber(corpus, insertions=(0.0,), dev=4)
    tuned = transcriber.tune_decoding(scores_of)
    heard = transcriber.hear("clean", scores_of, tuned)
    assert asked == [["u0", "u3", "u6", "u9"], ["u10", "u11", "u12", "u13", "u14"]]

    graph = decoding_graph(train(TEXT, ORDER), Lexicon.from_entries(LEXICON))
    dev, clean = corpus.split("dev").take(np.arange(0, 10, 3)), corpus.split("clean")
    assert tuned == tune(dev.words, scores_of(dev), graph, insertions=(0.0,), beam=BEAM)
    again = recognise(graph, scores_of(clean), tuned.best.scale, BEAM)
    assert heard == [each.words for each in again]


def test_one_recogniser_gives_every_model_the_scale_it_would_give_it_alone(corpus):
    one, other = scores_with(corpus, [], 1.0), scores_with(corpus, [], 10.0)
    shared = Transcriber(corpus, insertions=(0.0,))
    for scores_of in (one, other, one):
        alone = Transcriber(corpus, insertions=(0.0,))
        tuned = shared.tune_decoding(scores_of)
        assert tuned == alone.tune_decoding(scores_of)
        found = shared.hear("clean", scores_of, tuned)
        assert found == alone.hear("clean", scores_of, tuned)
    assert shared.tune_decoding(one).best.scale > shared.tune_decoding(other).best.scale


def test_the_vocabulary_is_that_of_the_text_of_the_lexicon_or_of_an_arpa_file(corpus, tmp_path):
    poor = replace(corpus, lm_text=tuple(said for said in TEXT if "perhaps" not in said))
    assert Transcriber(poor).vocabulary == {"yes", "no"}
    assert Transcriber(poor, closed=True).vocabulary == set(LEXICON)
    write_arpa(train([("no", "no")], 1), tmp_path / "lm.arpa")
    assert Transcriber(corpus, arpa=tmp_path / "lm.arpa").vocabulary == {"no"}
