"""An algorithm of one's own, outside the tree: a stale gradient counts for less.

lagbench check-algorithm Fading --import own_algorithm      # in this folder
python own_algorithm.py
"""

from dataclasses import dataclass

from torch import nn

import lagbench
from lagbench import Algorithm, Fold, LocalWork, Server


@dataclass(frozen=True)
class Fading(Algorithm):
    """``theta <- theta - rate fade^staleness g``."""

    fade: float = 0.9

    def start(self, model):
        """A server that holds a copy of the model."""
        return Server(model.clone())

    def contribute(self, work: LocalWork):
        """The gradient of one minibatch for each worker."""
        return work.network.gradient(work.replicas, *work.minibatches[0], work.out)

    def fold(self, server: Server, fold: Fold):
        """A step for each, the smaller the staler it is."""
        for gradient, stale in zip(fold.contributions, fold.staleness, strict=True):
            server.model.sub_(gradient, alpha=fold.rate * self.fade**stale)
        server.version += 1


if __name__ == "__main__":
    from own_data import pictures

    print(
        lagbench.compare(
            *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(1000, 0)),
            cluster="k20m-server",
            algorithms=["async", Fading(0.8)],
            workers=[16],
            rates=0.05,
            seeds=2,
            passes=2,
        )
    )
