"""One file that holds a run in progress: tensors and numbers, no pickle, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

NAME = "checkpoint.safetensors"


def save(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON facts as the folder's checkpoint; the last one stays until then."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / (NAME + ".new")
    # Not ascontiguousarray: it would turn a scalar into a vector of one.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    save_file(contiguous, fresh, metadata={"facts": json.dumps(facts)})
    fresh.replace(folder / NAME)


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The last checkpoint in ``folder``; None where there is none or it cannot be read.

    A checkpoint that cannot be read costs the work since the run began, never the run:
    it is recomputed, to the same bytes.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        with cast(Any, safe_open)(path, framework="numpy") as file:  # it says no types
            metadata: dict[str, str] = file.metadata() or {}
            facts = json.loads(metadata["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError):
        return None
