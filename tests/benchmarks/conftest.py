"""What benchmarks share: how time is told, speech to recognise fast, a peer to be faster than.

What a benchmark leaves in ``extra_info`` is compared with the baseline by its name
(``harness.bench``): ``ratio`` and ``…_ratio`` are times over times, ``times_…`` speeds over speeds,
``counts`` exact. Time is the processor's where a benchmark has no reason to wait: what
others do on the machine then matters less.
"""

from __future__ import annotations

import os
import posix
import time
from collections.abc import Callable

import numpy as np
import pytest

from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.base.seeds import stream

os.fsync = posix.fsync  # other tests do not wait for the disk; its time belongs to what is timed
SAID = 12
SIZES = {50: (6, 120), 200: (9, 120), 1000: (9, 500)}


def make_task(words):
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


def kaldi_decoded(graph, scores, width):
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
    start = time.process_time()
    search.decode(frames)
    _, best = search.get_best_path()
    took = time.process_time() - start
    words = kaldifst.get_linear_symbol_sequence(best)[2]
    return len(scores) / took, tuple(graph.words[w - 1] for w in words)


ROUNDS = 5


def pytest_configure(config):
    config.addinivalue_line("markers", "large: a benchmark of minutes; `lagbench bench --large`")


def least_s(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The least disturbed of several measurements, in seconds of the processor."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


@pytest.fixture
def over(benchmark):
    """Notes the benchmark's time over that of something else, which is run here."""

    def note(bare: Callable[[], object], name: str = "ratio") -> None:
        bare()
        if benchmark.stats is not None:
            benchmark.extra_info[name] = benchmark.stats.stats.min / least_s(bare)

    return note


@pytest.fixture(scope="session")
def spoken():
    """Makes a word loop of so many words, and the scores of a sentence: (graph, scores)."""
    return make_task


@pytest.fixture(scope="session")
def kaldi():
    """Decodes with Kaldi, or skips: (frames a second, words) of (graph, scores, beam width)."""
    return kaldi_decoded
