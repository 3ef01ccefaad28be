"""The store: a folder of runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Self

from harness.base.errors import Damaged, UserError
from harness.base.log import LOG
from harness.base.seeds import SHORT, identity, plain
from harness.store import files, schema
from harness.store.claim import Claim, is_claimed
from harness.store.read import Run, is_run, read_config, read_record, read_run, verify_run
from harness.store.write import RunWriter

DEFAULT_STORE = "lagbench-runs"
"""Folder in which `lagbench train` and a user's program keep runs, where one stands."""


class AlreadyFinished(Exception):  # noqa: N818 (a state of the store, not an error)
    """Raised by ``Store.begin`` if the run is finished; ``run`` is the result."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"run {run.hash[:SHORT]} is finished")
        self.run = run


class Store:
    """Runs addressed by the hash of their configuration.

    Args:
        path: the folder; created when the first run begins.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._needed: frozenset[str] = frozenset()
        self._under: Mapping[str, object] = {}

    def needing(self, *names: str) -> Self:
        """The same store, for a caller that needs these files: runs without one are executed again.

        The results of a light run stay until then. Diverged runs count as complete.
        """
        strict = copy(self)
        strict._needed = frozenset(names)
        return strict

    def under(self, facts: Mapping[str, object]) -> Self:
        """The same store; runs that it begins keep these facts in their provenance.

        A run that is continued keeps those of its beginning.

        Args:
            facts: JSON values, e.g. the commit of the code.
        """
        store = copy(self)
        store._under = facts
        return store

    def with_absolute_path(self) -> Self:
        """The same store by its absolute path, for processes with another working directory."""
        store = copy(self)
        store.path = self.path.resolve()
        return store

    def begin(self, config: Mapping[str, object]) -> RunWriter:
        """Claim a run, new or unfinished; waits while another process executes it.

        An unfinished run keeps its checkpoint folder. A failed one starts from its beginning, as
        does one without a file that is needed (`needing`). If the process that claims the run has
        died, here or on another host, the run is taken over (`harness.store.claim`).

        Raises:
            AlreadyFinished: it is done or diverged, perhaps by the process that was waited for.
            UserError: the store cannot be written.
        """
        folder = self.path / identity(config)
        files.writable_folder(folder, "store")
        # Before any look at the run: while this process waits, another may finish it.
        claim = Claim(folder)
        claim.acquire()
        try:
            return self._open_run(folder, config, claim)
        except BaseException:
            claim.release()
            raise

    def _open_run(self, folder: Path, config: Mapping[str, object], claim: Claim) -> RunWriter:
        self._configure(folder, config)
        if files.exists(folder / schema.RUN):
            run = verify_run(read_run(folder))
            if self._is_enough(run):
                shutil.rmtree(folder / schema.CHECKPOINT, ignore_errors=True)
                raise AlreadyFinished(run)
            if absent := self._absent(run):
                reason = f"without its {' and '.join(absent)}, which is needed"
                LOG.warning(f"{folder}: {reason}; the run is made again")
            else:
                if run.status == "damaged":
                    LOG.warning(f"{folder}: {run.note}; the run is made again")
                (folder / schema.RUN).unlink()  # not that of a light run, which stays valid
        files.sweep(folder)
        return RunWriter(folder, config, claim, self._facts_of(folder))

    def _facts_of(self, folder: Path) -> Mapping[str, object]:
        """Facts under which the run was begun; written at once if it begins now."""
        continues = any(map(files.exists, (folder / schema.RUN, folder / schema.CHECKPOINT)))
        path = folder / schema.PROVENANCE
        if continues:
            with suppress(Damaged):
                return read_record(path).get(schema.UNDER, {})
            return {}
        if self._under:
            facts = {"schema": schema.SCHEMA, "hash": folder.name, schema.UNDER: self._under}
            files.write_json(path, files.add_digest(facts))
        return self._under

    def _configure(self, folder: Path, config: Mapping[str, object]) -> None:
        """Write the configuration into the folder, unless it is there."""
        if files.exists(folder / schema.CONFIG):
            with suppress(Damaged):
                read_config(folder)
                return
        # A configuration that a crash has cut is written again; a finished run's is on the disk.
        files.write_json(folder / schema.CONFIG, plain(config), waits=False)

    def obtain(self, config: Mapping[str, object], execute: Callable[[RunWriter], object]) -> Run:
        """Load the finished run of ``config``, or execute it.

        Args:
            config: the full configuration.
            execute: trains, logs and calls ``finish`` on its argument, the writer of the run.
        """
        try:
            with self.begin(config) as writer:
                execute(writer)
        except AlreadyFinished as finished:
            return finished.run
        return self.load(identity(config))

    def has(self, hash_: str) -> bool:
        """Whether the run is done or diverged, and all its files are as they were written."""
        folder = self.path / hash_
        if not files.exists(folder / schema.RUN):
            return False
        return self._is_enough(verify_run(read_run(folder)))

    def _is_enough(self, run: Run) -> bool:
        return run.status in ("done", "diverged") and not self._absent(run)

    def _absent(self, run: Run) -> list[str]:
        """Needed files that the run was written with and that are not here any more."""
        return run.without(self._needed) if run.status == "done" else []

    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Hashes of the runs that are not finished, out of ``hashes``."""
        return {name for name in hashes if not self.has(name)}

    def elsewhere(self, hash_: str) -> bool:
        """Whether another process executes this run now, as far as is known."""
        return is_claimed(self.path / hash_)

    def load(self, hash_: str) -> Run:
        """Load the run of a hash, finished or not; the beginning of the hash is enough if unique.

        Raises:
            UserError: no such run, or several.
        """
        folders = [self.path / hash_] if len(hash_) == 64 else self._folders(hash_)
        matches = [folder for folder in folders if is_run(folder)]
        if len(matches) != 1:
            count = "no run" if not matches else f"{len(matches)} runs"
            listed = f"lagbench runs {self.path} lists what it has"
            raise UserError(f"{self.path}: {count} with hash {hash_!r}; {listed}")
        return read_run(matches[0])

    def runs(self) -> list[Run]:
        """All runs, finished or not, by hash; their files are not verified (`verify_run`)."""
        return [read_run(folder) for folder in filter(is_run, self._folders())]

    def _folders(self, begin: str = "") -> list[Path]:
        """Folders whose name begins so, in order."""
        return [path for path in files.list_folder(self.path) if path.name.startswith(begin)]
