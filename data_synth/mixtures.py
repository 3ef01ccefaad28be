"""Gaussian mixtures as states' models while targets are sought: one model, many voices.

A mixture grows: every call of ``refit`` splits the heaviest Gaussians until there are as many
as wanted, then re-estimates by expectation and maximisation (as in The HTK Book 3.4, section
10.6, and Dempster, Laird and Rubin 1977). With one component it is the Gaussian of ``align``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_synth.align import VARIANCE_FLOOR, Gaussians

LEAST_FRAMES = 50  # that a component is estimated from
APART = 0.2  # standard deviations that the halves of a split Gaussian move from its mean
ITERATIONS = 2  # of expectation and maximisation


@dataclass(frozen=True, eq=False)
class Mixtures:
    """One mixture of diagonal Gaussians for every HMM state.

    Attributes:
        parts: the Gaussians of all mixtures, [components].
        log_weight: float64 [components], within its mixture.
        state: int64 [components], whose each is, ascending; every state has one or more.
    """

    parts: Gaussians
    log_weight: np.ndarray
    state: np.ndarray

    def loglik(self, features: np.ndarray) -> np.ndarray:
        """Log Σ_c w_c N(x; μ_c, diag σ²_c) of every frame in every state: [frames, n_targets]."""
        each = self.parts.loglik(features) + self.log_weight
        first = np.flatnonzero(np.diff(self.state, prepend=-1))
        top = np.maximum.reduceat(each, first, axis=1)
        share = np.add.reduceat(np.exp(each - top[:, self.state]), first, axis=1)
        return top + np.log(share)

    def of(self, state: int) -> Mixture:
        """The components of one state: means, variances, log weights."""
        own = self.state == state
        return self.parts.mean[own], self.parts.variance[own], self.log_weight[own]


Mixture = tuple[np.ndarray, np.ndarray, np.ndarray]


def refit(
    features: np.ndarray,
    targets: np.ndarray,
    n_targets: int,
    components: int = 1,
    before: Mixtures | None = None,
) -> Mixtures:
    """Maximum likelihood mixtures of aligned frames; a state without frames gets those of all.

    Args:
        features: float [frames, dim].
        targets: int [frames].
        n_targets: how many states.
        components: wanted a state; it gets as many as it has ``LEAST_FRAMES`` for.
        before: where the search begins; from single Gaussians if left out.
    """
    x = np.asarray(features, np.float64)
    order = np.argsort(targets, kind="stable")
    edges = np.searchsorted(targets[order], np.arange(n_targets + 1))
    everything = _gaussian(x)
    found: list[Mixture] = []
    for state in range(n_targets):
        own = x[order[edges[state] : edges[state + 1]]]
        if not len(own):
            found.append(everything)
        elif before is None or components == 1:
            found.append(_gaussian(own))
        else:
            found.append(_improved(own, *_split(before.of(state), components, len(own))))
    mean, variance, weight = (np.concatenate(column) for column in zip(*found, strict=True))
    state = np.repeat(np.arange(n_targets), [len(w) for _, _, w in found])
    return Mixtures(Gaussians(mean, variance), weight, state)


def _gaussian(x: np.ndarray) -> Mixture:
    return x.mean(axis=0)[None], np.maximum(x.var(axis=0), VARIANCE_FLOOR)[None], np.zeros(1)


def _split(mixture: Mixture, components: int, frames: int) -> Mixture:
    """The heaviest components in two, until there are enough, or too few frames for more."""
    mean, variance, weight = (part.copy() for part in mixture)
    while len(mean) < components and frames >= LEAST_FRAMES * (len(mean) + 1):
        heaviest = int(np.argmax(weight))
        step = APART * np.sqrt(variance[heaviest])
        weight[heaviest] -= np.log(2.0)
        mean = np.concatenate([mean, mean[heaviest : heaviest + 1] + step])
        mean[heaviest] -= step
        variance = np.concatenate([variance, variance[heaviest : heaviest + 1]])
        weight = np.concatenate([weight, weight[heaviest : heaviest + 1]])
    return mean, variance, weight


def _improved(x: np.ndarray, mean: np.ndarray, variance: np.ndarray, weight: np.ndarray) -> Mixture:
    """A few rounds of expectation and maximisation on a state's frames."""
    if len(mean) == 1:
        return _gaussian(x)
    for _ in range(ITERATIONS):
        each = Gaussians(mean, variance).loglik(x) + weight
        share = np.exp(each - each.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        frames = share.sum(axis=0) + 1e-8
        mean = share.T @ x / frames[:, None]
        second = share.T @ x**2 / frames[:, None]
        variance = np.maximum(second - mean**2, VARIANCE_FLOOR)
        weight = np.log(frames / frames.sum())
    return mean, variance, weight
