"""The denominator of sequence training: all that could have been said, two ways.

A lattice, made on the fly by a beam search with the current parameters, as in paper 3; or
the whole graph, which is what an infinitely wide beam would find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.acoustics.accuracy import Accuracies, accuracies, lattice_accuracies
from harness.acoustics.decoder import Beam, lattice
from harness.acoustics.forward_backward import Shares, occupancies
from harness.acoustics.graph import Graph
from harness.acoustics.lattice import Lattice, posteriors, reference_posteriors


@dataclass(frozen=True, eq=False)
class WholeGraph:
    """Exact sums over every path of ``graph`` for one utterance's ``scores`` [T, K].

    ``shares`` are the scores' ``likelihoods``, if they are known.
    """

    graph: Graph
    scores: np.ndarray
    shares: Shares | None = None

    def occupancies(self, boost: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """Log Z and γ [T, K]; ``boost`` [T, K] is added to the scores."""
        if boost is None:
            return occupancies(self.graph, self.scores, self.shares)
        return occupancies(self.graph, self.scores + boost)

    def accuracies(self, targets: np.ndarray) -> Accuracies:
        """Expected state accuracy against ``targets`` [T]."""
        return accuracies(self.graph, self.scores, targets)

    def at(self, scores: np.ndarray) -> WholeGraph:
        """The same paths with other ``scores`` [T, K]."""
        return WholeGraph(self.graph, scores)


@dataclass(frozen=True, eq=False)
class OnTheFly:
    """Sums over the paths of the lattice that a beam search found for one utterance."""

    lattice: Lattice
    n_targets: int

    def occupancies(self, boost: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """Log Z and γ [T, K]; ``boost`` [T, K] is added to the arcs' scores."""
        found = self.lattice if boost is None else boosted(self.lattice, boost)
        return posteriors(found, self.n_targets)

    def accuracies(self, targets: np.ndarray) -> Accuracies:
        """Expected state accuracy against ``targets`` [T]."""
        return lattice_accuracies(self.lattice, targets, self.n_targets)

    def reference(self, words: tuple[str, ...]) -> tuple[float, np.ndarray]:
        """Log Z and γ [T, K] of the paths that say ``words``; -inf where none does."""
        return reference_posteriors(self.lattice, words, self.n_targets)

    def at(self, scores: np.ndarray) -> OnTheFly:
        """The same paths, none searched for anew, with other ``scores`` [T, K]."""
        weighed = replace(self.lattice, score=self.lattice.graph.weight[self.lattice.arc])
        return replace(self, lattice=boosted(weighed, scores))


Denominator = WholeGraph | OnTheFly


def denominator(
    graph: Graph, scores: np.ndarray, beam: Beam | None, shares: Shares | None = None
) -> Denominator:
    """What stands in the denominator of one utterance.

    Args:
        graph: the word loop.
        scores: float64 [T, K], scaled acoustic scores.
        beam: what the search for a lattice keeps; None for the whole graph.
        shares: the scores' ``likelihoods``, if they are known.
    """
    if beam is None:
        return WholeGraph(graph, scores, shares)
    return OnTheFly(lattice(graph, scores, beam), scores.shape[1])


def boosted(found: Lattice, boost: np.ndarray) -> Lattice:
    """The same paths with ``boost[t, s]`` nats more wherever target s is entered in frame t."""
    entered = found.node[found.to]
    gain = np.zeros(len(entered))
    state = entered < found.graph.states
    frame = found.layer[found.to[state]] - 1
    gain[state] = boost[frame, found.graph.target[entered[state]]]
    return replace(found, score=found.score + gain)
