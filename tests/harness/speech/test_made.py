"""Speech made block by block trains as the same speech does where all of it lies there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data_synth.continuous import make_as_needed
from data_synth.presets import recipe
from harness.acoustics.rbm import Recipe
from harness.algorithms.averaging import ModelAveraging
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.experiment.experiment import Stage
from harness.experiment.run import run as train
from harness.simulator.protocols.averaging import Averaging
from harness.speech import frames as made
from harness.speech.frames import Blocks, FramesOnDevice, MadeFrames, frames_of, shuffling_of
from harness.store import Store
from harness.tasks.order import InBlocks, Order, Partition
from tests.silence import silent

UTTERANCES, BLOCK = 26, 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(made, "BLOCK", BLOCK)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    plain = recipe("voice-search-small", "smoke", 5)
    few = tuple(replace(c, utterances=4) for c in plain.conditions)
    small = replace(plain, train=UTTERANCES, dev=4, conditions=few, lm_sentences=50)
    folder = tmp_path_factory.mktemp("corpora")
    return make_as_needed("voice", small, "gpu", cache=folder, progress=lambda line: None)


@pytest.fixture(scope="module")
def stored(corpus):
    """The same corpus with its training features in memory."""
    features = corpus.speech(np.arange(UTTERANCES))
    whole = np.concatenate([corpus.features, features])
    return replace(corpus, features=whole, speech=None)


@pytest.mark.parametrize("room", [0, 3, 100], ids=["one block", "three blocks", "all"])
def test_rows_are_the_same_whatever_is_kept(corpus, stored, room):
    ours = MadeFrames(corpus, corpus.speech, "cpu", 0)
    ours = MadeFrames(corpus, corpus.speech, "cpu", room * ours.bytes_of_all // 7)
    theirs, draw = FramesOnDevice.from_corpus(stored, "cpu"), stream(0, "rows")
    for _ in range(5):
        rows = torch.as_tensor(draw.integers(len(corpus.targets), size=(3, 8)))
        for own, their in zip(ours.gather(rows), theirs.gather(rows), strict=True):
            assert torch.equal(own, their)
    assert (ours.block.cache_info().misses == 7) == (room == 100)


def test_a_pass_in_blocks_makes_each_block_once(corpus):
    ours, train = MadeFrames(corpus, corpus.speech, "cpu", 0), corpus.split("train")
    blocks = Blocks.from_utterances(train)
    order = Order(0, 0, blocks.start, blocks.frames, 16, shuffling="in blocks")
    for step in range(order.steps):
        ours.gather(torch.as_tensor(order.rows(step))[None])
    # a minibatch that lies in two blocks has them made in turns where one is kept
    assert 7 <= ours.block.cache_info().misses <= 2 * 7


def test_blocks_have_all_rows_and_each_is_shuffled_by_itself():
    start, frames = np.array([30, 0, 12]), np.array([5, 12, 18])
    found = InBlocks(start, frames, (0, "frame order", 1))
    rows = found[0 : len(found)]
    assert sorted(rows) == list(range(35))
    assert rows.tolist()[5:17] == stream(0, "frame order", 1, 1).permutation(12).tolist()
    assert np.concatenate([found[at : at + 4] for at in range(0, 35, 4)]).tolist() == rows.tolist()


def test_one_block_is_shuffled_as_a_whole_corpus_is():
    both = [
        Order(3, 0, np.array([0]), np.array([50]), 10, shuffling=how).rows(2).tolist()
        for how in ("full", "in blocks")
    ]
    assert both[0] == both[1]


def test_workers_in_rounds_have_blocks_of_their_own():
    frames = np.array([30, 20, 25, 30, 20, 25])
    start = np.cumsum(frames) - frames
    dealt = Partition(0, 0, start, frames, 2, 5, 2, shuffling="in blocks")
    rows = [dealt.rows_of([(w, step) for step in range(dealt.steps)]).ravel() for w in range(2)]
    assert len(np.unique(np.concatenate(rows))) == 2 * dealt.steps * 5
    assert np.intersect1d(*rows).size == 0
    own = [set(np.searchsorted(start, each, side="right")) for each in rows]
    assert own[0].isdisjoint(own[1])


def test_speech_that_does_not_fit_is_only_shuffled_in_blocks(corpus, monkeypatch):
    monkeypatch.setattr(made, "ROOM", 1000)
    assert shuffling_of(corpus) == "in blocks"
    assert not frames_of(corpus, "cpu", "in blocks").holds_all
    with pytest.raises(UserError, match="allowed: 'in blocks'"):
        frames_of(corpus, "cpu", "full")


@pytest.mark.parametrize("rounds", [False, True], ids=["asynchronous", "rounds"])
def test_a_run_learns_the_same_bits_as_on_stored_speech(
    configure, corpus, stored, offered, rounds, monkeypatch, tmp_path
):
    monkeypatch.setattr(made, "ROOM", 1000)
    choices = {"algorithm": ModelAveraging(), "protocol": Averaging(2)} if rounds else {}
    config = configure(
        shuffling="in blocks", corpus="voice", fingerprint=corpus.fingerprint, workers=2,
        stages=(Stage(16, 256),), initial=Recipe(1, 1), passes=1, tested="never", **choices,
    )  # fmt: skip
    runs = []
    for k, offered["voice"] in enumerate((corpus, stored)):
        runs.append(train(config, Store(tmp_path / str(k)), silent))
    first, second = (run.summary for run in runs)
    assert first == second
    assert first["folds"] > 10
