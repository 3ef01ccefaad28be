"""A finished run as one archive, so that it is somewhere as a whole or not at all."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from harness.base.errors import UserError
from harness.base.seeds import SHORT, identity
from harness.store import integrity, schema
from harness.store.read import Run

KEPT = ("done", "diverged")
"""Outcomes that are results; a failed run is tried again."""


def packed(run: Run, light: bool = False) -> bytes:
    """The files of a run as a tar archive, which has none but them.

    Args:
        run: finished.
        light: without the large ones (`schema.LARGE`).

    Raises:
        UserError: the run is no result, is damaged, or is of a version that kept no digests.
    """
    if run.status not in KEPT or not run.digests:
        why = f"is {run.status}" if run.status not in KEPT else "has no digests"
        told = "allowed: runs that are done or diverged, made by version 0.2.0 or later"
        raise UserError(f"run {run.hash[:SHORT]} {why}; {told}")
    names = {schema.CONFIG, schema.PROVENANCE, schema.RUN, *run.digests}
    names -= schema.LARGE if light else set()
    files = {name: path.read_bytes() for name in names if (path := run.dir / name).is_file()}
    files = _check(files, run.hash)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def unpacked(data: bytes, hash_: str) -> dict[str, bytes]:
    """The files of a run by name, its record last.

    Args:
        data: what `packed` made, perhaps damaged.
        hash_: of the run that it should be.

    Raises:
        UserError: it is not, or not as it was packed.
    """
    try:
        files = _members(data)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise UserError(f"run {hash_[:SHORT]}: no archive of a run ({error!r})") from None
    return _check(files, hash_)


def _check(files: Mapping[str, bytes], hash_: str) -> dict[str, bytes]:
    """Check the files of a run; gives them by name, its record last.

    Raises:
        UserError: one is missing, or not as it was written, or they are another run's.
    """
    lost: list[str] = []

    def read(name: str, is_right: Callable[[Any], object]) -> Any:
        """Read a file; None, and the file is lost, where it is not right."""
        try:
            value = json.loads(files[name])
            if is_right(value):
                return value
        except (KeyError, TypeError, AttributeError, ValueError):
            pass
        lost.append(name)
        return None

    record = read(schema.RUN, lambda said: _is_result(integrity.opened(said), hash_))
    read(schema.CONFIG, lambda said: identity(said) == hash_)
    read(schema.PROVENANCE, lambda said: _is_moment(integrity.opened(said, True), hash_))
    digests: dict[str, str] = {} if record is None else record["files"]
    results = sorted(digests.keys() - schema.LARGE.difference(files))
    whole = {name for name in files if integrity.of(files[name]) == digests.get(name)}
    if lost := [*lost, *(name for name in results if name not in whole)]:
        raise UserError(f"run {hash_[:SHORT]}: damaged, not as written: {', '.join(lost)}")
    names = (schema.CONFIG, *results, schema.PROVENANCE, schema.RUN)
    return {name: files[name] for name in names}


def _is_result(record: Mapping[str, Any], hash_: str) -> bool:
    """Whether a record is of a finished run, and of this one."""
    of_it = record["hash"] == identity(record["config"]) == hash_
    return of_it and record["status"] in KEPT and all(map(_is_plain, record["files"].keys()))


def _members(data: bytes) -> dict[str, bytes]:
    """Plain files alone: what else an archive may hold is not ours."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        plain = [each for each in tar if each.isreg() and not each.issparse()]
        return {each.name: file.read() for each in plain if (file := tar.extractfile(each))}


def _is_moment(record: Mapping[str, Any], hash_: str) -> bool:
    """Whether it may be this run's: older ones do not say whose they are."""
    return record.get("hash", hash_) == hash_


def _is_plain(name: str) -> bool:
    return PurePath(name).name == name and not name.startswith(".")
