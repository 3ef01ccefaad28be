"""What can be timed can be trained: each run file against a walk that keeps every version.

The walk takes the record as it is: contribution by contribution, each computed by itself at a copy
of the version that it read, fold by fold.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.run import run as train
from harness.experiment.run_file import load_run
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.simulator import LOST, Fault, ParameterServer, Timeline
from harness.simulator.timeline import SERVER
from harness.simulator.timeline_file import load_timeline
from harness.speech.task import Frames
from harness.store import Store
from harness.store.schema import MODEL, TIMELINE

RUNS = Path(__file__).parents[2] / "reproductions" / "runs"
NAMES = (
    *("bounded-staleness", "two-under-way", "backup-workers", "averaging-with-deaths"),
    "elastic-diloco",
)


class Walk:
    """A run's algorithm at the versions on record, nothing shared and nothing batched."""

    def __init__(self, config: Experiment[Frames], store: Store) -> None:
        problem = config.task.open(config, store)
        self.config, self.net = config, problem.network
        self.minibatches = problem.minibatches(config)
        self.model = problem.initial()
        self.memories: dict[int, Memory] = {}

    def contribution(self, read: Tensor, worker: int, first: int, steps: int) -> Tensor:
        """``[1, P]`` from a version ``[P]``."""
        out = torch.empty_like(read).unsqueeze(0)
        minibatches = [self.minibatches.fetch([(worker, first + k)]) for k in range(steps)]
        memory = self.memories.setdefault(worker, Memory())
        replica, rate = read.clone().unsqueeze(0), self.config.schedule.rate
        with torch.no_grad():
            work = LocalWork(self.net, replica, minibatches, out, rate, memory)
            self.config.algorithm.contribute(work)
        return out


def walked(walk: Walk, timeline: Timeline) -> Tensor:
    """The last version of a run around one server or in rounds."""
    algorithm, rate = walk.config.algorithm, walk.config.schedule.rate
    server, rows = algorithm.start(walk.model), timeline.folded()
    versions = [server.model.clone()]
    for fold in range(len(timeline.folds)):
        (entering,) = (rows.fold == fold).nonzero()
        entering = entering[rows.worker[entering].argsort()]
        reads = rows.read_version[entering].tolist()
        keys = zip(
            *(c[entering].tolist() for c in (rows.worker, rows.first_step, rows.steps)), strict=True
        )
        parts = [walk.contribution(versions[v], *key) for v, key in zip(reads, keys, strict=True)]
        whose = rows.worker[entering].tolist(), rows.steps[entering].tolist()
        staleness = [fold - v for v in reads]
        algorithm.fold(server, Fold(torch.cat(parts), staleness, rate, *whose))
        versions.append(server.model.clone())
    return versions[-1]


def walked_in_shards(walk: Walk, timeline: Timeline, shards: int) -> Tensor:
    """The model of a server in shards after its last piece."""
    algorithm, rate = walk.config.algorithm, walk.config.schedule.rate
    size = walk.model.numel()
    cuts = [size * shard // shards for shard in range(shards + 1)]
    servers = [algorithm.start(walk.model[a:b]) for a, b in pairwise(cuts)]
    versions = [[server.model.clone()] for server in servers]
    rows, pieces = timeline.folded(), timeline.pieces
    of_fold = {
        int(fold): (int(w), int(first), int(steps))
        for fold, w, first, steps in zip(
            rows.fold, rows.worker, rows.first_step, rows.steps, strict=True
        )
    }
    todo: list[dict[int, tuple[int, int]]] = [{} for _ in servers]
    reads: dict[int, dict[int, int]] = {}
    for fold, who, read, version in zip(
        pieces.fold, pieces.worker, pieces.read_version, pieces.version, strict=True
    ):
        assert version != LOST
        todo[SERVER - int(who)][int(version)] = (int(fold), int(read))
        reads.setdefault(int(fold), {})[SERVER - int(who)] = int(read)
    made: dict[int, Tensor] = {}
    moved = True
    while moved:
        moved = False
        for shard, server in enumerate(servers):
            fold, read = todo[shard].get(server.version, (-1, 0))
            known = fold in made or all(
                len(versions[s]) > r for s, r in reads.get(fold, {}).items()
            )
            if fold < 0 or not known:
                continue
            if fold not in made:
                seen = torch.cat([versions[s][reads[fold][s]] for s in range(shards)])
                made[fold] = walk.contribution(seen, *of_fold[fold])
            piece = made[fold][:, cuts[shard] : cuts[shard + 1]]
            worker, _, steps = of_fold[fold]
            algorithm.fold(server, Fold(piece, [server.version - read], rate, [worker], [steps]))
            versions[shard].append(server.model.clone())
            moved = True
    assert all(server.version == len(timeline.folds) for server in servers)
    return torch.cat([server.model for server in servers])


def trained(name: str, folder: Path, **choices: Any) -> tuple[Walk, Timeline, Tensor]:
    asked, store = load_run(RUNS / f"{name}.toml"), Store(folder)
    config = replace(asked, **choices)
    run = train(config, store, lambda progress: None)
    assert run.status == "done"
    walk = Walk(config, store)
    return walk, load_timeline(run.dir / TIMELINE), load_file(run.path(MODEL))["model"]


def ahead(timeline: Timeline) -> int:
    """How many more contributions than the slowest the quickest worker had, at most."""
    counts = (timeline.folded().worker[:, None] == np.arange(4)).cumsum(0)
    return int((counts.max(1) - counts.min(1)).max())


@pytest.mark.parametrize("name", NAMES)
def test_a_run_file_trains_to_the_bits_of_a_walk_that_keeps_every_version(name, tmp_path):
    walk, timeline, model = trained(name, tmp_path)
    assert torch.equal(walked(walk, timeline), model)
    if name == "bounded-staleness":
        _, free, _ = trained(name, tmp_path, protocol=None)
        assert ahead(timeline) <= 3 + 1 < ahead(free)
    if name == "two-under-way":
        assert timeline.staleness().mean() > 5  # three workers have one under way meanwhile
    if name == "backup-workers":
        assert len(timeline.lost()) > 0
        assert len(timeline.folded()) == 3 * len(timeline.folds)
    if name == "averaging-with-deaths":
        assert len(timeline.lost()) > 0
        assert len(timeline.folded()) < 4 * len(timeline.folds)


def test_pushes_of_several_minibatches_and_a_short_queue_do_so_too(tmp_path):
    protocol = ParameterServer(push_every=3, queue=2)
    walk, timeline, model = trained("bounded-staleness", tmp_path, protocol=protocol)
    assert set(timeline.folded().steps.tolist()) == {3}
    assert torch.equal(walked(walk, timeline), model)


@pytest.mark.parametrize("name", ["backup-workers", "averaging-with-deaths"])
def test_what_workers_remember_is_of_what_was_folded_however_often_models_are_scored(
    name, tmp_path
):
    kind = GradientAveraging if name == "backup-workers" else ModelAveraging
    algorithm = kind(NaturalGradient(Preconditioner(5), Preconditioner(5), PerSample(0.1)))
    fewer = {"stages": (Stage(32, 256, 0.25),), "algorithm": algorithm, "tested": "never"}
    seldom, often = (trained(name, tmp_path, evaluations=times, **fewer) for times in (2, 40))
    assert len(seldom[1].lost()) > 0
    assert seldom[1].sha256() == often[1].sha256()
    assert torch.equal(seldom[2], often[2])
    assert torch.equal(walked(*seldom[:2]), seldom[2])


def test_rounds_that_everybody_leaves_are_handed_out_anew(tmp_path):
    cluster = load_run(RUNS / "averaging-with-deaths.toml").cluster
    gone = replace(cluster, faults=(Fault("death", at_s=(0.5,), down_s=0.3),))
    walk, timeline, model = trained("averaging-with-deaths", tmp_path, cluster=gone)
    assert len(timeline.lost()) == 4
    assert torch.equal(walked(walk, timeline), model)


def test_a_server_in_shards_trains_to_the_bits_of_a_walk_that_keeps_every_version(tmp_path):
    walk, timeline, model = trained("two-shards", tmp_path)
    assert torch.equal(walked_in_shards(walk, timeline, 2), model)
    pieces = timeline.pieces
    first = pieces.where(pieces.worker == SERVER).read_version
    second = pieces.where(pieces.worker == SERVER - 1).read_version
    assert first.tolist() != second.tolist()
