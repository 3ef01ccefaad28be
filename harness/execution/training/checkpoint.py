"""One file that holds a run in progress: tensors and numbers, no pickle, replaced atomically.

It carries a digest of all it holds: a checkpoint that is not as it was written is not gone on from.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from harness.store.files import make_folder, replacing, save_arrays

NAME = "checkpoint.safetensors"
FOLDS = "timeline/folds.time_s"
"""The column of a checkpoint that has an element a fold."""


def save(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON facts as the folder's checkpoint; the last one stays until then."""
    make_folder(folder)
    text = json.dumps(facts)
    metadata = {"facts": text, "sha256": _digest(arrays, text)}
    with replacing(folder / NAME) as fresh:
        save_arrays(fresh, arrays, metadata)


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The last checkpoint in ``folder``; None where there is none or it is not as it was written.

    A damaged checkpoint costs the work since the run began, never the run: a line says so, and it
    is recomputed, to the same bytes.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        arrays, metadata = _read(path)
        if metadata["sha256"] != _digest(arrays, metadata["facts"]):
            raise ValueError("it does not match its digest")
        return arrays, json.loads(metadata["facts"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        print(f"{path}: damaged ({error}); the run begins again", file=sys.stderr)
        return None


def last_rows(folder: Path) -> dict[str, Any]:
    """What was measured last before a checkpoint, by name, and where the run stood; {} without.

    Reads no tensor, and may be asked of a run that goes on.
    """
    try:
        with cast(Any, safe_open)(folder / NAME, framework="numpy") as file:
            facts = json.loads(file.metadata()["facts"])
        rows = facts["rows"]
        at = {key: rows[-1][key] for key in ("fold", "time_s", "epoch")} if rows else {}
        return {**at, **{row["name"]: row["value"] for row in rows}}
    except (SafetensorError, KeyError, ValueError, OSError):
        return {}


def folds(folder: Path) -> int:
    """How many folds there were before a checkpoint; 0 without one. Reads no tensor."""
    try:
        with cast(Any, safe_open)(folder / NAME, framework="numpy") as file:
            return int(file.get_slice(FOLDS).get_shape()[0])
    except (SafetensorError, OSError):
        return 0


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with cast(Any, safe_open)(path, framework="numpy") as file:  # it says no types
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, file.metadata() or {}


def _digest(arrays: Mapping[str, np.ndarray], facts: str) -> str:
    """SHA-256 of facts, names, kinds, shapes and content."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()
