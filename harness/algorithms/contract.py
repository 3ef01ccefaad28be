"""Contribute, then fold: what every training algorithm of the harness is.

An algorithm is two functions and a server state that goes in and comes out. It sees
tensors, how stale they are and the rate its schedule asks for; never time, ranks or
transports. So one object runs on a simulated cluster and on a real one.

Shape letters: W contributions at once, P parameters, B frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from harness.networks.contract import Minibatch, Network


@dataclass
class Server:
    """The shared model and whatever else the folds change.

    Args:
        model: the shared parameters ``[P]``.
        version: number of folds so far.
        vectors: further models ``[P]`` an algorithm keeps, by name.
        numbers: scalars it keeps, by name (counts and switches; exact in float64).
        tensors: what else it keeps, by name: ``[P]`` vectors that are no models, such as a
            momentum, and an optimizer's counts where the host must not wait for them.
        past: models that workers may have read, by name; a failure of the server takes none back.
        undone: folds that failures of the server have taken back.
        restarts: versions at which the server failed and went back to a checkpoint.
    """

    model: Tensor
    version: int = 0
    vectors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    past: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    undone: int = 0
    restarts: int = 0

    @property
    def folds(self) -> int:
        """Folds that the state is made of: the version, less those that failures took back.

        A buffer that is emptied at every K-th fold is addressed by this and not by the version,
        which goes on when the state goes back.
        """
        return self.version - self.undone

    @property
    def changes(self) -> int:
        """Changes of the shared model so far: folds, and restarts at a checkpoint.

        Staleness counts changes, so ``changes - staleness`` names the model that was read.
        """
        return self.version + self.restarts

    def candidates(self) -> dict[str, Tensor]:
        """Every model one could deploy, by name: the iterate, and the models kept beside it."""
        return {"iterate": self.model, **self.vectors}


@dataclass
class Memory:
    """What workers remember from one contribution to their next.

    Each tensor has a row for each of the workers that contribute together, in the order of the
    replicas; numbers (tensors without dimensions) are those of all.

    Args:
        tensors: by name; the executor keeps and restores them and looks no further.
        new_pass: whether this is the first contribution of a pass over the data.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    new_pass: bool = True


class Algorithm(ABC):
    """What an executor needs of an algorithm; any subclass can be named in a run file.

    Attributes:
        rounds: whether a fold takes the contributions of all workers, not of one.
        considers: how often in a pass `consider` is called, whatever else is measured when.
        remembers: whether workers keep anything in their `Memory`.
        in_shards: whether the folds of a server in shards, each of its part, are its folds.
    """

    rounds: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    in_shards: ClassVar[bool] = True
    considers: ClassVar[int] = 0

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """What a run asks for that the algorithm cannot have: (key, what is wrong and allowed).

        Args:
            workers: how many the run has.
            under_way: contributions that may be under way at once.
        """
        del workers, under_way
        return None

    @property
    def sent(self) -> float:
        """The share of the parameters that travels with a contribution, and back."""
        return 1.0

    def on(self, network: Network) -> Algorithm:
        """The algorithm as it trains a network: for a fold that asks where layers lie.

        Whoever folds asks for it once, before the first fold; most algorithms are the same on all.
        """
        del network
        return self

    @abstractmethod
    def start(self, model: Tensor) -> Server:
        """The server's state before the first fold, from initial parameters ``[P]``."""
        ...

    @abstractmethod
    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Fill ``out [W, P]`` with the contributions of W workers from their stale replicas.

        Args:
            network: what is trained.
            replicas: ``[W, P]``, what each worker read; may be overwritten.
            minibatches: one for each local step, each with W minibatches of B frames.
            out: the contributions: gradients, parameters, or differences ``read - moved``, which
                enter the model whatever its version is by then.
            rate: of local steps.
            memory: what the workers remember, changed in place; most algorithms need none.

        Returns:
            The losses ``[W]``, summed over all frames, in nats.
        """
        ...

    @abstractmethod
    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Enter the contributions ``[W, P]`` of one fold into the server, in place.

        The server's version grows by one, however many contributions there are.

        Args:
            server: changed in place.
            contributions: by worker.
            staleness: of each, in changes of the model since it was read: folds, and restarts of
                a server that failed.
            rate: of the fold.
            workers: whose each is; empty where a row stands for all of them, as the mean does
                that real workers take among themselves.
            weights: minibatches that each was computed from; empty where they are equal.
        """
        ...

    def consider(self, server: Server, errors: Mapping[str, float]) -> dict[str, float]:
        """What the algorithm decides once the candidates have been scored on development data.

        Args:
            server: changed in place.
            errors: the share of frames wrong of every candidate, by name.

        Returns:
            What happened, to be logged by name; mostly nothing.
        """
        del server, errors
        return {}
