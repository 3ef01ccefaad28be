"""Recognition speed: frames a second, real-time factor, and ratios to others in the same run.

The others are token passing in plain Python on the same graph (`times_python`) and, where
kaldi-decoder and kaldifst are installed, Kaldi's beam decoder (`times_kaldi`).
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from harness.acoustics.decoder import Beam, decode, lattice
from harness.acoustics.forward_backward import occupancies
from harness.acoustics.graph import Lexicon, decoding_graph
from harness.acoustics.language_model import train
from harness.acoustics.lattice import posteriors
from harness.seeds import stream

FRAME_SHIFT_S = 0.01
SAID, SHORT = 12, 2  # words of the utterance, and of the part that plain Python is given
BEAM = Beam(10.0, 5000, 6.0)
SIZES = {50: (6, 120), 200: (9, 120), 1000: (9, 500)}


def task(words):
    """A unigram loop, and the scores of a sentence said through noise, three frames a state."""
    states, targets = SIZES[words]
    draw = stream(0, "benchmark", words)
    chains = {
        f"w{i:04d}": (tuple(draw.integers(3, targets, states).tolist()),) for i in range(words)
    }
    text = [tuple(draw.choice(list(chains), 8).tolist()) for _ in range(500)]
    lexicon = Lexicon(chains, (0, 1, 2), stay=np.full(targets, 2 / 3))
    graph = decoding_graph(train(text, 1, vocabulary=chains), lexicon)
    said = [s for w in draw.choice(list(chains), SAID) for s in chains[w][0]]
    path = np.repeat(said, 3)
    frames = len(path)
    scores = 1.2 * draw.normal(size=(frames, targets))
    scores[np.arange(frames), path] += 3.0
    return graph, scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def plain_python(graph, scores, width):
    """Token passing with dictionaries: the score of the best path that reaches the end."""
    arcs = [
        [(int(graph.to[a]), float(graph.weight[a])) for a in range(first, last)]
        for first, last in zip(graph.first[:-1], graph.first[1:], strict=True)
    ]

    def settled(tokens):
        for n in sorted(tokens):
            for to, _ in arcs[n]:
                if to >= graph.states:
                    tokens.setdefault(to, -np.inf)
        for n in [*sorted(tokens), *range(graph.states, graph.nodes)]:
            for to, weight in arcs[n]:
                if to >= graph.states and n in tokens:
                    tokens[to] = max(tokens.get(to, -np.inf), tokens[n] + weight)
        return tokens

    tokens = settled({graph.start: 0.0})
    for row in scores.tolist():
        ahead = {}
        for n, score in tokens.items():
            for to, weight in arcs[n]:
                if to < graph.states:
                    through = score + weight + row[graph.target[to]]
                    if through > ahead.get(to, -np.inf):
                        ahead[to] = through
        least = max(ahead.values()) - width
        tokens = settled({n: s for n, s in ahead.items() if s >= least})
    return tokens[graph.end]


def kaldi(graph, scores, width):
    """Kaldi's decoder on the same graph: its speed in frames a second, and its best score."""
    kaldifst = pytest.importorskip("kaldifst")
    decoder = pytest.importorskip("kaldi_decoder")
    fst = kaldifst.StdVectorFst()
    for _ in range(graph.nodes):
        fst.add_state()
    fst.start = graph.start
    fst.set_final(graph.end, 0.0)
    for n in range(graph.nodes):
        for a in range(graph.first[n], graph.first[n + 1]):
            to = int(graph.to[a])
            enters = int(graph.target[to]) + 1 if to < graph.states else 0
            arc = kaldifst.StdArc(enters, int(graph.label[a]) + 1, -float(graph.weight[a]), to)
            fst.add_arc(n, arc)
    search = decoder.FasterDecoder(fst, decoder.FasterDecoderOptions(beam=width, max_active=5000))
    frames = decoder.DecodableCtc(scores.astype(np.float32))
    start = time.perf_counter()
    search.decode(frames)
    _, best = search.get_best_path()
    took = time.perf_counter() - start
    words = kaldifst.get_linear_symbol_sequence(best)[2]
    return len(scores) / took, tuple(graph.words[w - 1] for w in words)


def report(benchmark, frames, **ratios):
    if benchmark.stats is not None:
        median = benchmark.stats.stats.median
        benchmark.extra_info["frames_per_s"] = frames / median
        benchmark.extra_info["real_time_factor"] = median / (frames * FRAME_SHIFT_S)
        benchmark.extra_info |= {name: frames / median / rate for name, rate in ratios.items()}


@pytest.mark.parametrize("words", SIZES)
def test_decoding_is_fast_and_finds_what_plain_python_finds(benchmark, words):
    graph, scores = task(words)
    short = scores[: len(scores) * SHORT // SAID]
    start = time.perf_counter()
    expected = plain_python(graph, short, BEAM.width)
    python_rate = len(short) / (time.perf_counter() - start)
    assert decode(graph, short, BEAM).score == pytest.approx(expected, abs=1e-9)
    found = benchmark(decode, graph, scores, BEAM)
    assert found.complete
    report(benchmark, len(scores), times_python=python_rate)


@pytest.mark.parametrize("words", SIZES)
def test_decoding_is_fast_and_finds_what_kaldi_finds(benchmark, words):
    graph, scores = task(words)
    kaldi_rate, said = kaldi(graph, scores, BEAM.width)
    found = benchmark(decode, graph, scores, BEAM)
    assert found.words == said
    report(benchmark, len(scores), times_kaldi=kaldi_rate)


@pytest.mark.parametrize("words", SIZES)
def test_lattices_with_posteriors_are_fast(benchmark, words):
    graph, scores = task(words)

    def occupied():
        return posteriors(lattice(graph, scores, BEAM), scores.shape[1])

    _, gamma = benchmark(occupied)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, atol=1e-10)
    report(benchmark, len(scores))


@pytest.mark.parametrize("words", SIZES)
def test_sums_over_the_whole_graph_are_fast(benchmark, words):
    graph, scores = task(words)
    log_z, _ = benchmark(occupancies, graph, scores)
    assert posteriors(lattice(graph, scores, BEAM), scores.shape[1])[0] <= log_z + 1e-9
    report(benchmark, len(scores))
