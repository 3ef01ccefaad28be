from dataclasses import replace

import numpy as np
import pytest

from data_synth import continuous as c
from data_synth.align import Aligner
from data_synth.invented_language import Manner
from data_synth.storage import load, write_chunks
from data_synth.targets import (
    MARGIN,
    SMOOTHED,
    Effort,
    Speech,
    contexts,
    flat_targets,
    from_transcripts,
    is_speech,
    learn,
    mixture_scores,
    monophones,
    silence_of,
)
from data_synth.tree import SILENCE, expand_lexicon
from harness.acoustics.decoder import decode
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.base.errors import UserError
from harness.base.seeds import stream
from tests.stand_in import utterances

CLEAR = c.Recipe(
    train=60, dev=8, speakers=3, test_speakers=2, words=12, phones=8, variants=1,
    variant_spread=0.0, wobble=0.2, band_noise=0.1, pull=0.6, families=2, closeness=1.0,
    mean_state_frames=5.0, manner=Manner(sentence_words=(2, 4)), snr_db=(30.0, 40.0),
    lm_sentences=3, conditions=(c.Condition("test", 6),),
)  # fmt: skip
EFFORT = Effort(rounds=6, tied_rounds=3, leaves=70, least_frames=30, components=1)


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clear")
    maker = c.Maker(CLEAR)
    write_chunks(folder, maker.card(), maker.chunks())

    return load(folder)


@pytest.fixture(scope="module")
def lines():
    return []


@pytest.fixture(scope="module")
def found(clear, lines):
    return realigned(clear, EFFORT, lines.append)


def realigned(corpus, effort, say=lambda line: None, **options):
    """The corpus with targets from its transcripts; its own are ignored."""
    speech = Speech(np.asarray(corpus.features), corpus.utterances, corpus.pronunciations)
    card = {"tests": corpus.tests, "lm_text": corpus.lm_text}
    return from_transcripts(corpus.name, speech, effort, say, **options, **card)


def boundaries(corpus, targets):
    """Rows where a phone's first state begins, by the corpus's own tree."""
    first = {corpus.silence[0]}
    for word, phones in corpus.pronunciations.items():
        first |= set(corpus.lexicon[word][:: len(corpus.lexicon[word]) // len(phones)])
    starts = np.union1d(np.flatnonzero(np.diff(targets, prepend=-1)), corpus.utterances.start)
    return [r for r in starts if targets[r] in first]


def test_boundaries_are_found_from_transcripts_alone(clear, found):
    truth, ours = boundaries(clear, clear.targets), boundaries(found, found.targets)
    near = [min(abs(t - o) for o in ours) for t in truth]
    assert np.mean(np.array(near) <= 3) > 0.85


def test_tied_states_fit_better_than_monophones(lines, found):
    scores = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert scores[1] > scores[0] + 0.2
    assert found.n_targets > 25


def test_the_found_corpus_is_whole_and_follows_its_tree(clear, found):
    assert len(found.targets) == len(found.features) == found.utterances.total_frames
    assert found.lm_text == clear.lm_text
    assert found.tests == clear.tests
    assert found.silence == (0,)
    for word, phones in found.pronunciations.items():
        assert found.lexicon[word] == found.tree.targets(phones)
    u = found.utterances
    for start, frames, words in zip(u.start, u.frames, u.words, strict=True):
        visits = found.targets[start : start + frames]
        visits = visits[np.flatnonzero(np.diff(visits, prepend=-1))]
        spoken = [v for v in visits.tolist() if v not in found.silence]
        assert spoken == [t for w in words for t in found.lexicon[w]]


def test_the_same_transcripts_give_the_same_targets(clear, found):
    again = realigned(clear, EFFORT)
    assert again.fingerprint == found.fingerprint


def short(clear):
    """The corpus with its first training utterance cut to two frames."""
    u = clear.utterances
    return replace(clear, utterances=replace(u, frames=np.r_[2, u.frames[1:]]))


def test_an_utterance_too_short_for_its_words_is_named(clear):
    with pytest.raises(UserError, match=r"1 of 74 utterances .* train-0000000; .*--skip-bad"):
        realigned(short(clear), replace(EFFORT, leaves=0, rounds=1))


def test_or_it_is_left_out_and_counted(clear):
    lines = []
    made = realigned(short(clear), replace(EFFORT, leaves=0, rounds=1), lines.append, skip=True)
    assert len(made.utterances) == 73
    assert "1 of 74" in lines[-1]


SAID = {"x": ("a", "b"), "x(2)": ("a",), "y": ("b",)}


def test_the_better_pronunciation_is_chosen_and_its_contexts_are_read():
    tree = monophones(SAID, 2)
    lexicon = expand_lexicon(SAID, tree)
    walk = [0, *lexicon["x(2)"], *lexicon["y"], 0]
    targets = np.repeat(walk, 2)
    scores = np.log(np.eye(tree.n_targets)[targets] + 1e-9)
    path = Aligner(lexicon, silence_of(tree)).align(("x", "y"), scores)
    assert path.targets.tolist() == targets.tolist()
    table = utterances(["train"], len(targets), [("x", "y")]).shifted(10)
    assert contexts(table, (path,), tree, SAID) == [
        (12, 14, SILENCE, "a", SILENCE, 0),
        (14, 16, SILENCE, "a", SILENCE, 1),
        (16, 18, SILENCE, "b", SILENCE, 0),
        (18, 20, SILENCE, "b", SILENCE, 1),
    ]


def test_a_sentence_that_does_not_fit_has_no_path():
    lexicon = expand_lexicon(SAID, monophones(SAID, 2))
    aligner = Aligner(lexicon, (0,))
    assert aligner.align(("y", "y"), np.zeros((3, 5))) is None
    assert aligner.align((), np.zeros((3, 5))) is None
    assert aligner.align(("y", "y"), np.zeros((4, 5))) is not None


def test_a_flat_start_gives_the_loud_frames_to_the_words_and_ends_and_pauses_to_silence():
    table, tree = utterances(["train"], 140, "y"), monophones(SAID, 2)
    loudness = np.repeat([0.0, 5.0, 0.0, 5.0, 0.0], [30, 20, 40, 20, 30])
    spoken = is_speech(loudness)
    first, end, again, last = np.flatnonzero(np.diff(spoken)) + 1
    widest = MARGIN + SMOOTHED // 2
    assert 30 - widest <= first <= 30 - MARGIN
    assert 50 + MARGIN <= end <= 50 + widest
    assert 90 - widest <= again <= 90 - MARGIN
    assert 110 + MARGIN <= last <= 110 + widest
    speech = Speech(np.stack([loudness, -loudness], axis=1), table, SAID)
    found = flat_targets(speech, table, expand_lexicon(SAID, tree), 0)
    assert (found[~spoken] == 0).all()
    share = np.repeat(expand_lexicon(SAID, tree)["y"], spoken.sum() // 2)
    assert found[spoken].tolist() == share.tolist()


def test_a_short_pause_stays_with_the_words():
    loudness = np.repeat([0.0, 5.0, 0.0, 5.0, 0.0], [30, 20, 2 * MARGIN, 20, 30])
    assert np.count_nonzero(np.diff(is_speech(loudness))) == 2


def test_a_flat_start_without_loud_frames_is_all_speech():
    table, lexicon = utterances(["train"], 6, "y"), expand_lexicon(SAID, monophones(SAID, 2))
    speech = Speech(np.zeros((6, 1)), table, SAID)
    assert flat_targets(speech, table, lexicon, 0).tolist() == np.repeat(lexicon["y"], 3).tolist()
    assert Speech(np.arange(9), table, SAID).rows(table).tolist() == list(range(6))


HEAPS = np.eye(9) * 4  # means: three kinds of background, then three states of each word
WORDS = {"yes": ("y",), "no": ("n",)}


def spoken_in_a_room(count, rng):
    """Eight words an utterance, of three states each, amid a background that changes its kind.

    The kinds come in any order and return, as do breath, steps and wind in a recording.

    Returns:
        The speech, and the heap that each frame was drawn from.
    """
    walks, said = [], []
    for _ in range(count):
        walk = []
        words = [("yes", "no")[i] for i in rng.integers(2, size=8)]
        for word in [*words, ""]:
            walk += np.repeat(rng.integers(3, size=6), rng.integers(4, 10, size=6)).tolist()
            states = {"yes": (3, 4, 5), "no": (6, 7, 8), "": ()}[word]
            walk += [state for state in states for _ in range(10)]
        walks.append(walk)
        said.append(tuple(words))
    drawn, frames = np.concatenate(walks), np.array([len(walk) for walk in walks])
    x = HEAPS[drawn] + rng.normal(0, 1, (len(drawn), 9))
    x[:, 0] = 5.0 * (drawn > 2) + rng.normal(0, 1, len(drawn))  # loudness
    return Speech(x, utterances(["train"] * count, frames, said), WORDS), drawn


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scorer", ["mixtures", "classifier"])
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_background_in_any_order_is_not_heard_as_a_word(seed, scorer):
    rng = stream(seed, "room")
    (speech, drawn), (fresh, kinds) = spoken_in_a_room(6, rng), spoken_in_a_room(4, rng)
    tree, model = learn(speech, Effort(rounds=4, leaves=0), lambda line: None)
    lexicon, silence = expand_lexicon(WORDS, tree), silence_of(tree)
    if scorer == "mixtures":
        scores = model.loglik(fresh.features)
    else:  # the best that a classifier of frames can learn from the targets
        aligned = Aligner(lexicon, silence).align_all(
            speech.utterances, mixture_scores(speech, model)
        )
        counts = np.full((tree.n_targets, len(HEAPS)), 0.1)
        np.add.at(counts, (aligned.targets, drawn), 1.0)
        joint = counts / counts.sum()
        ratio = joint / joint.sum(0) / joint.sum(1, keepdims=True)  # posterior over prior
        scores = np.log(ratio).T[kinds]
    model_of_words = train(speech.utterances.words, 1)
    graph = decoding_graph(model_of_words, Lexicon.from_entries(lexicon, silence))
    ends = np.cumsum(fresh.utterances.frames)[:-1]
    heard = [decode(graph, own).words for own in np.split(scores, ends)]
    assert heard == list(fresh.utterances.words)
