"""Every algorithm, protocol and fault that train together, against a walk that keeps everything.

Each cell simulates a timeline of its own and trains along it as a run does, in segments with a new
pass among them; then `walk` goes the same way naively. Contributions that are computed alone must
give the same bits, those computed together the same numbers up to rounding.
"""

import re
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.algorithms.catalogue import Algorithm
from harness.algorithms.schedules import Constant
from harness.base.errors import UserError
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.loop import SimulationExecutor
from harness.experiment.task import Problem, Task
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.sharded_replay import ShardedReplay
from harness.simulator import Cluster, Device, Fault, WorkerGroup, Workload
from harness.simulator.cluster import Checkpoints, Jitter, Link, Server
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.timeline import Timeline, concat
from tests.equivalence.catalogue import WORKERS, algorithms, protocols
from tests.equivalence.walk import WRITTEN, Walk
from tests.nightly import runs

LAYOUT, FRAMES, RATE = Layout((3, 4, 2)), 2, 0.05
FAULTS = {
    "no faults": (),
    "deaths": (Fault("death", mean_s=0.015, down_s=0.004),),
    "losses": (Fault("message", probability=0.2, retry_s=0.003),),
    "a failing server": (Fault("server", mean_s=0.006, down_s=0.002, checkpoint_s=0.003),),
}
SHARDS = (1, 3)
REFUSED = {
    r"protocol: of another kind than \w+; allowed: .*",
    r"cluster.faults: '(message|server)' is not supported with rounds; allowed: faults of workers",
    r"protocol.overlap: false is not allowed with EagerDiLoCo; allowed: true",
    r"shards: 3 is not allowed with (rounds|faults); allowed: 1",
    r"shards: 3 is not allowed with \w+; allowed: 1",
}
"""All words in which cells are refused."""


@dataclass(frozen=True)
class Pieces:
    start: np.ndarray
    frames: np.ndarray


PIECES = Pieces(np.arange(96) * 5, np.full(96, 5))


class Rows:
    """Frames of speech that are drawn once, on the processor."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(11)
        self.x = torch.randn(480, 3, dtype=torch.float64, generator=draw)
        self.targets = torch.randint(0, 2, (480,), generator=draw)

    def gather(self, rows: Tensor) -> Minibatch:
        return Minibatch(self.x[rows], self.targets[rows])


class CellProblem(Problem):
    """Rows that are known, and a network of two layers."""

    def __init__(self) -> None:
        self.network, self.pieces, self.examples = Dnn(LAYOUT), PIECES, Rows()

    def initial(self) -> Tensor:
        return start().clone()

    def evaluate(self, model: Tensor) -> dict[str, float]:
        return {"loss": 0.0}


@dataclass(frozen=True)
class CellTask(Task):
    """The task of every run of the matrix."""

    drops_rest: ClassVar[bool] = True

    def open(self, experiment: Any, store: Any = None, watch: Any = None) -> CellProblem:
        return CellProblem()

    def workload(self, experiment: Any, stage: int = 0) -> Workload:
        return Workload(FRAMES, 1.0, 1.0)


Cell = Experiment[CellTask]


def cell(algorithm: Algorithm, protocol: Any, faults: tuple[Fault, ...], shards: int) -> Cell:
    cluster = Cluster(
        "unequal",
        {"quick": Device(achieved_flops_per_s=1000.0), "slow": Device(achieved_flops_per_s=600.0)},
        (WorkerGroup(3, "quick"), WorkerGroup(1, "slow")), link=Link(0.0004), server=Server(0.0002),
        jitter=Jitter("gamma", 0.6), faults=faults,
    )  # fmt: skip
    return Experiment(
        task=CellTask(), algorithm=algorithm, schedule=Constant(rate=RATE),
        stages=(Stage(FRAMES, FRAMES),), evaluations=1, cluster=cluster, workers=WORKERS,
        seed=zlib.crc32(f"{algorithm}{protocol}{faults}".encode()), protocol=protocol,
        shards=shards,
    )  # fmt: skip


@cache
def start() -> Tensor:
    draw = torch.Generator().manual_seed(3)
    return 0.5 + random_parameters(LAYOUT, draw)[0].double()


def trained(config: Cell, alone: bool) -> tuple[Timeline, list[int], Tensor, bool]:
    """The timeline, folds before which passes begin, the model, and whether each went alone."""
    problem = config.task.open(config)
    minibatches = problem.minibatches(config)
    made = SimulationExecutor(config, problem, problem.initial(), minibatches)
    if alone and not isinstance(made.replay, ShardedReplay):
        made.replay.alone = True
    drained = config.shards > 1
    # A pass begins while contributions are in flight.
    plan = [
        (7, None if drained else 16),
        (3, None if drained else 9),
        (6, None),
    ]
    parts, passes, folds = list[Timeline](), list[int](), 0
    for length, most in plan:
        parts.append(made.advance(length, handing_out=most, rate=RATE))
        folds += length
        if folds == plan[0][0]:
            made.begin_stage()
            passes.append(folds)
    assert made.server.version == folds
    each_alone = isinstance(made.replay, ShardedReplay) or made.replay.alone
    return concat(parts), passes, made.server.model, each_alone


def compare(config: Cell, seen: Counter[str]) -> None:
    """Train as the run does, and alone where it does not, and go the same way naively."""
    timeline, passes, model, each_alone = trained(config, alone=False)
    found = [(model, each_alone)]
    if not each_alone:
        again, _, model, each_alone = trained(config, alone=True)
        assert again.sha256() == timeline.sha256()
        found.append((model, each_alone))
    minibatches = config.task.open(config).minibatches(config)
    walk = Walk(config.algorithm, Dnn(LAYOUT), minibatches.fetch, start(), RATE, passes)
    if config.shards > 1:
        expected = walk.around_shards(timeline, config.shards)
    else:
        expected = walk.around_a_server(timeline)
    assert (expected - start()).abs().max() > 1e-4
    for model, each_alone in found:
        told = "each alone" if each_alone else "together"
        torch.testing.assert_close(
            model, expected, rtol=0, atol=1e-11, msg=lambda words, told=told: f"{told}: {words}"
        )
        seen["bits"] += each_alone and torch.equal(model, expected)
        seen["alone"] += each_alone
        seen["cells"] += 1
    seen["lost"] += len(timeline.lost()) > 0
    seen["restarts"] += len(timeline.restarts) > 0
    seen["undone"] += len(timeline.kept()) < len(timeline.folded())
    seen["stale"] += bool(timeline.staleness().any())


@pytest.mark.parametrize("name", [n for n, each in algorithms().items() if each.rounds])
def test_a_restart_from_a_checkpoint_undoes_the_folds_since_in_model_and_workers(name):
    seen, saving = Counter[str](), Checkpoints(3, write_s=0.001, restart_s=0.002)
    deaths = (Fault("death", (0,), at_s=(0.02, 0.03, 0.04, 0.06), down_s=0.004),)
    for every in (1, 2):
        config = refusal(algorithms()[name], Averaging(every), deaths, 1)
        if isinstance(config, str):
            assert any(re.fullmatch(words, config) for words in REFUSED), config
            return
        compare(config.vary(cluster=replace(config.cluster, checkpoints=saving)), seen)
    assert (seen["bits"], seen["undone"]) == (2, 2)


def refusal(algorithm: Algorithm, protocol: Any, faults: Any, shards: int) -> Cell | str:
    try:
        return cell(algorithm, protocol, faults, shards)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("every", runs(10, 1))
@pytest.mark.parametrize("name", algorithms())
def test_training_is_the_walk_that_keeps_every_version_and_every_memory(name, every):
    """Of the cells of an algorithm the suite has every tenth, from another one on for each."""
    algorithm, seen, cells = algorithms()[name], Counter[str](), list(algorithms()).index(name)
    for (settings, protocol), faults, shards in product(protocols().items(), FAULTS, SHARDS):
        config = refusal(algorithm, protocol, FAULTS[faults], shards)
        if isinstance(config, str):
            assert any(re.fullmatch(words, config) for words in REFUSED), config
            continue
        cells += 1
        if cells % every:
            continue
        try:
            compare(config, seen)
        except AssertionError as error:
            raise AssertionError(f"{settings}, {faults}, shards {shards}") from error
    if type(algorithm) not in WRITTEN:
        assert seen["bits"] == seen["alone"]
    if every == 1:
        assert min(seen["cells"], seen["stale"]) >= 2
        assert algorithm.rounds or min(seen["lost"], seen["restarts"]) >= 2
