"""What a local optimizer is: the direction a worker takes from a gradient, and what it remembers.

Any of them can make the local steps of any algorithm that has some (`local_descent`).

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from harness.networks.contract import Network

State = dict[str, Tensor]
"""By name; every tensor has a row for each worker."""


class LocalOptimizer(ABC):
    """Turns gradients into directions; a dataclass of its kind can be named in a run file."""

    @abstractmethod
    def start(self, replicas: Tensor) -> State:
        """What is known before the first step.

        Args:
            replicas: ``[W, P]``, where workers start.

        Returns:
            Tensors by name, each with a row for each worker; executors keep and restore them.
        """
        ...

    @abstractmethod
    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """Make of gradients the directions against which replicas move, both ``[W, P]``.

        Args:
            gradients: of the mean loss; overwritten with the directions.
            replicas: where they were taken; left alone.
            state: changed in place.
            network: where its layers lie in a row.
        """
        ...
