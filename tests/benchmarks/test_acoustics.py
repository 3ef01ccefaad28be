"""Recognition and sequence criteria: beside token passing in plain Python, and beside decoding."""

from functools import cache

import numpy as np
import pytest

from harness.acoustics import sums
from harness.acoustics.decoder import Beam, decode, lattice
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.lattice import posteriors
from harness.acoustics.mmi import Criterion, References, SequenceCriterion
from harness.base.seeds import stream

BEAM = Beam(10.0, 5000, 6.0)
SIZES = {50: (6, 120), 1000: (9, 500)}
"""States a word and targets, by the number of words."""

DENOMINATORS = [("graph", 3.4), ("lattice", 14.0)]


@cache
def task_of(words: int):
    """A unigram loop, and the scores of a sentence said through noise, three frames a state."""
    states, targets = SIZES[words]
    draw = stream(0, "benchmark", words)
    chains = {
        f"w{i:04d}": (tuple(draw.integers(3, targets, states).tolist()),) for i in range(words)
    }
    text = [tuple(draw.choice(list(chains), 8).tolist()) for _ in range(500)]
    lexicon = Lexicon(chains, (0, 1, 2), stay=np.full(targets, 2 / 3))
    model = train(text, 1, vocabulary=chains)
    sentence = tuple(draw.choice(list(chains), 12).tolist())
    path = np.repeat([state for word in sentence for state in chains[word][0]], 3)
    scores = 1.2 * draw.normal(size=(len(path), targets))
    scores[np.arange(len(path)), path] += 3.0
    scores -= np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return decoding_graph(model, lexicon), scores, References(model, lexicon), sentence


def pass_tokens(graph, scores, width):
    """Token passing with dictionaries: the score of the best path that reaches the end."""
    arcs = [
        [(int(graph.to[a]), float(graph.weight[a])) for a in range(start, end)]
        for start, end in zip(graph.first[:-1], graph.first[1:], strict=True)
    ]

    def settle(tokens):
        for n in sorted(tokens):
            for to, _ in arcs[n]:
                if to >= graph.states:
                    tokens.setdefault(to, -np.inf)
        for n in [*sorted(tokens), *range(graph.states, graph.nodes)]:
            for to, weight in arcs[n]:
                if to >= graph.states and n in tokens:
                    tokens[to] = max(tokens.get(to, -np.inf), tokens[n] + weight)
        return tokens

    tokens = settle({graph.start: 0.0})
    for row in scores.tolist():
        ahead = {}
        for n, score in tokens.items():
            for to, weight in arcs[n]:
                if to < graph.states:
                    through = score + weight + row[graph.target[to]]
                    if through > ahead.get(to, -np.inf):
                        ahead[to] = through
        least = max(ahead.values()) - width
        tokens = settle({n: s for n, s in ahead.items() if s >= least})
    return tokens[graph.end]


@pytest.mark.parametrize("words", SIZES)
def test_decoding_over_plain_python(compare, words):
    graph, scores, _, _ = task_of(words)
    part = scores[: len(scores) // 6]
    assert decode(graph, part, BEAM).score == pytest.approx(
        pass_tokens(graph, part, BEAM.width), abs=1e-9
    )
    compare(
        lambda: decode(graph, part, BEAM),
        lambda: pass_tokens(graph, part, BEAM.width),
        at_most={50: 0.2, 1000: 0.04}[words],
        rounds=3,
    )


@pytest.mark.parametrize("words", SIZES)
def test_lattices_with_posteriors_over_decoding(compare, words):
    graph, scores, _, _ = task_of(words)
    occupy = lambda: posteriors(lattice(graph, scores, BEAM), scores.shape[1])  # noqa: E731
    np.testing.assert_allclose(occupy()[1].sum(axis=1), 1.0, atol=1e-10)
    compare(occupy, lambda: decode(graph, scores, BEAM), at_most=8.0, rounds=5)


@pytest.mark.parametrize("words", SIZES)
def test_sums_over_the_whole_graph_over_decoding(compare, words):
    graph, scores, _, _ = task_of(words)
    bound = {50: 2.2, 1000: 12.0}[words]
    compare(
        lambda: sums.occupancies(graph, scores),
        lambda: decode(graph, scores, BEAM),
        at_most=bound,
        rounds=5,
    )


@pytest.mark.parametrize(("denominator", "bound"), DENOMINATORS)
def test_outer_gradients_over_the_sums_of_an_utterance(compare, denominator, bound):
    _, scores, references, sentence = task_of(50)
    criterion = Criterion("mmi", 0.5, denominator, BEAM, "sum")
    single = SequenceCriterion(criterion, references, np.full(scores.shape[1], -5.0))
    assert np.isfinite(single.outer(scores, sentence).value)
    plain = sums.occupancies.__wrapped__ if hasattr(sums.occupancies, "__wrapped__") else None
    compare(
        lambda: single.outer(scores, sentence),
        lambda: (plain or sums.occupancies)(references.loop, scores),
        at_most=bound,
    )
