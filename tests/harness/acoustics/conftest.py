"""Tiny recognition tasks with every path written down: the oracle of graph, decoder and lattice."""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from harness.acoustics.graph import Graph, decoding_graph
from harness.acoustics.language_model import BEGIN, END, LanguageModel, Lexicon, train
from harness.base.seeds import stream

TEXT = [tuple(line.split()) for line in ("a b", "a", "b c a", "c", "a b c", "b b", "", "c a b")]
SAID = {"a": ((2,),), "b": ((3, 4), (5,)), "c": ((4, 2),)}
TARGETS = 6


@dataclass(frozen=True)
class Path:
    """One path: its log weight, words, (first frame, frame after the last) of each, targets."""

    weight: float
    words: tuple[str, ...]
    times: tuple[tuple[int, int], ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    model: LanguageModel
    lexicon: Lexicon
    graph: Graph
    scores: np.ndarray
    paths: list[Path]

    @property
    def best(self) -> Path:
        return max(self.paths, key=lambda p: p.weight)

    @property
    def log_z(self) -> float:
        return float(np.logaddexp.reduce([p.weight for p in self.paths]))

    @property
    def gamma(self) -> np.ndarray:
        gamma = np.zeros(self.scores.shape)
        for p in self.paths:
            gamma[np.arange(len(p.targets)), p.targets] += math.exp(p.weight - self.log_z)
        return gamma


def next_words(model, history):
    """(word, log weight, history after): seen after the history, or after any shorter one."""
    price = 0.0
    while True:
        for gram, value in model.log_probs.items():
            if gram[:-1] == history and value > -math.inf:
                after = gram[max(0, len(gram) - model.order + 1) :]
                while after and not any(g[:-1] == after for g in model.log_probs):
                    after = after[1:]
                yield gram[-1], price + value, after
        if not history:
            return
        price += model.backoffs[history]
        history = history[1:]


def walks(chain, frames, stay):
    """Every way to spend exactly so many frames in a chain: (log weight, targets)."""
    for cuts in combinations(range(1, frames), len(chain) - 1):
        spent = np.diff([0, *cuts, frames])
        weight = sum(
            (n - 1) * math.log(stay[c]) + math.log(1 - stay[c])
            for c, n in zip(chain, spent, strict=True)
        )
        yield weight, tuple(np.repeat(chain, spent).tolist())


def every_path(model, lexicon, scores):
    """All paths by recursion over sentences, without any graph."""
    frames, stay = len(scores), lexicon.stay
    acoustic = lambda at, targets: sum(scores[at + i, s] for i, s in enumerate(targets))  # noqa: E731

    def pauses(at):
        if not lexicon.silence:
            yield 0.0, ()
            return
        yield math.log(1 - lexicon.silence_prob), ()
        for n in range(1, frames - at + 1):
            for weight, targets in walks(lexicon.silence, n, stay):
                yield weight + math.log(lexicon.silence_prob) + acoustic(at, targets), targets

    def after(at, history):
        for pause, silent in pauses(at):
            now = at + len(silent)
            for word, price, then in next_words(model, history):
                if word == END and now == frames:
                    yield Path(pause + price, (), (), silent)
                for chain in lexicon.words.get(word, ()):
                    share = math.log(len(lexicon.words[word]))
                    for n in range(1, frames - now + 1):
                        for weight, targets in walks(chain, n, stay):
                            gain = pause + price - share + weight + acoustic(now, targets)
                            for rest in after(now + n, then):
                                yield Path(
                                    gain + rest.weight,
                                    (word, *rest.words),
                                    ((now, now + n), *rest.times),
                                    (*silent, *targets, *rest.targets),
                                )

    start = (BEGIN,) if model.order > 1 else ()
    return list(after(0, start))


def make_task(order, silence=(), frames=4, seed=0):
    model = train(TEXT, order)
    draw = stream(seed, "tiny task", order, frames)
    lexicon = Lexicon(SAID, silence, silence_prob=0.3, stay=draw.uniform(0.2, 0.8, TARGETS))
    scores = 2 * draw.normal(size=(frames, TARGETS))
    paths = every_path(model, lexicon, scores)
    return Task(model, lexicon, decoding_graph(model, lexicon), scores, paths)


def random_task(words=30, frames=60, order=2, targets=12, seed=0):
    """The graph and scores of a task too large to enumerate, whose words are easily confused."""
    draw = stream(seed, "random task")
    names = [f"w{i:02d}" for i in range(words)]
    text = [tuple(draw.choice(names, 5).tolist()) for _ in range(200)]
    chains = {w: (tuple(draw.integers(1, targets, 4).tolist()),) for w in names}
    lexicon = Lexicon(chains, (0,), stay=np.full(targets, 0.6))
    graph = decoding_graph(train(text, order, vocabulary=names), lexicon)
    return graph, 3 * draw.normal(size=(frames, targets))


@pytest.fixture(scope="session", params=[(1, ()), (1, (0, 1)), (2, ()), (2, (0,)), (3, (0, 1))])
def task(request) -> Task:
    """A tiny task: the model's order and the silence vary."""
    return make_task(*request.param)


@pytest.fixture(scope="session")
def task_of():
    """Makes a tiny task of one's own choice."""
    return make_task
