# (pyarrow ships no stubs; this module is the only one of the store that meets it)
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Files of a run: written whole, checked as they are read, as tensors and as tables.

Writing a file so that a reader sees the old one or the new one, never a part. Nothing counts
before it is on the disk: a file goes there before it takes its name, and its folder after it, so
the promise holds for a machine that loses power too.

What is read back is what was written: digests of a run's files, and of records by themselves.

Arrays by name in one file, as safetensors. What the machine refuses is an `OSError`, as of any
file.

Logged rows, as rows, as arrays and as a Parquet file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from harness.base.errors import UserError, machine_error
from harness.base.seeds import identity

PREFIX = ".unfinished-"  # of temporary files; what a kill leaves behind carries it


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A temporary path beside ``path`` that takes its place if the block succeeds.

    Raises:
        UserError: the machine refuses it, e.g. because the disk is full.
    """
    try:
        with _replacing(path) as temporary:
            yield temporary
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        is_ours = named is None or named.name.startswith(PREFIX)
        raise machine_error(error, path if is_ours else None) from error


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    handle, name = tempfile.mkstemp(prefix=PREFIX, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp makes files private; results are to be read
        sync(temporary)
        os.replace(temporary, path)  # noqa: PTH105 (the name says what matters here)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: object, levels: int | None = None) -> None:
    """Write ``value`` as readable JSON; NaN and infinities are refused (ValueError).

    Args:
        path: of the file.
        value: plain values.
        levels: how deep a list or an object still has its items on lines of their own; what
            lies deeper is one line. All of them if not given.
    """
    write_bytes(path, (_format_json(value, levels) + "\n").encode())


def _format_json(value: object, levels: int | None, margin: str = "\n") -> str:
    if levels is None or levels == 0 or not value or not isinstance(value, dict | list | tuple):
        indent = 2 if levels is None else None
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    inner = margin + "  "
    if isinstance(value, dict):
        found = cast("dict[str, object]", value).items()
        names = [f"{json.dumps(name, ensure_ascii=False)}: " for name, _ in found]
        items, ends = [each for _, each in found], "{}"
    else:
        items, ends = list(cast("Sequence[object]", value)), "[]"
        names = [""] * len(items)
    lines = (
        inner + name + _format_json(each, levels - 1, inner)
        for name, each in zip(names, items, strict=True)
    )
    return ends[0] + ",".join(lines) + margin + ends[1]


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove temporary files that an interrupted process left in ``folder``."""
    for leftover in folder.glob(PREFIX + "*"):
        leftover.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; wait until the names of new ones are on the disk."""
    if not path.is_dir():
        make_folder(above := path.parent)
        path.mkdir(exist_ok=True)
        sync(above)


def writable_folder(path: Path, what: str) -> Path:
    """Make the folder if needed and prove that a file can be written in it.

    Raises:
        UserError: naming ``what`` (an option or a role) and the path.
    """
    try:
        make_folder(path)
        with tempfile.TemporaryFile(prefix=PREFIX, dir=path):
            return path
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{what}: cannot write in {str(path)!r} ({reason})") from None


SEAL = "sha256"
"""The key of a record that holds the digest of all its others."""


def sha256_of(content: Path | bytes) -> str:
    """SHA-256 of bytes or of a file's content, 64 hexadecimal digits; files piece by piece."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the digest of what it says, whatever the layout of its text."""
    return {**record, SEAL: identity(record)}


def check_digest(record: Mapping[str, Any], needs_seal: bool = False) -> dict[str, Any]:
    """A record without its digest; one of schema 1, before there were digests, is believed.

    Args:
        record: as it was read.
        needs_seal: it lies beside others that have digests, so one without is not believed.

    Raises:
        ValueError: it is not what was sealed.
    """
    said = {key: value for key, value in record.items() if key != SEAL}
    is_older = SEAL not in record and record.get("schema", 1) == 1
    if (needs_seal or not is_older) and record.get(SEAL) != identity(said):
        raise ValueError("it does not match its digest")
    return said


def find_damaged(
    folder: Path, digests: Mapping[str, str], may_lack: Collection[str] = ()
) -> list[str]:
    """The names of files that are missing from a folder or not as they were written.

    Args:
        folder: where they are.
        digests: what they were, by name.
        may_lack: names of those that may be missing.
    """
    asked = {
        name: known
        for name, known in digests.items()
        if name not in may_lack or (folder / name).exists()
    }
    return [name for name, known in asked.items() if not _is(folder / name, known)]


def _is(path: Path, known: str) -> bool:
    return path.is_file() and sha256_of(path) == known


_NUMBER = re.compile(r"os error (\d+)")


def save_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write them.

    Raises:
        OSError: the machine refuses it; safetensors says so by an error of its own, with the
            number in its words.
    """
    # Not ascontiguousarray: it would turn a scalar into a vector of one.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(contiguous, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (refused := _NUMBER.search(str(error))) is None:
            raise
        number = int(refused[1])
        raise OSError(number, os.strerror(number)) from error


MetricRow = dict[str, Any]

Columns = dict[str, np.ndarray]

# the columns every row has; further ones are float64 and NaN where a row has none
TYPES: dict[str, type] = {
    "name": str,
    "value": np.float64,
    "fold": np.int64,
    "time_s": np.float64,
    "epoch": np.float64,
}

ARROW = {"name": pa.string(), "fold": pa.int64()}


def columns_of(rows: Sequence[MetricRow]) -> Columns:
    """Rows as equally long arrays: the common columns, then the further ones by name."""
    further = sorted({key for row in rows for key in row} - TYPES.keys())
    columns: Columns = {key: np.array([r[key] for r in rows], TYPES[key]) for key in TYPES}
    for key in further:
        columns[key] = np.array([row.get(key, math.nan) for row in rows], np.float64)
    return columns


def write_columns(path: Path, columns: Columns) -> None:
    """Write columns as one Parquet file, atomically."""
    arrays = {
        key: pa.array(array.tolist(), ARROW.get(key, pa.float64()))
        for key, array in columns.items()
    }
    with replacing(path) as temporary:
        pq.write_table(pa.table(arrays), temporary)


def read_columns(path: Path) -> Columns:
    """Read what ``write_columns`` wrote.

    Raises:
        UserError: the file is damaged.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: not a whole file of metrics ({first})") from None
    return {
        key: np.array(table.column(key).to_pylist(), TYPES.get(key, np.float64))
        for key in table.column_names
    }
