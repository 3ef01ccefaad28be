"""Sequence criteria: numerator, denominator, outer and inner gradients.

A criterion maps an utterance's log posteriors to its outer gradient (paper 3, eq. 2, 3).
With scores l_t(s) = κ (log p(s|x_t) - log p(s)) and Z the sum over paths of exp(Σ_t l_t + log
transitions + log P(W)),

    F = log Z_num - log Z_den,      o_t(s) = ∂F/∂log p(s|x_t) = κ (γ_num,t(s) - γ_den,t(s)).

The reference's paths are among the denominator's, so F ≤ 0. Rows of o sum to 0, so the
gradient of -Σ o log p(s|x) at the logits is -o itself: whole rows may be left out, single
entries may not. Gradients here are ascent directions.

Beside MMI: its numerator alone, paper 3's control, whose rows of o sum to κ.

The numerator is the reference's best alignment, or the sum over all its alignments.

The denominator covers all competing word sequences, in one of two ways: a lattice, made on the
fly by a beam search with the current parameters, as in paper 3; or the whole graph, the limit of
an infinitely wide beam.

The auxiliary function of paper 3, section 3.3, is the objective of a replica between two decodes.
With the outer gradient o of θ' held fixed,

    A(θ; θ') = F(θ') + Σ_t Σ_s o_t(s; θ') (log p_θ(s|x_t) - log p_θ'(s|x_t))

is tangent to the criterion F at θ': it has F's value there (paper 3 leaves the constant out)
and, by the chain rule, F's gradient. It has the form of a frame criterion with targets o.

The inner gradient is that of this frame loss (paper 3, section 2): with the outer gradient o_t(s)
held fixed, the loss is -Σ_t Σ_s o_t(s) log p(s|x_t). Its derivative at the logits is
softmax(z_t) Σ_s o_t(s) - o_t: where the rows of o sum to zero, as in MMI, it is -o_t for any
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from harness.acoustics.compiling import kernel
from harness.acoustics.decoder import EVERYTHING, Beam, decode, lattice
from harness.acoustics.graph import Graph, decoding_graph, transcript_graph
from harness.acoustics.language_model import LanguageModel, Lexicon
from harness.acoustics.lattice import Lattice, posteriors, reference_posteriors
from harness.acoustics.sums import Shares, likelihoods, occupancies
from harness.base.settings import Spec, setting
from harness.networks.feedforward import Dnn, Layout, Visit

Kind = Literal["mmi", "numerator"]

Paths = Literal["lattice", "graph"]

Numerator = Literal["alignment", "sum"]

Trouble = Literal[
    "no frames",  # an utterance without frames
    "not finite",  # a log posterior is NaN or +inf, or a frame has nothing above -inf; or they
    # are so large that sums of them overflow
    "out of lexicon",  # a word of the reference is not in the word loop
    "unreachable",  # the reference's states need more frames than there are
    "no end",  # the beam search reached no final state
    "lost",  # the lattice does not hold the reference
    "nothing kept",  # every frame was rejected or cancelled
]

ROUNDING = 1e-9
"""Relative rounding error of log Z that is tolerated when two sums are compared."""


@dataclass(frozen=True)
class Criterion(Spec):
    """Settings of the criterion that sequence training maximises.

    Args:
        kind: ``"mmi"``, or ``"numerator"`` for MMI without denominator.
        kappa: κ, the acoustic scale; the gradient carries it.
        denominator: ``"lattice"``, made on the fly, or the whole ``"graph"``.
        beam: limits of the search for lattices.
        numerator: the reference's best ``"alignment"``, or the ``"sum"`` over all of them.
        reject_below: ε: a frame is rejected if the denominator gives the numerator's state a
            smaller occupancy (paper 3: 0.001). At least half of a summed numerator must lie on
            states at or above ε.
        cancel_below: τ: a frame is left out if Σ_s |o_t(s)| / κ is smaller.
    """

    kind: Kind = "mmi"
    kappa: float = setting(0.3, above=0.0)
    denominator: Paths = "graph"
    beam: Beam = field(default_factory=Beam)
    numerator: Numerator = "alignment"
    reject_below: float = setting(1e-3, at_least=0.0)
    cancel_below: float = setting(2e-3, at_least=0.0)

    @property
    def mass(self) -> float:
        """Σ_s o_t(s) of every kept row.

        The derivative of the loss -Σ o log p(s|x) at the logits is ``mass softmax(logits) - o``.
        """
        return self.kappa if self.kind == "numerator" else 0.0


@dataclass(frozen=True, eq=False)
class Outer:
    """The outer gradient of one utterance.

    Attributes:
        value: F in nats; log Z_num for the numerator alone. NaN where nothing could be computed;
            above 0 for MMI only where the lattice lost the reference.
        gradient: float64 [T, K], ascent direction; rows that are not kept are 0.
        kept: bool [T], whether a frame has a gradient.
        rejected, cancelled: numbers of frames left out by ε, and of the others by τ.
        trouble: reason for a missing or partial gradient, or None.
    """

    value: float
    gradient: np.ndarray
    kept: np.ndarray
    rejected: int = 0
    cancelled: int = 0
    trouble: Trouble | None = None

    @property
    def frames(self) -> int:
        """Number T of frames."""
        return len(self.kept)

    @property
    def used(self) -> int:
        """Number of frames that are kept."""
        return int(self.kept.sum())


class SequenceCriterion:
    """Computes outer gradients from log posteriors, utterance by utterance.

    Args:
        criterion: settings of the criterion.
        references: graphs of references, and the word loop of their competitors.
        log_prior: float [K], log p(s).
    """

    def __init__(self, criterion: Criterion, references: References, log_prior: np.ndarray) -> None:
        self.criterion, self.references = criterion, references
        self.log_prior = np.asarray(log_prior, np.float64)

    @property
    def graph(self) -> Graph:
        """The word loop of the denominator."""
        return self.references.loop

    def scores(self, log_posteriors: np.ndarray) -> np.ndarray:
        """κ (log p(s|x_t) - log p(s)), float64 [T, K]."""
        return self.criterion.kappa * (np.asarray(log_posteriors, np.float64) - self.log_prior)

    def align(self, log_posteriors: np.ndarray, reference: Sequence[str]) -> Alignment | None:
        """The reference's best path; None if it has none, for any reason in `Trouble`."""
        scores, words = self.scores(log_posteriors), tuple(reference)
        if self._unusable(scores, words):
            return None
        return self.references.align(words, scores)

    def outer(
        self, log_posteriors: np.ndarray, reference: Sequence[str], paths: Lattice | None = None
    ) -> Outer:
        """Value and outer gradient of one utterance, with its `Trouble` if any.

        Args:
            log_posteriors: float [T, K], log p(s|x_t).
            reference: words of the transcript.
            paths: the paths of a denominator by lattice, see `search`; None to search for them.
        """
        scores, words = self.scores(log_posteriors), tuple(reference)
        trouble = self._unusable(scores, words)
        if trouble:
            return _nothing(scores, trouble)
        rules = self.criterion
        shares = likelihoods(scores) if rules.denominator == "graph" else None
        log_num, gamma_num = self._compute_numerator(words, scores, shares)
        if log_num == -math.inf:
            return _nothing(scores, "unreachable")
        if rules.kind == "numerator":
            return Outer(log_num, rules.kappa * gamma_num, np.ones(len(scores), np.bool_))
        if rules.denominator == "graph":
            competitors = None
            log_den, gamma_den = occupancies(self.graph, scores, shares)
        else:
            competitors = (
                rescore(paths, scores) if paths else lattice(self.graph, scores, rules.beam)
            )
            log_den, gamma_den = posteriors(competitors, scores.shape[1])
        if log_den == -math.inf:
            return _nothing(scores, "no end")
        # sums of finite scores may overflow all the same
        if not (math.isfinite(log_den) and np.isfinite(gamma_den).all()):
            return _nothing(scores, "not finite")
        is_lost = False
        if competitors is not None:  # a lattice prunes a path from both sums, so that F ≤ 0
            log_among, gamma_among = reference_posteriors(competitors, words, scores.shape[1])
            if log_among == -math.inf:
                is_lost = True
            elif rules.numerator == "sum":
                log_num, gamma_num = log_among, gamma_among
            else:
                is_lost = log_num > log_den + ROUNDING * (1 + abs(log_den))
        gradient, rejected, alive = _weigh_frames(
            gamma_num, gamma_den, rules.reject_below, rules.cancel_below, rules.kappa
        )
        used, cancelled = alive & ~rejected, int((~alive & ~rejected).sum())
        trouble = "lost" if is_lost else None if used.any() else "nothing kept"
        return Outer(log_num - log_den, gradient, used, int(rejected.sum()), cancelled, trouble)

    def search(self, log_posteriors: np.ndarray) -> Lattice | None:
        """The paths of a denominator by lattice, from float [T, K]; None for the whole graph."""
        if self.criterion.denominator == "graph":
            return None
        return lattice(self.graph, self.scores(log_posteriors), self.criterion.beam)

    def _unusable(self, scores: np.ndarray, words: Words) -> Trouble | None:
        if not len(scores):
            return "no frames"
        if not np.isfinite(scores.max(axis=1)).all():
            return "not finite"
        return "out of lexicon" if self.references.unsayable(words) else None

    def _compute_numerator(
        self, words: Words, scores: np.ndarray, shares: Shares | None
    ) -> tuple[float, np.ndarray]:
        """Log Z and γ [T, K] of the reference: over all its alignments, or along the best path."""
        if self.criterion.numerator == "sum":
            return occupancies(self.references.graph(words), scores, shares)
        best = self.references.align(words, scores)
        if best is None:
            return -math.inf, scores
        return best.log_weight(scores), best.occupancies(scores.shape[1])


@kernel
def _weigh_frames(
    gamma_num: np.ndarray, gamma_den: np.ndarray, reject: float, cancel: float, kappa: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradient κ (γ_num - γ_den) [T, K], zero in frames left out; masks [T] rejected and alive.

    A frame is rejected if Σ_s γ_num(s) [γ_den(s) ≥ ε] < ½: most of the numerator lies on states
    that the denominator scarcely has; for an alignment, γ_den of its state is below ε. A frame is
    alive if Σ_s |γ_num - γ_den| ≥ τ.
    """
    # one pass over the frames instead of one per numpy expression: this runs on every utterance
    gradient = np.zeros_like(gamma_num)
    rejected = np.zeros(len(gamma_num), np.bool_)
    alive = np.zeros(len(gamma_num), np.bool_)
    for t in range(len(gamma_num)):
        row, num, den = gradient[t], gamma_num[t], gamma_den[t]
        shared = apart = 0.0
        for s in range(len(num)):
            row[s] = kappa * (num[s] - den[s])
            apart += abs(num[s] - den[s])
            if den[s] >= reject:
                shared += num[s]
        rejected[t], alive[t] = shared < 0.5, apart >= cancel
        if rejected[t] or not alive[t]:
            row[:] = 0.0
    return gradient, rejected, alive


def _nothing(scores: np.ndarray, trouble: Trouble) -> Outer:
    no_frame = np.zeros(len(scores), np.bool_)
    return Outer(math.nan, np.zeros(scores.shape), no_frame, trouble=trouble)


REMEMBERED = 16_384
"""Number of transcript graphs in the cache."""

Words = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Alignment:
    """One path of a reference.

    Attributes:
        targets: int32 [T], the target of each frame.
        weight: log weight of the path's arcs: transitions, pronunciations, language model.
    """

    targets: np.ndarray
    weight: float

    def log_weight(self, scores: np.ndarray) -> float:
        """Log weight of the path, its acoustic ``scores`` [T, K] included."""
        return self.weight + float(scores[np.arange(len(scores)), self.targets].sum())

    def occupancies(self, n_targets: int) -> np.ndarray:
        """γ [T, K], float64: 1 at each frame's target."""
        gamma = np.zeros((len(self.targets), n_targets))
        gamma[np.arange(len(self.targets)), self.targets] = 1.0
        return gamma


class References:
    """Builds the graphs of references, with the arcs and weights of the word loop.

    Args:
        model: a unigram model: with it a path's weight is the same in both graphs.
        lexicon: pronunciations.

    Attributes:
        loop: the graph of all word sequences of the lexicon.
    """

    def __init__(self, model: LanguageModel, lexicon: Lexicon) -> None:
        self.model, self.lexicon = model, lexicon
        self.loop = decoding_graph(model, lexicon)
        self._sayable = frozenset(self.loop.words)

        @lru_cache(REMEMBERED)
        def graph(words: Words) -> Graph:
            return transcript_graph(words, model, lexicon)

        # The graph of one reference, which has no `unsayable` word.
        self.graph = graph

    def unsayable(self, reference: Words) -> Words:
        """The words of a reference that the word loop lacks."""
        return tuple(w for w in reference if w not in self._sayable)

    def align(self, reference: Words, scores: np.ndarray) -> Alignment | None:
        """The heaviest path of a reference (Viterbi); None if none has T frames.

        Args:
            reference: words of the transcript.
            scores: float64 [T, K], scaled acoustic scores.
        """
        path = decode(self.graph(reference), scores, EVERYTHING)
        if not path.complete or path.score == -math.inf:
            return None
        acoustic = scores[np.arange(len(scores)), path.targets].sum()
        return Alignment(path.targets, path.score - float(acoustic))


def rescore(paths: Lattice, scores: np.ndarray) -> Lattice:
    """The same paths, without a new search, with other scaled acoustic ``scores`` [T, K]."""
    graph, entered = paths.graph, paths.node[paths.to]
    gain = np.zeros(len(entered))
    state = entered < graph.states
    frame = paths.layer[paths.to[state]] - 1
    gain[state] = scores[frame, graph.target[entered[state]]]
    return replace(paths, score=graph.weight[paths.arc] + gain)


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """A tangent of the criterion for one utterance.

    Args:
        outer: value and outer gradient at θ'. With frames rejected or cancelled, the slope is
            that of the kept frames.
        log_posteriors: float [T, K], log p_θ'(s|x_t).
    """

    outer: Outer
    log_posteriors: np.ndarray

    def value(self, log_posteriors: np.ndarray) -> float:
        """A(θ; θ') from log p_θ(s|x_t), float [T, K]; finite wherever θ' gives no -inf."""
        moved = np.asarray(log_posteriors, np.float64) - self.log_posteriors
        return self.outer.value + float((self.outer.gradient * moved).sum())


@dataclass(frozen=True)
class InnerLoss:
    """A network with the inner loss, whose targets are outer gradients.

    Args:
        net: network from a frame's input to logits.
        balanced: whether every row of the outer gradients sums to zero.
        frozen: targets whose outputs get no update.
    """

    net: Dnn
    balanced: bool = True
    frozen: Sequence[int] = ()

    @property
    def layout(self) -> Layout:
        """Layout of the network's layers in its parameter vector."""
        return self.net.layout

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """See ``Dnn.matrices``."""
        return self.net.matrices(stack)

    def gradient(self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> Tensor:
        """Write the gradient, summed over each minibatch, to ``out``; returns zeros ``[R]``.

        The loss's value is not computed: outer gradients change with the parameters, so values
        are not comparable.

        Args:
            stack: parameters ``[R, P]``.
            x: inputs ``[R, B, D]``.
            targets: outer gradients ``[R, B, K]``, ascent; zeros for a frame to leave out.
            out: ``[R, P]``, overwritten.
        """
        return self.backward(stack, x, targets, self.net.gradient_writer(out))

    def backward(self, stack: Tensor, x: Tensor, targets: Tensor, visit: Visit) -> Tensor:
        """Call ``visit`` with every layer's inputs and derivatives; see ``Dnn.backward``."""
        return self.net.backward_from(stack, x, self._derivative(targets), visit)

    def _derivative(self, outer: Tensor) -> Callable[[Tensor], Tensor]:
        def inner(logits: Tensor) -> Tensor:
            if self.balanced:
                torch.neg(outer, out=logits)
            else:
                torch.softmax(logits, 2, out=logits)
                logits.mul_(outer.sum(2, keepdim=True)).sub_(outer)
            if self.frozen:
                logits[:, :, list(self.frozen)] = 0.0
            return logits.new_zeros(len(logits))

        return inner
