"""A finished run as one archive, so that it is somewhere as a whole or not at all."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import PurePath

from harness.errors import UserError
from harness.identity import SHORT, identity
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
    absent = schema.LARGE if light else run.without(schema.LARGE)
    digests = {name: known for name, known in run.digests.items() if name not in absent}
    names = (schema.CONFIG, *sorted(digests), schema.PROVENANCE, schema.RUN)
    files = {name: (run.dir / name).read_bytes() for name in names}
    if lost := [name for name, known in digests.items() if integrity.of(files[name]) != known]:
        raise UserError(f"{run.dir}: damaged, not as written: {', '.join(lost)}")
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
        record = integrity.opened(json.loads(files[schema.RUN]))
        moment = files[schema.PROVENANCE]
        absent = schema.LARGE.difference(files)
        digests = {name: known for name, known in record["files"].items() if name not in absent}
        results = {name: files[name] for name in (schema.CONFIG, *digests)}
        whole = all(integrity.of(results[name]) == known for name, known in digests.items())
        asked = identity(json.loads(files[schema.CONFIG])) == hash_ == record["hash"]
        kept = record["status"] in KEPT
        integrity.opened(json.loads(moment))
    except (tarfile.TarError, KeyError, TypeError, AttributeError, ValueError, EOFError) as error:
        raise UserError(f"run {hash_[:SHORT]}: no archive of a run ({error!r})") from None
    if not (whole and asked and kept and _is_plain(results)):
        raise UserError(f"run {hash_[:SHORT]}: its archive is damaged, not as it was packed")
    return {**results, schema.PROVENANCE: moment, schema.RUN: files[schema.RUN]}


def _members(data: bytes) -> dict[str, bytes]:
    """Plain files alone: what else an archive may hold is not ours."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        plain = [each for each in tar if each.isreg() and not each.issparse()]
        return {each.name: file.read() for each in plain if (file := tar.extractfile(each))}


def _is_plain(names: dict[str, bytes]) -> bool:
    return all(PurePath(name).name == name and not name.startswith(".") for name in names)
