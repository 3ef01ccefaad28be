from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from harness.acoustics.batched_mmi import BatchedCriterion
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.mmi import Criterion, References, SequenceCriterion
from harness.base.seeds import stream
from tests.logical_device import DEVICE, LogicalDevice

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device"))]  # fmt: skip
TARGETS = 12
KINDS = ("mmi", "bmmi", "smbr", "numerator")


@pytest.fixture(scope="module")
def references():
    """Words of two pronunciations, silence of two states: all that a graph can have."""
    draw = stream(7, "batched task")
    names = [f"w{i:02d}" for i in range(25)]
    chains = {w: tuple(tuple(draw.integers(2, TARGETS, n).tolist()) for n in (4, 3)) for w in names}
    text = [tuple(draw.choice(names, 4).tolist()) for _ in range(80)]
    lexicon = Lexicon(chains, (0, 1), stay=draw.uniform(0.4, 0.8, TARGETS))
    return References(train(text, 1, vocabulary=names), lexicon)


def utterances(references, count=9, noise=1.5):
    """Log posteriors [B, T, K] with rubbish behind each end, lengths, and what was said."""
    draw = stream(1, "batched speech")
    said = [tuple(draw.choice(references.loop.words, 1 + i % 4).tolist()) for i in range(count)]
    paths = [
        np.repeat([0, 1, *(s for w in words for s in references.lexicon.words[w][0])], 3)
        for words in said
    ]
    lengths = [len(p) for p in paths]
    scores = noise * draw.normal(size=(count, max(lengths), TARGETS))
    for u, path in enumerate(paths):
        scores[u, np.arange(len(path)), path] += 3.0
    scores -= np.logaddexp.reduce(scores, axis=2, keepdims=True)
    for u, frames in enumerate(lengths):
        scores[u, frames:] = math.nan
    return scores, lengths, said


def both(references, criterion, device):
    single = SequenceCriterion(criterion, references, np.linspace(-4, -1, TARGETS))
    return single, BatchedCriterion(single, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("numerator", ["alignment", "sum"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_what_each_utterance_gives_alone(references, kind, numerator, device):
    single, batched = both(references, Criterion(kind, 0.6, numerator=numerator), device)
    log_posteriors, lengths, said = utterances(references)
    found = batched.outers(torch.from_numpy(log_posteriors).to(device), lengths, said)
    for i, (frames, words) in enumerate(zip(lengths, said, strict=True)):
        alone, together = single.outer(log_posteriors[i, :frames], words), found[i]
        assert together.value == pytest.approx(alone.value, abs=1e-9)
        np.testing.assert_allclose(together.gradient, alone.gradient, atol=1e-10)
        assert together.kept.tolist() == alone.kept.tolist()
        assert (together.rejected, together.cancelled) == (alone.rejected, alone.cancelled)
        assert together.trouble == alone.trouble
        assert not found.gradient[i, frames:].any()


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_batch_cannot_do_is_done_alone(references, device):
    log_posteriors, lengths, said = utterances(references)
    log_posteriors[1, 2, 3] = math.nan
    log_posteriors[2, :5] = np.where(np.arange(TARGETS) == 4, 0.0, -4000.0)
    lengths[3], said[4], lengths[5] = 0, ("nobody",), 2
    for criterion in (Criterion("mmi", 1.0), Criterion("mmi", 1.0, "lattice")):
        single, batched = both(references, criterion, device)
        found = batched.outers(torch.from_numpy(log_posteriors).to(device), lengths, said)
        assert found.trouble[1] == "not finite"
        assert found.trouble[3:6] == ["no frames", "out of lexicon", "unreachable"]
        for i in range(len(said)):
            alone = single.outer(log_posteriors[i, : lengths[i]], said[i])
            assert found.trouble[i] == alone.trouble
            assert found[i].value == pytest.approx(alone.value, abs=1e-9, nan_ok=True)
            np.testing.assert_allclose(found[i].gradient, alone.gradient, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_given_alignments_are_kept_in_a_batch(references, device):
    single, batched = both(references, Criterion("numerator", 0.5), device)
    log_posteriors, lengths, said = utterances(references, count=3)
    given = [single.align(x[:n], w) for x, n, w in zip(log_posteriors, lengths, said, strict=True)]
    shifted = torch.from_numpy(log_posteriors[:, :, ::-1].copy()).to(device)
    found = batched.outers(shifted, lengths, said, given)
    for i, alignment in enumerate(given):
        assert found[i].gradient.argmax(axis=1).tolist() == alignment.targets.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_batch_gives_the_same_bits(references, device):
    _, batched = both(references, Criterion("smbr", 0.6), device)
    log_posteriors, lengths, said = utterances(references)
    x = torch.from_numpy(log_posteriors).to(device)
    once, again = (batched.outers(x, lengths, said) for _ in range(2))
    assert torch.equal(once.gradient, again.gradient)
    assert once.value.tolist() == again.value.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 9])
def test_the_host_waits_thrice_for_a_batch_on_a_device_however_many_utterances(
    references, kind, count
):
    log_posteriors, lengths, said = utterances(references, count)
    with LogicalDevice() as device:
        _, batched = both(references, Criterion(kind, 0.6), str(DEVICE))
        found = batched.outers(device.holds(torch.from_numpy(log_posteriors)), lengths, said)
    assert device.has(found.gradient)
    assert device.counts.round_trips.total() == 3
    assert not device.counts.mixes


@pytest.mark.parametrize(("kind", "a_frame"), [("mmi", 70), ("smbr", 114)])
def test_launches_of_a_batch_grow_with_its_frames_and_not_with_its_utterances(
    references, kind, a_frame
):
    log_posteriors, lengths, said = utterances(references, 9)
    longest = lengths.index(max(lengths))

    def launches(count, frames):
        x, words = log_posteriors[[longest] * count, :frames], [said[longest]] * count
        with LogicalDevice() as device:
            rules = Criterion(kind, 0.6, numerator="sum")
            _, batched = both(references, rules, str(DEVICE))
            batched.outers(device.holds(torch.from_numpy(x)), [frames] * count, words)
        assert device.counts.round_trips.total() == 3
        return device.counts.launches.total()

    assert launches(2, 40) - launches(2, 30) == 10 * a_frame
    assert launches(5, 40) == launches(2, 40)
