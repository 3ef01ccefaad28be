"""Arrays and facts: what a run in progress is written as, and a timeline among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harness.algorithms.contract import Memory, Server
from harness.simulator.timeline import (
    Contributions,
    Decodes,
    Folds,
    Pieces,
    Restarts,
    Spans,
    Timeline,
)

Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]
COUNTS = ("version", "undone", "restarts")
"""Fields of a server that are counts."""
TABLES = {
    "folds": Folds,
    "contributions": Contributions,
    "spans": Spans,
    "restarts": Restarts,
    "decodes": Decodes,
    "pieces": Pieces,
}


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
    tables: dict[str, Any] = {  # by name, each of a class of its own
        name: kind(**part(arrays, f"{name}.")) for name, kind in TABLES.items()
    }
    return Timeline(kinds=tuple(facts["kinds"]), **tables)


def part(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays under one prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def prefixed(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays, each name under a prefix."""
    return {prefix + name: array for name, array in arrays.items()}


def remembered(prefix: str, memory: Memory) -> Arrays:
    """The arrays of a worker's memory, each name under a prefix."""
    return {prefix + name: tensor.cpu().numpy() for name, tensor in memory.tensors.items()}


def recalled(arrays: Arrays, prefix: str, new_pass: bool, device: torch.device) -> Memory:
    """Undo ``remembered``."""
    named = part(arrays, prefix)
    return Memory({k: torch.as_tensor(a).to(device) for k, a in named.items()}, new_pass)


def capture_server(server: Server) -> tuple[Arrays, Facts]:
    """A server's vectors, its version and its numbers."""
    arrays = copy_arrays(vectors_of(server))
    counts = {name: getattr(server, name) for name in COUNTS}
    return arrays, {**counts, "numbers": dict(server.numbers)}


def reinstate_server(server: Server, arrays: Arrays, facts: Facts) -> None:
    """Undo ``capture_server``."""
    reinstate_vectors(vectors_of(server), arrays)
    for name in COUNTS:
        setattr(server, name, facts[name])
    server.numbers = facts["numbers"]


def copy_arrays(vectors: dict[str, torch.Tensor]) -> Arrays:
    """Copies of tensors as arrays, by the same names."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in vectors.items()}


def reinstate_vectors(vectors: dict[str, torch.Tensor], arrays: Arrays) -> None:
    """Undo ``copy_arrays``, in place."""
    for name, tensor in vectors.items():
        tensor.copy_(torch.as_tensor(arrays[name]))


def vectors_of(server: Server) -> dict[str, torch.Tensor]:
    """Every ``[P]`` vector of a server, by the name it is kept under."""
    past = {f"past/{name}": vector for name, vector in server.past.items()}
    return state_of(server) | past


def state_of(server: Server) -> dict[str, torch.Tensor]:
    """The vectors that a server's checkpoint holds: all but its past."""
    vectors = {f"vector/{name}": vector for name, vector in server.vectors.items()}
    # Checkpoints have had this prefix since only momenta were kept.
    tensors = {f"momentum/{name}": vector for name, vector in server.tensors.items()}
    return {"model": server.model, **vectors, **tensors}
