"""An algorithm of one's own as a package: a stale gradient counts for less."""

from dataclasses import dataclass

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
