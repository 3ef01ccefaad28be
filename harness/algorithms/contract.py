"""Contribute, then fold: the contract of every training algorithm.

Contribute, then fold: what every training algorithm of the harness is. An algorithm is two
functions and a server state that goes in and comes out. It sees tensors, how stale they are and
the rate its schedule asks for; never time, ranks or transports. So one object runs on a simulated
cluster and on a real one.

Shape letters: W contributions at once, P parameters, B frames.

Several folds in a row, with the reads between them. A fold, an average and a read each pass over
all parameters, and memory is slow: at 1.3 million parameters three passes a fold cost a seventh of
the gradient. Where parameter i depends on nothing but what stands at i, folds in a row may be done
for one block of parameters after the other, which stays in the nearest cache (`blocks`). That
changes the order in which memory is visited and no bit of the result.

Shape letters: S slots, P parameters.

Memories of several workers as one, so that their contributions are computed as one batch.

Algorithms whose every contribution and fold asks a device for the same operations. Such operations
can be recorded once, as a CUDA graph, and be played again. What the host would decide in between
(rates, weights of an average) is then read from a tensor that is filled before.

Shape letters: W contributions of a fold, P parameters, Q numbers of a fold.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from harness.base.log import FormerWarning
from harness.networks.contract import Minibatch, Network, upload


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


class LocalWork(NamedTuple):
    """Minibatches that W workers turn into contributions, and the replicas they start from.

    Attributes:
        network: what is trained.
        replicas: ``[W, P]``, what each worker read; may be overwritten.
        minibatches: one for each local step, each with W minibatches of B frames.
        out: ``[W, P]``, filled with the contributions.
        rate: of local steps.
        memory: what the workers remember, changed in place; most algorithms need none.
    """

    network: Network
    replicas: Tensor
    minibatches: Sequence[Minibatch]
    out: Tensor
    rate: float
    memory: Memory


class Fold(NamedTuple):
    """Contributions that enter the server together, and where they come from.

    Attributes:
        contributions: ``[W, P]``, by worker.
        staleness: of each, in changes of the model since it was read: folds, and restarts of
            a server that failed.
        rate: of the fold.
        workers: whose each is; empty where a row stands for all of them, as the mean does
            that real workers take among themselves.
        weights: minibatches that each was computed from; empty where they are equal.
    """

    contributions: Tensor
    staleness: Sequence[int]
    rate: float
    workers: Sequence[int] = ()
    weights: Sequence[float] = ()


class Algorithm(ABC):
    """What an executor needs of an algorithm; any subclass can be named in a run file.

    Attributes:
        rounds: whether a fold takes the contributions of all workers, not of one.
        considers: how often in a pass `consider` is called, whatever else is measured when.
        remembers: whether workers keep anything in their `Memory`.
        in_shards: whether the folds of a server in shards, each of its part, are its folds.
        averages_gradients: whether a fold goes along the mean of all workers' gradients, so that
            rates grow with workers.
    """

    rounds: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    in_shards: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = False
    considers: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        """Let `contribute` and `fold` be written and called with the former parameters, too."""
        super().__init_subclass__()
        _accept_former(cls)

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """What a run asks for that the algorithm cannot have: (key, what is wrong and allowed).

        Args:
            workers: how many the run has.
            under_way: contributions that may be under way at once.
        """
        del workers, under_way
        return None

    def with_workers(self, workers: int) -> Self:
        """The same for so many workers, where a setting says how many there are."""
        del workers
        return self

    @property
    def repeats(self) -> bool:
        """Whether its folds ask a device for the same operations each time; see `Repeating`."""
        return False

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
    def contribute(self, work: LocalWork) -> Tensor:
        """Fill ``work.out [W, P]`` with the contributions of W workers from their stale replicas.

        A contribution is a gradient, parameters, or a difference ``read - moved``, which enters
        the model whatever its version is by then.

        Returns:
            The losses ``[W]``, summed over all frames, in nats.
        """
        ...

    @abstractmethod
    def fold(self, server: Server, fold: Fold) -> None:
        """Enter the contributions ``[W, P]`` of one fold into the server, in place.

        The server's version grows by one, however many contributions there are.
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


def _former_contribute(
    network: Network,
    replicas: Tensor,
    minibatches: Sequence[Minibatch],
    out: Tensor,
    rate: float,
    memory: Memory,
) -> tuple[LocalWork]:
    """The arguments of `Algorithm.contribute`, from those it had until version 0.2."""
    return (LocalWork(network, replicas, minibatches, out, rate, memory),)


def _former_fold(
    server: Server,
    contributions: Tensor,
    staleness: Sequence[int],
    rate: float,
    workers: Sequence[int] = (),
    weights: Sequence[float] = (),
) -> tuple[Server, Fold]:
    """The arguments of `Algorithm.fold`, from those it had until version 0.2."""
    return server, Fold(contributions, staleness, rate, workers, weights)


FORMER: dict[str, tuple[type[tuple[Any, ...]], Callable[..., tuple[Any, ...]]]] = {
    "contribute": (LocalWork, _former_contribute),
    "fold": (Fold, _former_fold),
}
"""By method: what bundles its parameters today, and how the former ones are bundled."""


def _accept_former(kind: type[Algorithm]) -> None:
    """Adapt the methods of a class and of those it derives from, where that has not been done.

    A mixin is adapted in its own place, so that a class derived from it has no member more: runs
    are known by the members of a user's classes.
    """
    old: list[str] = []
    for each in kind.__mro__:
        for name, (bundle, former) in FORMER.items():
            method = vars(each).get(name)
            if not isinstance(method, FunctionType) or hasattr(method, "takes_bundle"):
                continue
            adapted = _adapt(method, bundle, former)
            setattr(each, name, adapted)
            if not adapted.takes_bundle:
                old.append(f"{each.__qualname__}.{name}")
    if old:
        warnings.warn(
            f"{' and '.join(old)}: define contribute(self, work) and fold(self, server, fold); the "
            "former parameters are fields of work (lagbench.LocalWork) and fold (lagbench.Fold)",
            FormerWarning,
            stacklevel=4,  # the class statement, beyond `__init_subclass__` and `ABCMeta.__new__`
        )


def _adapt(method: FunctionType, bundle: type, former: Callable[..., tuple[Any, ...]]) -> Any:
    """A method that can be called with a bundle or with the former parameters.

    ``takes_bundle`` says which of both the method itself takes. One that would take whatever it
    is given (``*args``) takes the former parameters, as it was written when there was nothing else.
    """

    @wraps(method)
    def either(self: Any, *given: Any, **named: Any) -> Any:
        bundled = bool(given) and type(given[-1]) is bundle
        if bundled is takes_bundle:
            return method(self, *given, **named)
        if bundled:
            return method(self, *given[:-1], *given[-1])
        return method(self, *former(*given, **named))

    takes_bundle = not _can_take(method, 1 + len(inspect.signature(former).parameters))
    adapted: Any = either
    adapted.takes_bundle = takes_bundle
    return adapted


def _can_take(method: FunctionType, count: int) -> bool:
    """Whether a method can be called with so many arguments, itself among them."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    return True


SMALL = 2**16
"""Up to so many parameters lie in a processor's own cache: a lone fold saves nothing by blocks."""


class Turn(NamedTuple):
    """One fold, and who reads the version it makes.

    Args:
        entering: slots of the contributions.
        staleness: of each.
        readers: slots of the replicas that become the model.
        workers: whose each contribution is.
        weights: the minibatches of each.
    """

    entering: list[int]
    staleness: list[int]
    readers: list[int]
    workers: Sequence[int] = ()
    weights: Sequence[float] = ()


@dataclass(frozen=True)
class Turns:
    """Folds in their order, and the rows they take from and copy to.

    Args:
        contributions: ``[S, P]``; a slot's is not needed after its fold.
        replicas: ``[S, P]``; may be the same tensor: a model is then written where a
            contribution stood that has been folded.
        order: the folds.
    """

    contributions: Tensor
    replicas: Tensor
    order: Sequence[Turn]


class FoldsInARow(Algorithm):
    """An algorithm that knows a faster way to the bytes of ``fold_one_by_one``."""

    @abstractmethod
    def fold_turns(self, server: Server, turns: Turns, rate: float) -> None:
        """All folds and reads of ``turns``."""
        ...


def fold_turns(algorithm: Algorithm, server: Server, turns: Turns, rate: float) -> None:
    """Execute folds in a row and the reads between them, the fastest way the algorithm has."""
    lone = len(turns.order) == 1 and server.model.numel() <= SMALL
    if isinstance(algorithm, FoldsInARow) and not lone:
        algorithm.fold_turns(server, turns, rate)
    else:
        fold_one_by_one(algorithm, server, turns, rate)


def fold_one_by_one(algorithm: Algorithm, server: Server, turns: Turns, rate: float) -> None:
    """What folds in a row mean: each in turn, and after it the copies of the model."""
    for entering, staleness, readers, workers, weights in turns.order:
        contributions = rows(turns.contributions, entering)
        algorithm.fold(server, Fold(contributions, staleness, rate, workers, weights))
        for slot in readers:
            turns.replicas[slot].copy_(server.model)


def rows(stack: Tensor, slots: Sequence[int]) -> Tensor:
    """The rows ``slots`` of a stack ``[S, P]``: a view where they lie together, else a copy."""
    if is_contiguous(slots):
        return stack[slots[0] : slots[-1] + 1]
    return stack[upload(torch.tensor(slots), stack.device)]


def is_contiguous(slots: Sequence[int]) -> bool:
    """Whether slots follow one another."""
    return list(slots) == list(range(slots[0], slots[0] + len(slots)))


Kind = tuple[()] | tuple[bool, tuple[tuple[str, float], ...]]
"""What memories must share to be joined; nothing, of those that are empty."""


def kind_of(memory: Memory) -> Kind:
    """Whether a pass is new, and the numbers in a memory, which have no row for each worker."""
    if not memory.tensors:
        return ()
    numbers = ((name, t.item()) for name, t in sorted(memory.tensors.items()) if not t.dim())
    return memory.new_pass, tuple(numbers)


class Memories:
    """The memory of every worker, addressed by the worker's number.

    Contributions that are computed as one batch share one joint memory with a row for each of
    their workers. It stays joint until other workers, or the same in another order, compute
    together: rounds of all workers copy nothing from one to the next.

    Args:
        each: memories by worker.
    """

    def __init__(self, each: Mapping[int, Memory] | None = None) -> None:
        self._each = dict(each or {})
        self._batch: tuple[int, ...] = ()
        self._joint = Memory()

    def join(self, workers: Sequence[int]) -> Memory:
        """One memory with the rows of several workers in their order, to be changed in place.

        Args:
            workers: whose memories are of one kind (`kinds`).
        """
        if tuple(workers) != self._batch:
            self.split()
            own = [self._each.setdefault(worker, Memory()) for worker in workers]
            self._batch, self._joint = tuple(workers), _join(own)
        return self._joint

    def kinds(self, workers: Sequence[int]) -> list[Kind]:
        """The part of each worker's memory that memories must share to be joined."""
        joint, together = kind_of(self._joint), set(self._batch)
        return [
            joint if worker in together else kind_of(self._each.get(worker, Memory()))
            for worker in workers
        ]

    def begin_pass(self) -> None:
        """Tell every worker that its next contribution is the first of a pass over the data."""
        for memory in (self._joint, *self._each.values()):
            memory.new_pass = True

    def split(self) -> dict[int, Memory]:
        """Each worker's memory: those of the joint one get their rows of it."""
        for place, worker in enumerate(self._batch):
            tensors = self._joint.tensors
            if len(self._batch) > 1:  # numbers are copied: each worker goes on counting by itself
                own = rows_of(tensors, slice(place, place + 1))
                tensors = {name: t if t.dim() else t.clone() for name, t in own.items()}
            self._each[worker] = Memory(tensors, self._joint.new_pass)
        self._batch, self._joint = (), Memory()
        return self._each


def _join(memories: Sequence[Memory]) -> Memory:
    """One memory with the rows of all; that of one worker is its own."""
    first = memories[0]
    if len(memories) == 1:
        return first
    return Memory(concat_rows([memory.tensors for memory in memories]), first.new_pass)


def rows_of(tensors: Mapping[str, Tensor], few: slice) -> dict[str, Tensor]:
    """What some workers remember; numbers are those of all."""
    return {name: t[few] if t.dim() else t for name, t in tensors.items()}


def concat_rows(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What workers remember, one after the other; numbers are those of the first."""
    return {
        name: torch.cat([part[name] for part in parts]) if first.dim() else first
        for name, first in parts[0].items()
    }


class Repeating(Algorithm):
    """An algorithm that can fold by numbers which lie in a tensor."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """Whether it does, as it is set: no memories, no operation that depends on what was."""
        ...

    @abstractmethod
    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """The Q numbers of the next fold, which the server counts from now on as done."""
        ...

    @abstractmethod
    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """What `fold` does, from the model ``before [P]`` into the server's, without counting it.

        Args:
            server: its vectors are changed in place; its model is written and not read.
            before: may be the server's model itself.
            contributions: ``[W, P]``, none of them stale in a round.
            numbers: ``[Q]``, in the model's precision.
        """
        ...
