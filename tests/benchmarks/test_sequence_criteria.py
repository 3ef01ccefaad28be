"""Denominators of sequence training in frames a second, beside Kaldi's decoder in the same run.

``times_kaldi`` divides by kaldi-decoder's beam search alone: it makes no lattice and sums
nothing. ``times_single`` divides a batch's speed by that of its utterances one by one.
``decode_cost`` is a frame's forward pass and outer gradient over its training in a minibatch of
200, with the network and the vocabulary of paper 3.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from harness.acoustics.batched_mmi import BatchedCriterion
from harness.acoustics.decoder import Beam, lattice
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.lattice import posteriors
from harness.acoustics.mmi import Criterion, References, SequenceCriterion
from harness.acoustics.sums import occupancies
from harness.base.seeds import stream
from harness.networks.feedforward import Dnn, Layout, random_parameters

pytestmark = pytest.mark.benchmark(timer=time.process_time)

BEAM = Beam(10.0, 5000, 6.0)
SIZES = (50, 200, 1000)


def report(benchmark, frames, **rates):
    if benchmark.stats is not None:
        per_second = frames / benchmark.stats.stats.min
        ratios = {name: per_second / rate for name, rate in rates.items()}
        benchmark.extra_info |= {"frames_per_s": per_second, **ratios}


@pytest.mark.parametrize("words", SIZES)
def test_sums_over_the_whole_graph_beside_kaldi(benchmark, spoken, kaldi, words):
    graph, scores = spoken(words)
    kaldi_rate, _ = kaldi(graph, scores, BEAM.width)
    _, gamma = benchmark(occupancies, graph, scores)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, atol=1e-10)
    report(benchmark, len(scores), times_kaldi=kaldi_rate)


@pytest.mark.parametrize("words", SIZES)
def test_lattices_with_posteriors_beside_kaldi(benchmark, spoken, kaldi, words):
    graph, scores = spoken(words)
    kaldi_rate, _ = kaldi(graph, scores, BEAM.width)
    log_z, _ = benchmark(lambda: posteriors(lattice(graph, scores, BEAM), scores.shape[1]))
    assert log_z <= occupancies(graph, scores)[0] + 1e-9
    report(benchmark, len(scores), times_kaldi=kaldi_rate)


def speech(words=300, count=16, targets=120):
    draw = stream(0, "sequence benchmark")
    names = [f"w{i:03d}" for i in range(words)]
    chains = {w: (tuple(draw.integers(3, targets, 9).tolist()),) for w in names}
    text = [tuple(draw.choice(names, 4).tolist()) for _ in range(500)]
    lexicon = Lexicon(chains, (0, 1, 2), stay=np.full(targets, 0.6))
    said = [tuple(draw.choice(names, 3).tolist()) for _ in range(count)]
    paths = [np.repeat([s for w in words for s in chains[w][0]], 3) for words in said]
    scores = 1.2 * draw.normal(size=(count, len(paths[0]), targets))
    for row, path in zip(scores, paths, strict=True):
        row[np.arange(len(path)), path] += 3.0
    scores -= np.logaddexp.reduce(scores, axis=2, keepdims=True)
    return References(train(text, 1, vocabulary=names), lexicon), scores, said


@pytest.mark.parametrize("kind", ["mmi", "bmmi", "smbr"])
@pytest.mark.parametrize("denominator", ["graph", "lattice"])
def test_outer_gradients_of_an_utterance_over_its_sums(benchmark, over, kind, denominator):
    references, scores, said = speech(count=1)
    criterion = Criterion(kind, 0.5, denominator, BEAM, "sum")
    single = SequenceCriterion(criterion, references, np.full(120, -5.0))
    found = benchmark(single.outer, scores[0], said[0])
    assert np.isfinite(found.value)
    report(benchmark, scores.shape[1])
    over(lambda: occupancies(references.loop, scores[0]))


def test_outer_gradients_of_a_batch_beside_one_by_one(benchmark):
    references, scores, said = speech()
    single = SequenceCriterion(Criterion(numerator="sum"), references, np.full(120, -5.0))
    alone = [single.outer(x, w) for x, w in zip(scores, said, strict=True)]
    start = time.process_time()
    for x, words in zip(scores, said, strict=True):
        single.outer(x, words)
    single_rate = scores.shape[0] * scores.shape[1] / (time.process_time() - start)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batched, x = BatchedCriterion(single, device), torch.from_numpy(scores).to(device)
    found = benchmark(lambda: batched.outers(x, [scores.shape[1]] * len(said), said))
    np.testing.assert_allclose(found.value, [each.value for each in alone], atol=1e-9)
    report(benchmark, scores.shape[0] * scores.shape[1], times_single=single_rate)


def paper3_task(targets=2400, words=29_000):
    """As many words as paper 3's, of four to ten phones in context, and one query of four."""
    draw = stream(0, "decode cost")
    phones = draw.integers(0, targets, (60, 8, 3))
    names = [f"w{i:05d}" for i in range(words)]

    def said():
        length = int(draw.integers(4, 11))
        places = zip(draw.integers(0, 60, length), draw.integers(0, 8, length), strict=True)
        return tuple(int(s) for phone, kind in places for s in phones[phone, kind])

    chains = {word: (said(),) for word in names}
    common = 1.0 / np.arange(1, words + 1)
    queries = draw.choice(words, (2000, 4), p=common / common.sum())
    text = [tuple(names[i] for i in query) for query in queries.tolist()]
    silence = tuple(int(s) for s in phones[0, 0])
    lexicon = Lexicon(chains, silence, stay=np.full(targets, 0.6))
    path = np.repeat([s for word in text[0] for s in chains[word][0]], 3)
    scores = 1.5 * draw.normal(size=(len(path), targets))
    scores[np.arange(len(path)), path] += 7.0
    scores -= np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return References(train(text, 1, vocabulary=names), lexicon), scores, text[0]


def test_what_decoding_a_frame_costs_beside_training_on_it(benchmark):
    references, scores, said = paper3_task()
    net = Dnn(Layout((1040, 1024, 1024, 1024, 1024, 2400)), "relu")
    model = random_parameters(net.layout, torch.Generator().manual_seed(1))
    x, y = torch.randn(1, 200, 1040), torch.zeros(1, 200, dtype=torch.int64)
    net.gradient(model, x, y, out := torch.empty_like(model))
    settings = Criterion("mmi", 0.9, "lattice", Beam(14.0, 7000, 8.0), "sum")
    single = SequenceCriterion(settings, references, np.full(2400, -np.log(2400)))
    frames = torch.randn(1, len(scores), 1040)

    def decode():
        net.logits(model, frames)
        return single.outer(scores, said)

    assert benchmark(decode).trouble in (None, "nothing kept")
    report(benchmark, len(scores))
    if benchmark.stats is not None:
        decode_s = processor_s(decode) / len(scores)
        train_s = processor_s(lambda: net.gradient(model, x, y, out)) / 200
        benchmark.extra_info["decode_cost"] = decode_s / train_s


def processor_s(call, times=5):
    """The least processor time of a call."""
    took = []
    for _ in range(times):
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return min(took)
