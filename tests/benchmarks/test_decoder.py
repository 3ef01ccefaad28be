"""Recognition speed: frames a second, real-time factor, and ratios to others in the same run.

The others are token passing in plain Python on the same graph (`times_python`) and, where
kaldi-decoder and kaldifst are installed, Kaldi's beam decoder (`times_kaldi`). `ratio` is the time
over that of decoding.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from harness.acoustics.decoder import Beam, decode, lattice
from harness.acoustics.lattice import posteriors
from harness.acoustics.scoring import recognise, tune
from harness.acoustics.sums import occupancies
from harness.base.seeds import stream

pytestmark = pytest.mark.benchmark(timer=time.process_time)

FRAME_SHIFT_S = 0.01
SHARE = 6  # plain Python is given this part of the utterance
BEAM = Beam(10.0, 5000, 6.0)
SIZES = (50, 200, 1000)
TESTED = Beam(12.0, 1500)
LOW, UTTERANCES = 0.03, 20


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


def report(benchmark, frames, **ratios):
    if benchmark.stats is not None:
        took = benchmark.stats.stats.min
        benchmark.extra_info["frames_per_s"] = frames / took
        benchmark.extra_info["real_time_factor"] = took / (frames * FRAME_SHIFT_S)
        benchmark.extra_info |= {name: frames / took / rate for name, rate in ratios.items()}


@pytest.mark.parametrize("words", SIZES)
def test_decoding_is_fast_and_finds_what_plain_python_finds(benchmark, spoken, words):
    graph, scores = spoken(words)
    short = scores[: len(scores) // SHARE]
    start = time.process_time()
    expected = plain_python(graph, short, BEAM.width)
    python_rate = len(short) / (time.process_time() - start)
    assert decode(graph, short, BEAM).score == pytest.approx(expected, abs=1e-9)
    found = benchmark(decode, graph, scores, BEAM)
    assert found.complete
    report(benchmark, len(scores), times_python=python_rate)


@pytest.mark.parametrize("words", SIZES)
def test_decoding_is_fast_and_finds_what_kaldi_finds(benchmark, spoken, kaldi, words):
    graph, scores = spoken(words)
    kaldi_rate, said = kaldi(graph, scores, BEAM.width)
    found = benchmark(decode, graph, scores, BEAM)
    assert found.words == said
    report(benchmark, len(scores), times_kaldi=kaldi_rate)


@pytest.mark.parametrize("words", SIZES)
def test_lattices_with_posteriors_are_fast(benchmark, over, spoken, words):
    graph, scores = spoken(words)

    def occupied():
        return posteriors(lattice(graph, scores, BEAM), scores.shape[1])

    _, gamma = benchmark(occupied)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, atol=1e-10)
    report(benchmark, len(scores))
    over(lambda: decode(graph, scores, BEAM))


@pytest.mark.parametrize("words", SIZES)
def test_sums_over_the_whole_graph_are_fast(benchmark, over, spoken, words):
    graph, scores = spoken(words)
    log_z, _ = benchmark(occupancies, graph, scores)
    assert posteriors(lattice(graph, scores, BEAM), scores.shape[1])[0] <= log_z + 1e-9
    report(benchmark, len(scores))
    over(lambda: decode(graph, scores, BEAM))


@pytest.mark.parametrize("words", SIZES)
def test_a_scale_far_too_low_costs_little_beside_the_right_one(benchmark, over, spoken, words):
    """Nearly every state is in the beam then; `max_active` bounds what that costs."""
    graph, scores = spoken(words)
    benchmark(decode, graph, LOW * scores, TESTED)
    report(benchmark, len(scores))
    over(lambda: decode(graph, scores, TESTED))


def test_tuning_a_model_costs_a_few_decodings(benchmark, over, spoken):
    graph, scores = spoken(200)
    draw = stream(1, "benchmark of tuning")
    heard = [scores + 2.0 * draw.normal(size=scores.shape) for _ in range(UTTERANCES)]
    said = [decode(graph, scores, TESTED).words] * UTTERANCES
    tuned = benchmark(tune, said, heard, graph, insertions=(0.0,), beam=TESTED)
    benchmark.extra_info["counts"] = {"trials": len(tuned.trials)}
    over(lambda: recognise(graph, heard, tuned.best.scale, TESTED))
