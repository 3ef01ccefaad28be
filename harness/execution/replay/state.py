"""What a run in progress is made of, as arrays and facts, and back again to the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.contract import Memory
from harness.execution.replay.stale import Pending, StaleReplay
from harness.simulator.timeline import Contributions, Folds, Pieces, Spans, Timeline

Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]


def capture_replay(replay: StaleReplay) -> tuple[Arrays, Facts]:
    """The server, the replicas in flight, what is computed ahead of its fold, and the memory."""
    server = replay.server
    remembered = {f"memory/{name}": tensor for name, tensor in replay.memory.tensors.items()}
    every = {**_tensors(replay), **remembered}
    arrays = {name: tensor.cpu().numpy() for name, tensor in every.items()}
    facts = {
        "version": server.version,
        "numbers": dict(server.numbers),
        "in_flight": [[*key, slot] for key, slot in replay.in_flight.items()],
        "pending": list(replay.pending),
        "batches": replay.batches,
        "new_pass": replay.memory.new_pass,
    }
    return arrays, facts


def reinstate_replay(replay: StaleReplay, arrays: Arrays, facts: Facts) -> None:
    """Undo ``capture_replay``."""
    for name, tensor in _tensors(replay).items():
        tensor.copy_(torch.from_numpy(arrays[name]))
    replay.server.version, replay.server.numbers = facts["version"], facts["numbers"]
    replay.in_flight = {(worker, step): slot for worker, step, slot in facts["in_flight"]}
    replay.pending = [Pending(steps, slot, (w, s)) for steps, slot, (w, s) in facts["pending"]]
    replay.batches = facts["batches"]
    device = replay.server.model.device
    remembered = {k: torch.from_numpy(a).to(device) for k, a in part(arrays, "memory/").items()}
    replay.memory = Memory(remembered, facts["new_pass"])


def capture_timeline(timeline: Timeline) -> tuple[Arrays, Facts]:
    """A timeline's columns, named table.column, and its span kinds."""
    arrays = {
        f"{table}.{name}": column
        for table, rows in timeline.tables().items()
        for name, column in rows.columns().items()
    }
    return arrays, {"kinds": list(timeline.kinds)}


def reinstate_timeline(arrays: Arrays, facts: Facts) -> Timeline:
    """Undo ``capture_timeline``."""
    return Timeline(
        Folds(**part(arrays, "folds.")),
        Contributions(**part(arrays, "contributions.")),
        Spans(**part(arrays, "spans.")),
        tuple(facts["kinds"]),
        pieces=Pieces(**part(arrays, "pieces.")),
    )


def part(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays under one prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def prefixed(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays, each name under a prefix."""
    return {prefix + name: array for name, array in arrays.items()}


def _tensors(replay: StaleReplay) -> dict[str, Tensor]:
    server = replay.server
    vectors = {f"vector/{name}": vector for name, vector in server.vectors.items()}
    momenta = {f"momentum/{name}": vector for name, vector in server.momenta.items()}
    return {
        "model": server.model,
        "replicas": replay.replicas,
        "contributions": replay.contributions,
        "loss": replay.loss,
        **vectors,
        **momenta,
    }
