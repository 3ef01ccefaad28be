"""What can be timed can be trained: each run file against a walk that keeps every version.

The walk takes the record as it is: contribution by contribution, each computed by itself at a copy
of the version that it read, fold by fold.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Memory
from harness.execution.data.frames import Frames
from harness.execution.runs.config import RunConfig
from harness.execution.runs.file import load_run
from harness.execution.training.initial import MODEL, initial_parameters
from harness.execution.training.run import TIMELINE, train
from harness.simulator import LOST, Timeline
from harness.simulator.timeline import SERVER
from harness.store import Store

RUNS = Path(__file__).parents[2] / "docs" / "runs"
NAMES = ("bounded-staleness", "two-under-way", "backup-workers", "averaging-with-deaths")


class Walk:
    """A run's algorithm at the versions on record, nothing shared and nothing batched."""

    def __init__(self, config: RunConfig, corpus: Corpus, store: Store) -> None:
        frames = Frames.of(corpus, "cpu")
        self.config, self.net = config, config.network(corpus)
        self.minibatches = config.minibatches(corpus, frames)
        self.model = initial_parameters(config, self.net, frames, corpus, store)
        self.memories: dict[int, Memory] = {}

    def contribution(self, read: Tensor, worker: int, first: int, steps: int) -> Tensor:
        """``[1, P]`` from a version ``[P]``."""
        out = torch.empty_like(read).unsqueeze(0)
        minibatches = [self.minibatches.of([(worker, first + k)]) for k in range(steps)]
        memory = self.memories.setdefault(worker, Memory())
        replica, rate = read.clone().unsqueeze(0), self.config.schedule.rate
        with torch.no_grad():
            self.config.algorithm.contribute(self.net, replica, minibatches, out, rate, memory)
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
        algorithm.fold(server, torch.cat(parts), [fold - v for v in reads], rate)
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
            algorithm.fold(server, piece, [server.version - read], rate)
            versions[shard].append(server.model.clone())
            moved = True
    assert all(server.version == len(timeline.folds) for server in servers)
    return torch.cat([server.model for server in servers])


def trained(name: str, folder: Path) -> tuple[Walk, Timeline, Tensor]:
    asked, store = load_run(RUNS / f"{name}.toml"), Store(folder)
    run = train(asked.config, asked.corpus, store, lambda progress: None)
    assert run.status == "done"
    walk = Walk(asked.config, asked.corpus, store)
    return walk, Timeline.load(run.dir / TIMELINE), load_file(run.path(MODEL))["model"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_file_trains_to_the_bits_of_a_walk_that_keeps_every_version(name, tmp_path):
    walk, timeline, model = trained(name, tmp_path)
    assert torch.equal(walked(walk, timeline), model)


def test_a_server_in_shards_trains_to_the_bits_of_a_walk_that_keeps_every_version(tmp_path):
    walk, timeline, model = trained("two-shards", tmp_path)
    assert torch.equal(walked_in_shards(walk, timeline, 2), model)


def test_the_records_have_in_them_what_their_files_are_about(tmp_path):
    _, bounded, _ = trained("bounded-staleness", tmp_path)
    counts = [(bounded.folded().worker == w).sum() for w in range(4)]
    assert max(counts) - min(counts) <= 3 + 1
    _, double, _ = trained("two-under-way", tmp_path)
    assert double.staleness().mean() > bounded.staleness().mean()
    _, backup, _ = trained("backup-workers", tmp_path)
    assert len(backup.lost()) > 0
    assert len(backup.folded()) == 3 * len(backup.folds)
    _, deaths, _ = trained("averaging-with-deaths", tmp_path)
    assert len(deaths.lost()) > 0
    assert len(deaths.folded()) < 4 * len(deaths.folds)
    _, shards, _ = trained("two-shards", tmp_path)
    pieces = shards.pieces
    first = pieces.where(pieces.worker == SERVER).read_version
    second = pieces.where(pieces.worker == SERVER - 1).read_version
    assert first.tolist() != second.tolist()
