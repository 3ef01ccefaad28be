"""The store: a folder of runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Self

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.seeds import SHORT, identity, plain
from harness.store import files, schema
from harness.store.lease import Lease, Leases, Place, Waiting
from harness.store.read import Run, is_run, read_config, read_run, verify_run
from harness.store.write import RunWriter


class AlreadyFinished(Exception):  # noqa: N818 (a state of the store, not an error)
    """Raised by ``Store.begin`` when there is nothing left to do; ``run`` is the result."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"run {run.hash[:SHORT]} is finished")
        self.run = run


class Store:
    """Runs addressed by the hash of their configuration.

    Args:
        path: the folder; made when the first run begins.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._needed: frozenset[str] = frozenset()

    def needing(self, *names: str) -> Self:
        """The same store, where a light run without one of these files is made again.

        What it found stays until then; one that diverged lacks nothing that anybody reads.
        """
        strict = copy(self)
        strict._needed = frozenset(names)
        return strict

    def with_absolute_path(self) -> Self:
        """The same store for processes that may work in another folder."""
        there = copy(self)
        there.path = self.path.resolve()
        return there

    def begin(self, config: Mapping[str, object]) -> RunWriter:
        """Take hold of a run, new or unfinished, waiting while another process holds it.

        An unfinished run keeps its checkpoint folder. A failed one starts again, as does one
        without a file that is needed (`needing`).
        A run whose holder has died, here or on another host, is taken over (`lease`).

        Raises:
            AlreadyFinished: it is done or diverged, perhaps by whom we waited for.
            UserError: the store cannot be written.
        """
        folder = self.path / identity(config)
        files.writable_folder(folder, "store")
        lease = Leases([Lease(place) for place in self._places(folder)])
        lease.acquire(Waiting(f"run {folder.name[:SHORT]}"))
        try:
            return self._open_run(folder, config, lease)
        except BaseException:
            lease.release()
            raise

    def _places(self, folder: Path) -> list[Path | Place]:
        """Where whoever makes a run holds a lease, in the order in which they are acquired."""
        return [folder]

    def _on_finished(self, folder: Path) -> None:
        """A run has been finished, and is still held."""

    def _open_run(self, folder: Path, config: Mapping[str, object], lease: Leases) -> RunWriter:
        self._configure(folder, config)
        if (folder / schema.RUN).exists():
            run = verify_run(read_run(folder))
            if self._is_enough(run):
                shutil.rmtree(folder / schema.CHECKPOINT, ignore_errors=True)
                raise AlreadyFinished(run)
            if absent := self._absent(run):
                told = f"without its {' and '.join(absent)}, which is needed"
                LOG.warning(f"{folder}: {told}; the run is made again")
            else:
                if run.status == "damaged":
                    LOG.warning(f"{folder}: {run.note}; the run is made again")
                (folder / schema.RUN).unlink()
        files.sweep(folder)
        return RunWriter(folder, config, lease, partial(self._on_finished, folder))

    def _configure(self, folder: Path, config: Mapping[str, object]) -> None:
        """Say in the folder what it is for, unless it does."""
        with suppress(UserError):
            read_config(folder)
            return
        files.write_json(folder / schema.CONFIG, plain(config))

    def obtain(self, config: Mapping[str, object], execute: Callable[[RunWriter], object]) -> Run:
        """The finished run of ``config``: the stored one, or what ``execute`` makes of it.

        Args:
            config: the full configuration.
            execute: trains, logs and calls ``finish`` on the writer it is given.
        """
        try:
            with self.begin(config) as writer:
                execute(writer)
        except AlreadyFinished as finished:
            return finished.run
        return self.load(identity(config))

    def has(self, hash_: str) -> bool:
        """Whether the run needs no more work: done or diverged, and all of it as it was written."""
        folder = self.path / hash_
        if not (folder / schema.RUN).exists():
            return False
        return self._is_enough(verify_run(read_run(folder)))

    def _is_enough(self, run: Run) -> bool:
        return run.status in ("done", "diverged") and not self._absent(run)

    def _absent(self, run: Run) -> list[str]:
        """Those of the files that are needed which the run was made with, and has no more."""
        return run.without(self._needed) if run.status == "done" else []

    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Those of runs that need more work."""
        return {name for name in hashes if not self.has(name)}

    def elsewhere(self, hash_: str) -> bool:
        """Whether somebody else makes this run now, as far as is known."""
        folder = self.path / hash_
        return folder.is_dir() and any(
            Lease(place).is_held_by_other() for place in self._places(folder)
        )

    def load(self, hash_: str) -> Run:
        """The run of this hash, finished or not; the short form is enough if it is unique.

        Raises:
            UserError: no such run, or several.
        """
        folders = [self.path / hash_] if len(hash_) == 64 else sorted(self.path.glob(f"{hash_}*"))
        found = [folder for folder in folders if is_run(folder)]
        if len(found) != 1:
            count = "no run" if not found else f"{len(found)} runs"
            raise UserError(f"{self.path}: {count} with hash {hash_!r}")
        return read_run(found[0])

    def runs(self) -> list[Run]:
        """Every run, finished or not, by hash; `verified` looks into their files."""
        return [read_run(folder) for folder in sorted(filter(is_run, self.path.glob("*")))]
