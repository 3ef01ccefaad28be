"""Pickling of problems for other processes; large data go through a file that all processes map.

A run's configuration holds the module, the loss and the data. A process that receives several runs
of one problem unpacks it once. The digests that identify a run are sent along, because code that is
pickled by value has no source in the other process. Data of `SHARED_BYTES` or more are written to a
file, of which all processes map the same pages.
"""

from __future__ import annotations

import copyreg
import json
import pickle
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, cast

from safetensors.torch import (
    load_file,  # pyright: ignore[reportUnknownVariableType]
    save_file,  # pyright: ignore[reportUnknownVariableType]
)
from torch import Tensor

from harness.base.errors import UserError
from harness.grid.carriers import Parcel
from harness.modules.mapped import MemmapRows
from harness.modules.problem import Arrays, Problem
from harness.modules.redrawn import RandomExamples
from harness.modules.streaming import ExampleStream
from harness.modules.trees import restore_structure
from harness.store.claim import has_ended, process_id

SHARED_BYTES = 2**20
"""Data with fewer bytes are pickled with their problem."""

FOLDER = ".data-"
"""Prefix of the folders for such files; the id of the process that made it follows."""


def check_sendable(name: str, part: object) -> None:
    """Reject a value that cannot be pickled for another process.

    Args:
        name: name of the user's argument.
        part: a model, a function, or several.

    Raises:
        UserError: it holds something that is bound to this process, such as a lock.
    """
    try:
        pickle.dumps(Parcel(part))
    except Exception as error:  # whatever its parts raise
        why = str(error).partition("\n")[0]
        told = "allowed: jobs=1, or what holds no lock, open file or generator"
        raise UserError(f"{name}: cannot be sent to another process ({why}); {told}") from error


def make_data_folder(store: Path) -> TemporaryDirectory[str]:
    """Make a folder in a store for files that other processes map."""
    return TemporaryDirectory(prefix=f"{FOLDER}{process_id()},", dir=store)


def sweep_data(store: Path) -> None:
    """Remove from a store the data folders of processes that were killed on this machine."""
    for folder in store.glob(f"{FOLDER}*"):
        if has_ended(folder.name.removeprefix(FOLDER).partition(",")[0]):
            rmtree(folder, ignore_errors=True)  # another process may sweep, too


def share(arrays: Arrays, folder: Path) -> Arrays:
    """Examples in a file that other processes map, if they have `SHARED_BYTES` or more.

    Args:
        arrays: examples.
        folder: folder of the file, which must exist until all runs have ended.
    """
    if isinstance(arrays, RandomExamples | ExampleStream):
        return arrays
    arrays = arrays.copy() if isinstance(arrays, MemmapRows) else arrays
    structures, tensors = arrays.structure, arrays.tensors()
    if not all(map(_is_mappable, tensors)) or sum(t.nbytes for t in tensors) < SHARED_BYTES:
        return arrays
    path = folder / f"{arrays.sha256}.safetensors"
    if not path.exists():
        held, parts = set[int](), dict[str, Tensor]()
        for name, tensor in zip(_names(structures), tensors, strict=True):
            place = tensor.untyped_storage().data_ptr()
            parts[name] = tensor.clone() if place in held else tensor
            held.add(place)
        save_file(parts, path)
    return _open(str(path), arrays.sha256, json.dumps(structures))


def _names(described: Any) -> list[str]:
    """All names in a structure, in the order of its tensors."""
    if isinstance(described, str):
        return [described]
    several = cast("list[Any]", [*described.values()] if isinstance(described, dict) else described)
    return [name for part in several for name in _names(part)]


def _is_mappable(tensor: Tensor) -> bool:
    """Whether a file restores the same tensor, including the order of its bytes in memory."""
    plain = tensor.device.type == "cpu" and not tensor.requires_grad
    return plain and tensor.is_contiguous() and not tensor.is_complex()


def _open(path: str, sha256: str, structures: str) -> Arrays:
    tensors = load_file(path)
    found = Arrays(*(restore_structure(each, tensors) for each in json.loads(structures)))
    vars(found).update(sha256=sha256, file=(path, sha256, structures))
    return found


@lru_cache(maxsize=16)
def _map(path: str, sha256: str, structures: str) -> Arrays:
    return _open(path, sha256, structures)


def _reduce_arrays(arrays: Arrays) -> tuple[Any, ...]:
    if "file" in vars(arrays):
        return _map, vars(arrays)["file"]
    return Arrays, (arrays.x, arrays.y), {"sha256": arrays.sha256}


@lru_cache(maxsize=4)
def _pack(problem: Problem) -> bytes:
    problem.to_identity()  # caches the digests, which are pickled like the module's inspection
    return pickle.dumps(Parcel(dict(vars(problem))))


@lru_cache(maxsize=4)
def _unpack(data: bytes) -> Problem:
    found = Problem.__new__(Problem)
    vars(found).update(pickle.loads(data).content)
    return found


def _reduce_problem(problem: Problem) -> tuple[Callable[[bytes], Problem], tuple[bytes]]:
    return _unpack, (_pack(problem),)


copyreg.pickle(Arrays, _reduce_arrays)
copyreg.pickle(Problem, _reduce_problem)
