"""Decoding while training: from utterances and stale parameters to outer gradients.

Also the decoding graphs of a corpus for sequence training, the utterances of each replica with
their order, and an even sample of utterances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Corpus, Utterances, frame_edges
from harness.acoustics import language_model
from harness.acoustics.hmm import stay_probabilities
from harness.acoustics.language_model import Lexicon, word_of
from harness.acoustics.mmi import Outer, References, SequenceCriterion
from harness.algorithms.saved import Saved
from harness.base.seeds import stream
from harness.networks.feedforward import Dnn, Layout
from harness.tasks.order import Examples


@dataclass(frozen=True)
class Halves:
    """A network in two parts: a trunk that is never updated, and the trained layers above it.

    Args:
        trunk: the lower layers with their parameters [1, P]; None if all layers are trained.
        net: the trained layers.
    """

    trunk: tuple[Dnn, Tensor] | None
    net: Dnn

    @classmethod
    def split(cls, net: Dnn, model: Tensor, layers: str) -> tuple[Halves, Tensor]:
        """Split a network; also the trained half's part [P'] of its parameters ``model [P]``."""
        if layers == "all":
            return cls(None, net), model
        top = Dnn(Layout(net.layout.sizes[-2:]), net.activation)
        below = Dnn(Layout(net.layout.sizes[:-1]), net.activation)
        size = below.layout.parameters
        return cls((below, model[:size].unsqueeze(0).clone()), top), model[size:]

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs [B, D'] of the trained half for frames [B, D]."""
        if self.trunk is None:
            return x
        net, model = self.trunk
        level = net.logits(model, x.unsqueeze(0))[0]
        return level.sigmoid_() if net.activation == "sigmoid" else level.relu_()

    def whole(self, part: Tensor) -> Tensor:
        """Parameters [P] of the whole network, from those of the trained half, ``part [P']``."""
        return part if self.trunk is None else torch.cat([self.trunk[1][0], part])


@dataclass
class Tally(Saved):
    """Sums of decoding statistics since the last evaluation.

    Attributes:
        utterances, frames: numbers of decoded utterances and frames.
        value: sum of the criterion over the utterances with a finite value.
        value_frames: frames of these utterances.
        kept, rejected, cancelled: numbers of frames.
        troubles: number of utterances with each trouble.
    """

    SAVED = (
        *("utterances", "frames", "value", "value_frames", "kept", "rejected", "cancelled"),
        "troubles",
    )

    utterances: int = 0
    frames: int = 0
    value: float = 0.0
    value_frames: int = 0
    kept: int = 0
    rejected: int = 0
    cancelled: int = 0
    troubles: Counter[str] = field(default_factory=Counter[str])

    def add(self, outer: Outer) -> None:
        """Add the statistics of an utterance."""
        self.utterances += 1
        self.frames += outer.frames
        if np.isfinite(outer.value):
            self.value += outer.value
            self.value_frames += outer.frames
        self.kept += outer.used
        self.rejected += outer.rejected
        self.cancelled += outer.cancelled
        if outer.trouble:
            self.troubles[outer.trouble] += 1

    def take_in(self, tally: Tally) -> None:
        """Add another tally."""
        for name, value in vars(tally).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, eq=False)
class DecodeResult:
    """A decoded utterance, as its trainer receives it.

    Attributes:
        x: inputs [F, D'] of the frames that enter minibatches.
        gradient: their outer gradients [F, K].
        outer: outer gradient of the whole utterance, with its statistics.
    """

    x: Tensor
    gradient: Tensor
    outer: Outer


@dataclass(frozen=True)
class Decoder:
    """Decodes training utterances.

    Args:
        every_frame: whether rejected and cancelled frames enter minibatches too.
        halves: the network.
        frames: the corpus on its device.
        train: its training utterances.
        criterion: computes outer gradients.
    """

    every_frame: bool
    halves: Halves
    frames: Examples
    train: Utterances
    criterion: SequenceCriterion

    @torch.no_grad()
    def decode(self, models: Sequence[Tensor], utterances: Sequence[int]) -> list[DecodeResult]:
        """Decode each utterance with parameters ``[P']`` of its own."""
        return [self._decode_one(m, u) for m, u in zip(models, utterances, strict=True)]

    def _decode_one(self, model: Tensor, utterance: int) -> DecodeResult:
        start, length = int(self.train.start[utterance]), int(self.train.frames[utterance])
        rows = torch.arange(start, start + length, device=model.device)
        x = self.halves.inputs(self.frames.gather(rows.unsqueeze(0)).x[0])
        posteriors = log_posteriors(self.halves.net, model, x)
        outer = self.criterion.outer(posteriors, self.train.words[utterance])
        mask = np.ones_like(outer.kept) if self.every_frame and outer.kept.any() else outer.kept
        entering = torch.as_tensor(np.flatnonzero(mask))
        gradient = torch.as_tensor(outer.gradient).to(model)[entering]
        return DecodeResult(x[entering], gradient, outer)


def log_posteriors(net: Dnn, model: Tensor, x: Tensor) -> np.ndarray:
    """Log p(s|x_t), float64 [T, K], of one model [P] for frames [T, D]."""
    logits = net.logits(model.unsqueeze(0), x.unsqueeze(0))[0]
    return torch.log_softmax(logits.double(), 1).cpu().numpy()


@torch.no_grad()
def posteriors_of(
    net: Dnn, model: Tensor, frames: Examples, part: Utterances
) -> Iterator[np.ndarray]:
    """`log_posteriors` of each utterance, in the arithmetic of the model [P]."""
    for start, length in zip(part.start.tolist(), part.frames.tolist(), strict=True):
        rows = torch.arange(start, start + length, device=model.device)
        yield log_posteriors(net, model, frames.gather(rows.unsqueeze(0)).x[0].to(model.dtype))


@lru_cache(maxsize=2)
def references_of(corpus: Corpus) -> References:
    """Paper 3's graphs for a corpus: a unigram over its lexicon, transitions from its alignment.

    The unigram is estimated from the corpus's text, or from its training transcripts if it
    has none. Built once per process and corpus: all its runs share the graphs of transcripts.
    """
    train = corpus.split("train")
    words = {word_of(entry) for entry in corpus.lexicon}
    model = language_model.train(corpus.lm_text or train.words, 1, vocabulary=words)
    row, start, _ = frame_edges(train)
    stay = stay_probabilities(corpus.targets[row], np.flatnonzero(row == start), corpus.n_targets)
    return References(model, Lexicon.from_entries(corpus.lexicon, corpus.silence, stay))


def parts(seed: int, utterances: int, replicas: int) -> list[np.ndarray]:
    """Partition the training utterances among replicas; sizes differ by at most one.

    Paper 3, section 3: "We partition the training data into a number of subsets and run
    training with a replica of the model for each of these subsets."
    """
    permutation = stream(seed, "sequence parts").permutation(utterances)
    return [permutation[replica::replicas] for replica in range(replicas)]


def orders(seed: int, utterances: int, replicas: int, passes: int) -> np.ndarray:
    """Utterances in each replica's order: its part once per pass, reshuffled for each pass.

    Returns:
        int64 [replicas, most of any replica], -1 after a replica's last utterance.
    """
    rows = [
        [stream(seed, "sequence order", k, replica).permutation(part) for k in range(passes)]
        for replica, part in enumerate(parts(seed, utterances, replicas))
    ]
    order = np.full((replicas, max(sum(map(len, row)) for row in rows)), -1, np.int64)
    for replica, row in enumerate(rows):
        joined = np.concatenate(row)
        order[replica, : len(joined)] = joined
    return order


def sample_evenly(part: Utterances, at_most: int) -> Utterances:
    """At most ``at_most`` utterances, evenly spaced: neighbours are often of one speaker."""
    chosen = np.linspace(0, len(part) - 1, min(at_most, len(part)))
    return part.take(chosen.round().astype(np.int64))
