"""Contribute, then fold: the contract of every training algorithm.

An algorithm is two functions, `Algorithm.contribute` and `Algorithm.fold`, and a server state that
they change. It receives tensors, their staleness and the learning rate of a schedule; never time,
ranks or transports. So one object runs on a simulated cluster and on a real one.

`Memories` joins the memories of several workers, so that their contributions form one batch.

Shape letters: W contributions of a fold, P parameters, B frames, S slots.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from harness.algorithms.saved import Saved
from harness.base.errors import UserError
from harness.networks.contract import Minibatch, Network, upload


@dataclass
class Server(Saved):
    """The shared model and all other state that folds change.

    Args:
        model: the shared parameters ``[P]``.
        version: number of folds so far.
        vectors: further models ``[P]``, by name.
        numbers: scalars, by name (counts and switches; exact in float64).
        tensors: other tensors, by name: ``[P]`` vectors that are not models, such as a momentum,
            and an optimizer's counts, kept on the device so that the host need not wait for them.
        past: models that workers may have read, by name; a server failure does not revert them.
        undone: folds that server failures have reverted.
        restarts: number of restarts of the server at a checkpoint.
    """

    SAVED = ("model", "version", "vectors", "numbers", "tensors", "past", "undone", "restarts")

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
        """Folds contained in the state: the version less the folds that failures reverted.

        A buffer that is emptied at every K-th fold counts by this and not by the version, which
        keeps growing when the state is reverted.
        """
        return self.version - self.undone

    @property
    def changes(self) -> int:
        """Changes of the shared model so far: folds, and restarts at a checkpoint.

        Staleness counts changes, so ``changes - staleness`` identifies the model that was read.
        """
        return self.version + self.restarts

    def candidates(self) -> dict[str, Tensor]:
        """All models that could be deployed, by name: the iterate and those in ``vectors``."""
        return {"iterate": self.model, **self.vectors}


@dataclass
class Memory:
    """Worker-local state, kept from one contribution to the next.

    Each tensor has a row for each of the workers that contribute together, in the order of the
    replicas; numbers (tensors without dimensions) are shared by all of them.

    Args:
        tensors: by name; the executor stores and restores them without reading them.
        new_pass: whether this is the first contribution of a pass over the data: of the worker's
            reads since the pass began. The executor sets it.
        in_flight: of each worker, whether an earlier contribution of its own was in flight at its
            read; empty if of none. The executor sets it.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    new_pass: bool = True
    in_flight: Sequence[bool] = ()


class LocalWork(NamedTuple):
    """Minibatches that W workers turn into contributions, and the replicas they start from.

    Attributes:
        network: the network that is trained.
        replicas: ``[W, P]``, the model that each worker read; may be overwritten.
        minibatches: one for each local step, each with W minibatches of B frames.
        out: ``[W, P]``, filled with the contributions.
        rate: learning rate of local steps.
        memory: worker-local state, changed in place; most algorithms need none.
    """

    network: Network
    replicas: Tensor
    minibatches: Sequence[Minibatch]
    out: Tensor
    rate: float
    memory: Memory


class Fold(NamedTuple):
    """Contributions that enter the server together, with their workers, staleness and weights.

    Attributes:
        contributions: ``[W, P]``, one row per worker.
        staleness: of each, in changes of the model since it was read: folds, and restarts of
            a server that failed.
        rate: learning rate of the fold.
        workers: worker index of each row; empty where one row is the mean of all workers, as in an
            all-reduce of real workers.
        weights: number of minibatches behind each row; empty where they are equal.
    """

    contributions: Tensor
    staleness: Sequence[int]
    rate: float
    workers: Sequence[int] = ()
    weights: Sequence[float] = ()


def check_methods(kind: type, part: str, **arguments: str) -> None:
    """Reject a user's class with a method that cannot be called as it will be.

    Args:
        kind: the class.
        part: what it is, for the message.
        arguments: of each method, by its name.

    Raises:
        UserError: it has other parameters.
    """
    for name, words in arguments.items():
        parameters = inspect.signature(getattr(kind, name))
        try:
            parameters.bind(kind, *words.split(", "))
        except TypeError as error:
            mistake = f"{kind.__qualname__}.{name}{parameters}; allowed: {name}(self, {words})"
            raise UserError(f"{part}: {mistake}") from error


class Algorithm(ABC):
    """Base class of algorithms; a run file can name any subclass.

    Attributes:
        rounds: whether a fold takes the contributions of all workers, not of one.
        remembers: whether workers keep anything in their `Memory`.
        in_shards: whether the server may be sharded, with each shard folding its part by itself.
    """

    rounds: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    in_shards: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Reject a class with a method of other parameters."""
        super().__init_subclass__()
        check_methods(cls, "algorithm", start="model", contribute="work", fold="server, fold")

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """A setting of the run that the algorithm does not support: (key, message), or None.

        Args:
            workers: number of workers of the run.
            under_way: largest number of contributions in flight at once.
        """
        del workers, under_way
        return None

    @property
    def optimizes_in_server(self) -> bool:
        """Whether a fold takes one step of an optimizer along the mean gradient."""
        return False

    @property
    def sent(self) -> float:
        """Size of a message, to or from the server, as a share of all parameters."""
        return 1.0

    def on(self, network: Network) -> Algorithm:
        """Bind the algorithm to a network; the executor calls this once, before the first fold.

        Override it if `fold` needs the network's layer layout; the default returns ``self``.
        """
        del network
        return self

    def start(self, model: Tensor) -> Server:
        """The server's state before the first fold, by default a copy of ``model [P]`` alone."""
        return Server(model.clone())

    @abstractmethod
    def contribute(self, work: LocalWork) -> Tensor:
        """Fill ``work.out [W, P]`` with the contributions of W workers from their stale replicas.

        A contribution is a gradient, parameters, or a difference ``read - moved``. A difference is
        folded into the model's present version, whichever that is.

        Returns:
            The losses ``[W]``, summed over all frames, in nats.
        """
        ...

    @abstractmethod
    def fold(self, server: Server, fold: Fold) -> None:
        """Fold contributions ``[W, P]`` into the server, in place, and count the fold.

        That is ``server.version += 1``, however many contributions there are.
        """
        ...


def start_server(algorithm: Algorithm, model: Tensor) -> Server:
    """The server with which a run of an algorithm begins.

    Raises:
        UserError: ``start`` returns something else.
    """
    server = cast(object, algorithm.start(model))
    if not isinstance(server, Server):
        reason = f"start of {type(algorithm).__name__} returns a {type(server).__name__}"
        raise UserError(f"algorithm: {reason}; allowed: a lagbench.Server")
    return server


def check_losses(algorithm: Algorithm, losses: Tensor, workers: int) -> None:
    """Reject losses of ``contribute`` that are not one for each of several workers.

    Raises:
        UserError: they have another shape.
    """
    if losses.shape != (workers,):
        reason = f"contribute of {type(algorithm).__name__} returns shape {list(losses.shape)}"
        allowed = f"the loss of each of {workers} workers, with contributions in work.out"
        raise UserError(f"algorithm: {reason}; allowed: {allowed}")


def rows(stack: Tensor, slots: Sequence[int]) -> Tensor:
    """The rows ``slots`` of a stack ``[S, P]``: a view if they are contiguous, else a copy."""
    if is_contiguous(slots):
        return stack.narrow(0, slots[0], len(slots))
    return stack[upload(torch.tensor(slots), stack.device)]


def is_contiguous(slots: Sequence[int]) -> bool:
    """Whether slots are consecutive and ascending."""
    return len(slots) == 1 or list(slots) == list(range(slots[0], slots[0] + len(slots)))


Kind = tuple[tuple[str, float], ...]
"""Properties that memories must share to be joined; an empty memory has none."""


def kind_of(memory: Memory) -> Kind:
    """The names in a memory, and its numbers, which have no row for each worker."""
    tensors = sorted(memory.tensors.items())
    return tuple((name, 0.0 if tensor.dim() else tensor.item()) for name, tensor in tensors)


class Memories(Saved):
    """The memories of all workers, by worker index.

    Contributions that are computed as one batch share a joint memory with a row for each of their
    workers. It is split only when another batch is computed, so rounds of all workers copy
    nothing from one round to the next.

    Args:
        memories: by worker.
        begin: makes the memory of a worker that has none.
    """

    SAVED = ("_memories",)

    def __init__(
        self, memories: Mapping[int, Memory] | None = None, begin: Callable[[], Memory] = Memory
    ) -> None:
        self._memories, self._begin = dict(memories or {}), begin
        self._batch: tuple[int, ...] = ()
        self._joint = Memory()

    def state(self) -> dict[str, Any]:
        """See `Saved`; by worker, since how they were joined depends on the last batch alone."""
        self.split()
        return super().state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Saved`; no memory is joined then."""
        self.split()
        super().restore(state)

    def join(self, workers: Sequence[int]) -> Memory:
        """One memory with the rows of several workers in their order, to be changed in place.

        Args:
            workers: indices of workers with memories of one kind (`kinds`).
        """
        if tuple(workers) != self._batch:
            self.split()
            memories = [self._memories.setdefault(worker, self._begin()) for worker in workers]
            self._batch, self._joint = tuple(workers), _join(memories)
        return self._joint

    def kinds(self, workers: Sequence[int]) -> list[Kind]:
        """The part of each worker's memory that memories must share to be joined."""
        joint, together = kind_of(self._joint), set(self._batch)
        return [
            joint if worker in together else kind_of(self._memories.get(worker, Memory()))
            for worker in workers
        ]

    def split(self) -> dict[int, Memory]:
        """Split the joint memory into its workers' own; returns the memories by worker."""
        for place, worker in enumerate(self._batch):
            tensors = self._joint.tensors
            if len(self._batch) > 1:  # numbers are copied: each worker counts by itself again
                rows = rows_of(tensors, slice(place, place + 1))
                tensors = {name: t if t.dim() else t.clone() for name, t in rows.items()}
            self._memories[worker] = Memory(tensors)
        self._batch, self._joint = (), Memory()
        return self._memories


def _join(memories: Sequence[Memory]) -> Memory:
    """One memory with the rows of all; a single memory is returned without a copy."""
    if len(memories) == 1:
        return memories[0]
    return Memory(concat_rows([memory.tensors for memory in memories]))


def rows_of(tensors: Mapping[str, Tensor], span: slice) -> dict[str, Tensor]:
    """The rows ``span`` of all tensors; numbers are shared by all workers."""
    return {name: t[span] if t.dim() else t for name, t in tensors.items()}


def concat_rows(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The rows of several memories, concatenated; numbers are those of the first."""
    return {
        name: torch.cat([part[name] for part in parts]) if tensor.dim() else tensor
        for name, tensor in parts[0].items()
    }
