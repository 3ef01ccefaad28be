# kaldiio says no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Numbers in Kaldi's archives, and nothing else that kaldiio would read there.

An archive may hold pickles, arrays of numpy and audio, and a table may name commands: kaldiio
unpickles and executes them. Here a table names a file of numbers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from harness.base.settings import inflated

__all__ = ["NotNumbers", "archive", "matrix"]

PLACE = re.compile(
    r"(?P<file>.+?)(:(?P<offset>\d{1,18}))?"
    r"(\[(?P<first>\d{1,9}):(?P<last>\d{1,9})(,(?P<left>\d{1,9}):(?P<right>\d{1,9}))?\])?"
)
"""``FILE:OFFSET[FIRST ROW:LAST ROW,FIRST COLUMN:LAST COLUMN]``, both ends included."""
OTHERS = (b"PKL", b"NPY", b"AUDIO", b"RIFF", b"fLaC")
"""How kaldiio knows what is not Kaldi's own."""


class NotNumbers(ValueError):  # noqa: N818 (what is wrong)
    """An archive or a table that holds something else than Kaldi's numbers."""


def matrix(where: str, folder: Path) -> np.ndarray:
    """What a line of a table names.

    Args:
        where: a file, perhaps with a place in it; relative to here, as Kaldi's, or to the folder.
        folder: that of the table.

    Raises:
        NotNumbers: it is a command, or something else lies there.
        Exception: whatever kaldiio raises where the archive is broken.
    """
    named = PLACE.fullmatch(where)
    if named is None or where.startswith("|") or where.endswith("|"):
        raise NotNumbers("a command, and none is run; needed: FILE or FILE:OFFSET")
    near = Path(named["file"])
    path = near if near.exists() else folder / near
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    with path.open("rb") as file:
        file.seek(int(named["offset"] or 0))
        found = _numbers(file)
    for axis, (first, last) in enumerate((("first", "last"), ("left", "right"))):
        if named[last] is not None:
            found = found.take(range(int(named[first]), int(named[last]) + 1), axis)
    return found


def archive(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Keys and numbers of a packed archive.

    Raises:
        NotNumbers: something else lies there.
        Exception: whatever kaldiio and gzip raise where it is broken.
    """
    from kaldiio.matio import read_token

    with path.open("rb") as packed:
        file = io.BytesIO(inflated(packed, path.stat().st_size).read())
    while (key := read_token(file)) is not None:
        yield key, _numbers(file)


def _numbers(file: IO[bytes]) -> np.ndarray:
    from kaldiio.matio import read_kaldi

    begins = file.read(max(map(len, OTHERS)))
    if begins.startswith(OTHERS):
        raise NotNumbers("no numbers of Kaldi's own")
    file.seek(-len(begins), io.SEEK_CUR)
    return np.asarray(read_kaldi(file))
