"""Runs in one compressed archive, without models and timelines: what verdicts rest on."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterable
from pathlib import Path

from harness.base.errors import UserError
from harness.store import schema
from harness.store.files import write_bytes
from harness.store.read import Run
from harness.store.store import Store

ARCHIVE = "runs.tar.xz"
"""Name of the archive beside a published report."""


def write_archive(path: Path, runs: Iterable[Run]) -> None:
    """Write runs into an archive; the same runs give the same bytes.

    Members are ``HASH/FILE``, ordered by file name so that similar contents lie close together,
    which makes the archive 20 times smaller. A run's record comes last, as in the store.
    """
    members = [
        (name == schema.RUN, name, run)
        for run in runs
        for name in {schema.CONFIG, schema.PROVENANCE, schema.RUN, *run.digests} - schema.LARGE
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as tar:
        for _, name, run in sorted(members, key=lambda item: (*item[:2], item[2].hash)):
            data = (run.dir / name).read_bytes()
            member = tarfile.TarInfo(f"{run.hash}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    write_bytes(path, buffer.getvalue())


def read_archive(path: Path, store: Store) -> None:
    """Copy the runs of an archive that a store lacks into it.

    Raises:
        UserError: the archive cannot be read, or the store cannot be written.
    """
    try:
        with tarfile.open(path, "r:xz") as tar:
            hashes = {member.name: member.name.partition("/")[0] for member in tar}
            missing = store.missing(set(hashes.values()))
            members = [member for member in tar if hashes[member.name] in missing]
            tar.extractall(store.path, members, filter="data")
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise UserError(f"{path}: cannot be read as an archive of runs ({error})") from None
