"""Checks of the contract of an algorithm, for authors of new ones.

Each check trains a small network on random minibatches for a few folds, and compares bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.catalogue import Algorithm
from harness.algorithms.contract import Fold, LocalWork, Memory, Server
from harness.algorithms.saved import pack, unpack
from harness.base.errors import UserError
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.fold_replay import StaleReplay
from harness.simulator.cluster import Cluster, Device, WorkerGroup, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.tasks.order import Key

LAYERS, FRAMES, FOLDS, RATE = (6, 8, 4), 5, 6, 0.05

WORKERS = 3
"""Workers for an algorithm with rounds; others are checked with one."""

STALEST, STALEST_IN_ROUNDS = 2, 1
"""Largest staleness in the checks; in rounds a contribution may have begun one version ago."""

UNASKED = (
    f"not checked: more than {FOLDS} folds, staleness beyond {STALEST} (in rounds"
    f" {STALEST_IN_ROUNDS}), other processes, threads and devices"
)


@dataclass(frozen=True)
class Answer:
    """Result of a check.

    Attributes:
        promise: the promise in words.
        kept: whether the algorithm keeps it; None if it rejects stale folds, which is allowed.
        told: reason if it is not kept.
    """

    promise: str
    kept: bool | None
    told: str = ""


def check_contract(algorithm: Algorithm) -> Iterator[Answer]:
    """Check an algorithm for every promise of `PROMISES`; yields the results."""
    for promise, broken in PROMISES.items():
        try:
            reason = broken(algorithm)
        except Exception as error:  # any: the code of the algorithm is the user's
            reason = f"{type(error).__name__}: {error}"
            if broken is _check_stale and isinstance(error, UserError):
                yield Answer(promise, None, str(error))
                continue
        yield Answer(promise, not reason, reason)


@dataclass
class _TrainingState:
    """An algorithm and all state that it may change.

    Args:
        algorithm: algorithm to check.
        server: its server.
        memory: memory of its workers.
        stalest: largest staleness of contributions.
        models: all versions of the model so far, from which stale contributions are computed.
    """

    algorithm: Algorithm
    server: Server
    memory: Memory
    stalest: int = 0
    models: list[Tensor] = field(default_factory=list[Tensor])

    @classmethod
    def start(cls, algorithm: Algorithm, stalest: int = 0) -> _TrainingState:
        server = algorithm.start(_model())
        return cls(algorithm.on(_network()), server, Memory(), stalest, [server.model.clone()])

    @property
    def done(self) -> int:
        return len(self.models) - 1

    def advance(self, folds: int) -> _TrainingState:
        """Execute folds, each of contributions at the oldest model that ``stalest`` allows."""
        for _ in range(folds):
            stale = min(self.stalest, self.done)
            model = self.models[self.done - stale]
            out = _contribute(self.algorithm, model, self.memory, self.done)
            count = len(out)
            weights = [1.0 + k * bool(self.stalest) for k in range(count)]
            fold = Fold(out, [stale] * count, RATE, list(range(count)), weights)
            self.algorithm.fold(self.server, fold)
            self.models.append(self.server.model.clone())
        return self


def _network() -> Dnn:
    return Dnn(Layout(LAYERS), "sigmoid")


def _model() -> Tensor:
    return random_parameters(Layout(LAYERS), torch.Generator().manual_seed(1))[0]


def _minibatch(step: int, workers: int) -> Minibatch:
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(workers, FRAMES, LAYERS[0], generator=generator)
    return Minibatch(x, torch.randint(LAYERS[-1], (workers, FRAMES), generator=generator))


@torch.no_grad()
def _contribute(algorithm: Algorithm, model: Tensor, memory: Memory, step: int) -> Tensor:
    count = WORKERS if algorithm.rounds else 1
    replicas = model.repeat(count, 1)
    out = torch.empty_like(replicas)
    minibatches = [_minibatch(2 * step + k, count) for k in (0, 1)]
    algorithm.contribute(LocalWork(_network(), replicas, minibatches, out, RATE, memory))
    memory.new_pass = False
    return out


def _difference(server: Server, twin: Server) -> str:
    """First difference of two servers in words; empty if they are equal."""
    (ours, numbers), (theirs, twins) = pack(server), pack(twin)
    if numbers != twins:
        return "versions, numbers or names of vectors differ"
    return next((f"{n} differs" for n in ours if not np.array_equal(ours[n], theirs[n])), "")


def _check_repeat(algorithm: Algorithm, stalest: int = 0) -> str:
    state, twin = (_TrainingState.start(algorithm, stalest).advance(FOLDS) for _ in range(2))
    return _difference(state.server, twin.server)


def _check_resume(algorithm: Algorithm, stalest: int = 0) -> str:
    through = _TrainingState.start(algorithm, stalest).advance(FOLDS)
    half, resumed = (_TrainingState.start(algorithm, stalest) for _ in range(2))
    half.advance(FOLDS // 2)
    state, resumed.memory = unpack(*pack([half.server, half.memory]), "cpu")
    resumed.server.restore(state)
    resumed.models = half.models
    return _difference(through.server, resumed.advance(FOLDS - half.done).server)


def _check_stale(algorithm: Algorithm) -> str:
    stalest = STALEST_IN_ROUNDS if algorithm.rounds else STALEST
    return _check_repeat(algorithm, stalest) or _check_resume(algorithm, stalest)


def _check_own_state(algorithm: Algorithm) -> str:
    before = pickle.dumps(algorithm)
    alone = _TrainingState.start(algorithm).advance(FOLDS)
    if pickle.dumps(algorithm) != before:
        return "the algorithm object changed; keep state in the server or in a memory"
    state, twin = _TrainingState.start(algorithm), _TrainingState.start(algorithm)
    twin.advance(1)
    for _ in range(FOLDS):
        state.advance(1)
        twin.advance(1)
    return _difference(alone.server, state.server)


def _check_serial(algorithm: Algorithm) -> str:
    workers = WORKERS if algorithm.rounds else 1
    card, work = {"card": Device(launch_s=1.0)}, Workload(FRAMES, 0.0, 0.0)
    cluster = Cluster("contract", card, (WorkerGroup(workers, "card"),))
    protocol = Averaging(2) if algorithm.rounds else ParameterServer(push_every=2)
    timeline = Simulation(cluster, protocol, work, workers).advance(folds=FOLDS, drain=True)

    def minibatch_of(keys: Sequence[Key]) -> Minibatch:
        minibatch = _minibatch(keys[0][1], workers)
        rows = [worker for worker, _ in keys]
        return Minibatch(minibatch.x[rows], minibatch.targets[rows])

    server = algorithm.start(_model())
    StaleReplay(algorithm, _network(), server, minibatch_of, slots=workers).run(timeline, RATE)
    return _difference(server, _TrainingState.start(algorithm).advance(FOLDS).server)


def _check_versions(algorithm: Algorithm) -> str:
    model = _model()
    server, start = algorithm.start(model), model.clone()
    if not torch.equal(server.model, model):
        return "start() returned a server with another model than its argument"
    state = _TrainingState(algorithm.on(_network()), server, Memory(), 0, [start])
    version = state.advance(FOLDS).server.version
    if not torch.equal(model, start):
        return "the initial parameters were changed in place"
    return "" if version == FOLDS else f"{FOLDS} folds made version {version}"


PROMISES: dict[str, Callable[[Algorithm], str]] = {
    "every fold adds one version; the initial parameters are copied": _check_versions,
    "the same folds give the same bytes": _check_repeat,
    "stale folds of unequal weights give the same bytes, also after a checkpoint": _check_stale,
    "captured and restored state resumes with the same bytes": _check_resume,
    "a timeline without staleness gives the bytes of serial training": _check_serial,
    "all state is in the server or in workers' memories": _check_own_state,
}
"""Check of each promise: a function that returns the violation in words, or an empty string."""
