"""Difficulty of a corpus, and the benefit of depth, measured with three classifiers.

A linear, a shallow and a deep classifier of spliced frames are trained alike (Adam, rate
annealed to nothing) on the same frames, and judged on development frames. This measures
the corpus, not a paper's training method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from data_synth.corpus import Corpus, Utterances, splice_index
from harness.base.seeds import stream, stream_key

MINIBATCH = 256
RATE = 1e-3


@dataclass(frozen=True)
class Effort:
    """Training effort of the three models.

    Attributes:
        epochs: passes over the training frames.
        train_frames, test_frames: largest number of frames drawn of a split.
        units: width of a hidden layer.
        layers: hidden layers of the deep model.
    """

    epochs: int = 6
    train_frames: int = 400_000
    test_frames: int = 20_000
    units: int = 256
    layers: int = 3


@dataclass(frozen=True)
class Validation:
    """Results of the three models; errors are shares of frames with a wrong target.

    Attributes:
        chance: error of always answering the commonest training target.
        linear, shallow, deep: error on ``dev``.
        possible: exp(cross-entropy) of the deep model on ``dev``, its perplexity: the number
            of equally likely targets left by a frame, the corpus's confusability.
        tests: test set -> the deep model's error.
        frames: training frames used.
        targets: number of targets.
    """

    chance: float
    linear: float
    shallow: float
    deep: float
    possible: float
    tests: dict[str, float]
    frames: int
    targets: int

    @property
    def depth_pays(self) -> float:
        """Linear over deep error; at 1 depth is worth nothing."""
        return self.linear / self.deep if self.deep else float("inf")


def draw_frames(
    corpus: Corpus, split: Utterances, most: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Spliced inputs' rows and targets of at most ``most`` frames of whole utterances.

    Returns:
        int [frames, 2 * context + 1] rows of ``corpus.features``, and int64 [frames].
    """
    order = stream(seed, "validate utterances").permutation(len(split))
    enough = int(np.searchsorted(np.cumsum(split.frames[order]), most)) + 1
    rows = splice_index(split.take(np.sort(order[:enough])), corpus.context)[:most]
    return rows, np.asarray(corpus.targets[rows[:, corpus.context]], np.int64)


def train_network(
    corpus: Corpus, sizes: list[int], effort: Effort, seed: int
) -> Callable[[np.ndarray], Any]:
    """A network from spliced rows of ``corpus.features`` to log posteriors.

    Args:
        corpus: to train on.
        sizes: units of the hidden layers, none for a linear model.
        effort: frames and epochs.
        seed: of the initial weights and the order of frames.

    Returns:
        A function from int [frames, 2 * context + 1] to a float32 tensor [frames, targets].
    """
    import torch

    from harness.networks.feedforward import denormals_flushed

    rows, targets = draw_frames(corpus, corpus.split("train"), effort.train_frames, seed)
    features = torch.as_tensor(np.array(corpus.features, np.float32))
    inputs = features.shape[1] * rows.shape[1]
    with torch.random.fork_rng(devices=list[int]()):  # pyright: ignore[reportUnknownMemberType]
        torch.manual_seed(  # pyright: ignore[reportUnknownMemberType]
            stream_key(seed, "validate weights", len(sizes)) % 2**63
        )
        network = _network([inputs, *sizes, corpus.n_targets])
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    steps = max(1, effort.epochs * -(-len(rows) // MINIBATCH))
    slower = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    with denormals_flushed():
        for epoch in range(effort.epochs):
            order = stream(seed, "validate order", epoch).permutation(len(rows))
            for start in range(0, len(rows), MINIBATCH):
                pick = order[start : start + MINIBATCH]
                logits = network(features[rows[pick]].flatten(1))
                loss = torch.nn.functional.cross_entropy(logits, torch.as_tensor(targets[pick]))
                optimiser.zero_grad()
                loss.backward()  # pyright: ignore[reportUnknownMemberType]
                optimiser.step()  # pyright: ignore[reportUnknownMemberType]
                slower.step()

    def posteriors(rows: np.ndarray) -> Any:
        with torch.no_grad():
            pieces = [
                network(features[r].flatten(1)) for r in np.array_split(rows, 1 + len(rows) // 8192)
            ]
            return torch.log_softmax(torch.cat(pieces), 1)

    return posteriors


def _network(sizes: list[int]) -> Any:
    import torch

    layers: list[torch.nn.Module] = []
    for m, n in pairwise(sizes):
        layers += [torch.nn.Linear(m, n), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def validate(
    corpus: Corpus, effort: Effort, seed: int = 0, progress: Callable[[str], None] = print
) -> Validation:
    """Trains the three models and reports their errors.

    Args:
        corpus: to be measured.
        effort: frames, epochs and sizes.
        seed: weights, order and choice of frames.
        progress: called with a line of text now and then.
    """
    rows, targets = draw_frames(corpus, corpus.split("dev"), effort.test_frames, seed)
    errors: list[float] = []
    for layers in (0, 1, effort.layers):
        network = train_network(corpus, [effort.units] * layers, effort, seed)
        answers = network(rows)
        errors.append(float((answers.argmax(1).numpy() != targets).mean()))
        progress(f"{layers} hidden layers: {errors[-1]:.1%} of development frames wrong")
    # `answers` and `network` are those of the last model, the deep one.
    picked = answers.numpy()[np.arange(len(targets)), targets]
    train = corpus.split("train")  # in one piece
    begin = int(train.start[0])
    commonest = np.bincount(corpus.targets[begin : begin + train.total_frames]).argmax()
    return Validation(
        chance=float((targets != commonest).mean()),
        linear=errors[0],
        shallow=errors[1],
        deep=errors[2],
        possible=float(np.exp(-picked.mean())),
        tests={name: _error(corpus, name, network, effort, seed) for name in corpus.tests},
        frames=min(effort.train_frames, corpus.frames_of("train")),
        targets=corpus.n_targets,
    )


def _error(
    corpus: Corpus, name: str, network: Callable[[np.ndarray], Any], effort: Effort, seed: int
) -> float:
    rows, targets = draw_frames(corpus, corpus.split(name), effort.test_frames, seed)
    return float((network(rows).argmax(1).numpy() != targets).mean())
