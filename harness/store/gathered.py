"""A store here whose finished runs are gathered in an object store, where others claim theirs too.

Several machines without a file system in common work on one grid so: each asks for all of it. A
run is held here and there while it is made, and sent before it is given back; whoever comes second
takes it as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.base.errors import UserError
from harness.base.seeds import SHORT
from harness.store import archive, atomic, schema
from harness.store.bucket import Bucket
from harness.store.lease import Lease, Leases
from harness.store.place import Place
from harness.store.read import read_run
from harness.store.store import Store
from harness.store.waiting import Waiting
from harness.store.write import RunWriter


class Gathered(Store):
    """A store whose finished runs are elsewhere too.

    Args:
        path: the folder here.
        bucket: where they are gathered.
    """

    def __init__(self, path: Path | str, bucket: Bucket) -> None:
        super().__init__(path)
        self.bucket = bucket

    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Those that are neither here nor there; the others are in both places from now on.

        Raises:
            OSError: the object store cannot be reached, or does not let us in.
        """
        wanted, there, old = list(hashes), self.bucket.hashes(), 0
        for name in wanted:
            if not self.has(name):
                self.pull(name) if name in there else None
            elif name not in there:
                old += not self._sent(self.path / name)
        if old:
            self._say(f"{self.path}: {old} made before digests were kept; not sent")
        return super().missing(wanted)

    def elsewhere(self, hash_: str) -> bool:
        """Whether somebody else makes this run now, here or there."""
        return super().elsewhere(hash_) or Lease(self.bucket.leases(hash_)).taken()

    def pull(self, hash_: str) -> bool:
        """Have a run here that is there; False if what is there is damaged, which is said."""
        folder = atomic.writable_folder(self.path / hash_, "store")
        (lease := Lease(folder)).acquire(Waiting(f"run {hash_[:SHORT]}"))
        try:
            return self.has(hash_) or self._laid(folder)
        finally:
            lease.release()

    def _places(self, folder: Path) -> list[Path | Place]:
        return [folder, self.bucket.leases(folder.name)]

    def _opened(self, folder: Path, config: Mapping[str, object], lease: Leases) -> RunWriter:
        if not self.has(folder.name) and self.bucket.has(folder.name):
            self._laid(folder)
        return super()._opened(folder, config, lease)

    def _laid(self, folder: Path) -> bool:
        """Write the files of a run into its folder, which is held, its record last."""
        try:
            files = self.bucket.pull(folder.name)
        except UserError as error:
            self._say(f"{self.bucket.url}: {error}; it stays until a whole one is sent")
            return False
        here = folder / schema.RUN
        if self.needing().has(folder.name) and here.read_bytes() != files[schema.RUN]:
            return False  # a light one is here, with other results: it stays
        for name in schema.LARGE.difference(files):  # whatever lies there under its name
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            atomic.write_bytes(folder / name, data)
        return True

    def _finished(self, folder: Path) -> None:
        """Send it; what cannot be sent now `missing` sends when it is asked for again."""
        try:
            self._sent(folder)
        except OSError as error:
            self._say(f"{error}; run {folder.name[:SHORT]} is kept here, the same command sends it")

    def _sent(self, folder: Path) -> bool:
        """Send a finished run if it is a result; False if it is too old to be sent."""
        run = read_run(folder)
        if run.status not in archive.KEPT:
            return True
        if run.digests and self.bucket.push(run) == "different":
            told = f"run {run.hash[:SHORT]} is there with other results, and stays so"
            self._say(f"{self.bucket.url}: {told}")
        return bool(run.digests)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
