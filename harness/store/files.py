# (pyarrow ships no stubs; this module is the only one of the store that meets it)
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Files of a run: atomic writes, digests, tensors and tables.

A file is replaced atomically: a reader sees the old or the new one, never a part. Its content is
synced to the disk before it takes its name, and its folder afterwards, so this also holds if the
machine loses power. Files that a run's record attests by digest are synced together, before it
(`sync_together`). Digests of a run's files and records show that they are read as written.
What the machine refuses to read (`reading`) is an error, and no file that is missing or damaged.
Arrays are stored as safetensors, logged rows as a Parquet file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file  # pyright: ignore[reportUnknownVariableType]

from harness.base.errors import Damaged, UserError, machine_error
from harness.base.seeds import identity

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Numbers of the system's errors that say that there is no such file; others say nothing of it."""


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Tell a file that is missing from one that the machine refuses to read.

    Errors without a number are not the system's: a library raises them for what it cannot parse.

    Raises:
        Damaged: there is no such file.
        UserError: the machine refuses; nothing is known of the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        if error.errno in ABSENT:
            raise Damaged(f"{path}: missing") from error
        raise machine_error(error, path) from error


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; `Path.exists` is False for what is refused, too."""
    with suppress(Damaged), reading(path):
        return bool(path.stat())
    return False


def is_file(path: Path) -> bool:
    """Whether there is such a file, and it is neither a folder, a pipe nor a device."""
    with suppress(Damaged), reading(path):
        return stat.S_ISREG(path.stat().st_mode)
    return False


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        Damaged: there is no such regular file.
        UserError: the machine refuses to read it.
    """
    with reading(path):
        if stat.S_ISREG(path.stat().st_mode):  # before it is opened: a pipe would block for ever
            return path.read_bytes()
    raise Damaged(f"{path}: not a regular file")


def list_folder(path: Path) -> list[Path]:
    """What is in a folder, by name; nothing if there is none (`Path.glob` hides what is refused).

    Raises:
        UserError: the machine refuses to list it.
    """
    with suppress(Damaged), reading(path):
        return sorted(path.iterdir())
    return []


PREFIX = ".unfinished-"  # of temporary files; what a kill leaves behind carries it


@contextmanager
def replacing(path: Path, *, waits: bool = True) -> Generator[Path]:
    """Yield a temporary path beside ``path`` that replaces it if the block succeeds.

    Args:
        path: the file.
        waits: whether to wait until the file is on the disk; else `sync_together` has to follow.

    Raises:
        UserError: the operating system refuses a write, e.g. because the disk is full.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=PREFIX, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o644)  # mkstemp makes files private; results are to be read
            if waits:
                sync(temporary)
            os.replace(temporary, path)  # noqa: PTH105 (the name says what matters here)
            if waits:
                sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        place = None if error.filename is None else Path(os.fsdecode(error.filename))
        is_ours = place is None or place.name.startswith(PREFIX)
        raise machine_error(error, path if is_ours else None) from error


def write_bytes(path: Path, data: bytes, *, waits: bool = True) -> None:
    """Write ``data`` to ``path`` atomically; see `replacing`."""
    with replacing(path, waits=waits) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: object, levels: int | None = None, *, waits: bool = True) -> None:
    """Write ``value`` as readable JSON; NaN and infinities raise ValueError.

    Args:
        path: path of the file.
        value: plain values.
        levels: depth to which lists and objects have one item per line; deeper ones are on one
            line. None for no limit.
        waits: see `replacing`.
    """
    write_bytes(path, (_format_json(value, levels) + "\n").encode(), waits=waits)


def _format_json(value: object, levels: int | None, margin: str = "\n") -> str:
    if levels is None or levels == 0 or not value or not isinstance(value, dict | list | tuple):
        indent = 2 if levels is None else None
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    inner = margin + "  "
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        items = [(f"{json.dumps(name, ensure_ascii=False)}: ", item) for name, item in pairs]
    else:
        items = [("", item) for item in cast("Sequence[object]", value)]
    lines = (inner + name + _format_json(item, levels - 1, inner) for name, item in items)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + ",".join(lines) + margin + end


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)  # fsync needs no write access, and folders have none
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_together(folder: Path, names: Iterable[str]) -> None:
    """Wait until files of a folder, and their names, are on the disk.

    Raises:
        UserError: the operating system refuses it.
    """
    # At once: a disk then writes all of them in about the time of one.
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(sync, [folder / name for name in names]))
        sync(folder)
    except OSError as error:
        raise machine_error(error, folder) from error


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
"""Key of a record with the digest of all other keys."""


def sha256_of(content: Path | bytes) -> str:
    """SHA-256 of bytes or of a file's content, as 64 hexadecimal digits."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with reading(content), content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Add the digest of a record's values, which does not depend on the layout of its text."""
    return {**record, SEAL: identity(record)}


def check_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Check the digest of a record, and return the record without it.

    Raises:
        ValueError: the digest does not match, or is missing.
    """
    values = {key: value for key, value in record.items() if key != SEAL}
    if record.get(SEAL) != identity(values):
        raise ValueError("it does not match its digest")
    return values


def find_damaged(
    folder: Path, digests: Mapping[str, str], may_lack: Collection[str] = ()
) -> list[str]:
    """Names of files that are missing from a folder or do not match their digests.

    Args:
        folder: folder of the files.
        digests: SHA-256 by name.
        may_lack: names of files that may be missing.
    """
    return [
        name
        for name, digest in digests.items()
        if (name not in may_lack or exists(folder / name))
        and not (is_file(folder / name) and sha256_of(folder / name) == digest)
    ]


_NUMBER = re.compile(r"os error (\d+)")


def save_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays by name as one safetensors file.

    Raises:
        OSError: the operating system refuses a write.
    """
    # Not ascontiguousarray: it would turn a scalar into a vector of one.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(contiguous, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:  # has the number of an operating system's error in its text
        if (refused := _NUMBER.search(str(error))) is None:
            raise
        number = int(refused[1])
        raise OSError(number, os.strerror(number)) from error


def load_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read arrays by name, and the metadata, from the content of a file of `save_arrays`.

    From its content, because safetensors takes any refusal to open a file for a missing one.

    Raises:
        SafetensorError, ValueError: the content is none.
    """
    arrays: dict[str, np.ndarray] = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return arrays, header.get("__metadata__", {})


MetricRow = dict[str, Any]

Columns = dict[str, np.ndarray]

# the columns of every row; further ones are float64, and NaN in rows without them
TYPES: dict[str, type] = {
    "name": str,
    "value": np.float64,
    "fold": np.int64,
    "time_s": np.float64,
    "epoch": np.float64,
}


def columns_of(rows: Sequence[MetricRow]) -> Columns:
    """Convert rows to arrays of equal length: the common columns, then the further ones by name."""
    further = sorted({key for row in rows for key in row} - TYPES.keys())
    columns: Columns = {key: np.array([r[key] for r in rows], TYPES[key]) for key in TYPES}
    for key in further:
        columns[key] = np.array([row.get(key, math.nan) for row in rows], np.float64)
    return columns


def write_columns(path: Path, columns: Columns) -> None:
    """Write columns as one Parquet file, atomically; `sync_together` has to follow."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    kinds = {"name": pa.string(), "fold": pa.int64()}
    arrays = {
        key: pa.array(array.tolist(), kinds.get(key, pa.float64()))
        for key, array in columns.items()
    }
    with replacing(path, waits=False) as temporary:
        write_table(pa.table(arrays), temporary)


def read_columns(path: Path) -> Columns:
    """Read a file of ``write_columns``.

    Raises:
        Damaged: the file is missing, or holds other columns.
        UserError: the machine refuses to read it.
    """
    import pyarrow as pa
    from pyarrow.parquet import read_table

    content = pa.BufferReader(read_bytes(path))
    try:
        table = read_table(content)
        columns = {
            key: np.array(table.column(key).to_pylist(), TYPES.get(key, np.float64))
            for key in dict.fromkeys((*TYPES, *table.column_names))
        }
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        line = str(error).splitlines()[0]
        raise Damaged(f"{path}: not a whole file of metrics ({line})") from None
    return columns
