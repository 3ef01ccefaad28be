"""What is read back is what was written: digests of a run's files, and of records by themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from harness.base.seeds import identity

SEAL = "sha256"
"""The key of a record that holds the digest of all its others."""


def of(content: Path | bytes) -> str:
    """SHA-256 of bytes or of a file's content, 64 hexadecimal digits; files piece by piece."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the digest of what it says, whatever the layout of its text."""
    return {**record, SEAL: identity(record)}


def opened(record: Mapping[str, Any], needs_seal: bool = False) -> dict[str, Any]:
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


def damaged(folder: Path, digests: Mapping[str, str], may_lack: Collection[str] = ()) -> list[str]:
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
    return path.is_file() and of(path) == known
