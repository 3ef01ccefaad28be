"""The store: a folder of runs, each written by the one process that has claimed it."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

import numpy as np

from harness.base.errors import Damaged, UserError
from harness.base.log import LOG
from harness.base.reads import unread_keys
from harness.base.seeds import SHORT, identity, plain
from harness.store import files, schema
from harness.store.files import MetricRow, columns_of, save_arrays, write_columns
from harness.store.read import Run, is_run, read_config, read_record, read_run, verify_run
from harness.store.schema import Outcome

CLAIM = ".claim"
"""The file by which a process says that it executes a run."""

RENEW_S = 5.0
"""Seconds between two renewals."""

STALE_S = 60.0
"""Seconds without a renewal after which a claim is taken over: a busy machine or a slow file server
may delay a few."""

LOOK_S, TELL_S = 0.1, 5.0
"""Seconds between two looks of a waiting process, and before it names the other."""


def process_id() -> str:
    """Host and number of this process, as part of a file name."""
    return f"{socket.gethostname()}-{os.getpid()}"


def has_ended(process: str) -> bool:
    """Whether a process of this host has ended; False if it is on another host.

    Args:
        process: result of `process_id` there.
    """
    host, _, number = process.rpartition("-")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # another user's
        pass
    return False


class Claim:
    """The claim of this process on a run: a file in the run's folder.

    - *Claim.* The file is made with O_EXCL, which succeeds for one process only.
    - *Renewal.* A thread renews the file's time every `RENEW_S` while the run is executed. The file
      is removed at the end.
    - *Takeover.* A waiting process replaces the claim, by a rename, at once if the process that
      made it was on this host and has ended, else if its time has not changed for `STALE_S` of the
      waiter's own clock. No clock of another host is read.

    Two processes may execute one run, for example if one was suspended for longer than `STALE_S`.
    That is safe: both write the same bytes, and each file is replaced as a whole. The one that has
    lost its claim ends when it finds out (`is_held`).

    Args:
        folder: the run's existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._ended = folder / CLAIM, Event()
        self._text = f"{process_id()} {secrets.token_hex(8)}"

    def acquire(self) -> None:
        """Wait until no other process executes the run, and claim it.

        Raises:
            OSError, UserError: the folder cannot be read or written.
        """
        begun_s = since_s = looked_s = time.monotonic()
        mark, is_told = _look(self._path), False
        while not self._is_made(mark is not None and looked_s - since_s > STALE_S):
            if looked_s - begun_s > TELL_S and not is_told:
                is_told = True
                process = _read(self._path).partition(" ")[0]
                LOG.info(f"run {self._path.parent.name[:SHORT]}: waiting for process {process}")
            time.sleep(LOOK_S)
            # Taken before the look: were this process suspended in between, the time would not
            # count as the other's silence.
            looked_s = time.monotonic()
            if (latest := _look(self._path)) != mark:
                mark, since_s = latest, time.monotonic()
        Thread(target=self._renew, daemon=True).start()

    def is_held(self) -> bool:
        """Whether no other process has taken the run over, as far as is known."""
        try:
            return self._path.read_text(errors="replace") == self._text
        except FileNotFoundError:
            return False
        except OSError:  # a file server may be unreachable for a moment
            return True

    def release(self) -> None:
        """Remove the claim, if it is held."""
        self._ended.set()
        with suppress(OSError):
            if self.is_held():
                self._path.unlink()

    def _renew(self) -> None:
        """Set the claim's time to now again and again, while it is held."""
        while not self._ended.wait(RENEW_S):
            with suppress(OSError):
                if self.is_held():
                    os.utime(self._path)

    def _is_made(self, is_stale: bool) -> bool:
        """Make the claim, in place of a stale one or one of a process that has ended."""
        try:
            with self._path.open("x") as file:
                file.write(self._text)
        except FileExistsError:
            if not is_stale and is_claimed(self._path.parent):
                return False
            files.write_bytes(self._path, self._text.encode())
        return self.is_held()


def is_claimed(folder: Path) -> bool:
    """Whether a process executes the run in a folder now, as far as is known."""
    path = folder / CLAIM
    return files.exists(path) and not has_ended(_read(path).partition(" ")[0])


def _look(path: Path) -> tuple[str, int] | None:
    """Text and time of a claim; None if there is none."""
    try:
        return _read(path), path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _read(path: Path) -> str:
    """The text of a claim; empty if it is gone, or about to be written."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


class RunWriter:
    """Collects rows and files of one run, and holds its claim until released.

    Created by ``Store.begin``. As a context manager it gives up the claim at the end of the block;
    a run that is not finished by then can be begun again.

    Attributes:
        config: the full configuration, as plain data.
        hash: its identity.
        dir: the run's folder.
        checkpoint: ``dir/"checkpoint"``, created by the trainer when it needs it.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, object],
        claim: Claim,
        under: Mapping[str, object] | None = None,
    ) -> None:
        self.config: dict[str, object] = plain(config)
        self.hash = identity(config)
        self.dir = folder
        self.checkpoint = folder / schema.CHECKPOINT
        self._claim = claim
        self._under = under or {}
        self._rows: list[MetricRow] = []
        self._digests: dict[str, str] = {}  # of what was attached, whatever the disk made of it
        self._started = datetime.now(UTC)
        self._clock_s, self._processor_s = time.monotonic(), time.process_time()
        self._open, self._resumed = True, False

    def log(
        self, name: str, value: float, *, fold: int, time_s: float, epoch: float, **further: float
    ) -> None:
        """Keep one row in memory.

        Args:
            name: name of the metric, e.g. ``"dev_frame_error"``.
            value: its value; NaN and infinities are kept as they are.
            fold: number of folds so far.
            time_s: virtual time in seconds.
            epoch: passes over the training set so far.
            further: more numbers of this row, each in a column of its own.
        """
        row: MetricRow = {
            "name": name,
            "value": float(value),
            "fold": int(fold),
            "time_s": float(time_s),
            "epoch": float(epoch),
        }
        self._rows.append(row | {key: float(number) for key, number in further.items()})

    def rows(self) -> list[MetricRow]:
        """A copy of the rows so far, as plain dicts, for a checkpoint to hold.

        Raises:
            UserError: another process has taken the run over.
        """
        self._check_held()
        return [dict(row) for row in self._rows]

    def restore_rows(self, rows: Sequence[MetricRow]) -> None:
        """Put back the rows of a checkpoint in place of those logged since."""
        self._rows, self._resumed = [dict(row) for row in rows], True

    def attach(self, name: str, content: Path | bytes) -> Path:
        """Keep a file with the run, e.g. ``attach("timeline.parquet", path)``.

        Raises:
            UserError: another process has taken the run over.
        """
        self._check_held()
        target = self.dir / name
        self._digests[name] = files.sha256_of(content)
        if isinstance(content, bytes):
            files.write_bytes(target, content, waits=False)
        else:
            # Not shutil.copyfile: its error for a full disk names the source, not this file.
            with (
                content.open("rb") as source,
                files.replacing(target, waits=False) as temporary,
                temporary.open("wb") as copy,
            ):
                shutil.copyfileobj(source, copy)
        return target

    def attach_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> Path:
        """Keep arrays with the run, as safetensors; see `attach`."""
        self._check_held()
        target = self.dir / name
        with files.replacing(target, waits=False) as temporary:
            save_arrays(temporary, arrays)
            self._digests[name] = files.sha256_of(temporary)
        return target

    def finish(
        self,
        status: Outcome = "done",
        summary: Mapping[str, object] | None = None,
        note: str = "",
        provenance: Mapping[str, object] | None = None,
    ) -> None:
        """Write the results, remove the checkpoint and give up the claim.

        Args:
            status: ``done``, ``diverged`` or ``failed``; a failed run is tried again.
            summary: name to number or string; a non-finite number is kept as null.
            note: one sentence for a reader, e.g. where it diverged.
            provenance: further facts of this machine or moment.

        Raises:
            UserError: another process has taken the run over, or the machine refuses to write.
        """
        self._check_held()
        if not self._open:
            raise ValueError(f"run {self.hash} was already given back")
        write_columns(self.dir / schema.METRICS, columns_of(self._rows))
        moment = self._provenance() | dict(provenance or {})
        files.write_json(self.dir / schema.PROVENANCE, files.add_digest(moment), waits=False)
        record = self._record(status, summary or {}, note)
        self._compare(record)
        written = schema.CONFIG, schema.METRICS, schema.PROVENANCE, *self._digests
        files.sync_together(self.dir, written)
        files.write_json(self.dir / schema.RUN, files.add_digest(record))  # last: now finished
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Give up the claim; the folder stays as it is."""
        self._open = False
        self._claim.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _check_held(self) -> None:
        if self._open and not self._claim.is_held():
            reason = "taken over by another process while this one stood still"
            raise UserError(f"run {self.hash[:SHORT]}: {reason}; the same command resumes")

    def _record(
        self, status: Outcome, summary: Mapping[str, object], note: str
    ) -> dict[str, object]:
        return {
            "schema": schema.SCHEMA,
            "hash": self.hash,
            "status": status,
            "summary": {key: schema.finite_or_none(summary[key]) for key in sorted(summary)},
            "note": note,
            "rows": len(self._rows),
            "files": {
                name: self._digest(name) for name in sorted({schema.METRICS, *self._digests})
            },
            "config": self.config,
        }

    def _compare(self, record: Mapping[str, object]) -> None:
        """Warn if a light run that was executed again has other results than before."""
        try:
            before = read_record(self.dir / schema.RUN)
        except Damaged:  # there is none, or it has been damaged since
            return
        if before != record:
            reason = "made again with other results than it had, as another kind of processor may"
            LOG.warning(f"run {self.hash[:SHORT]}: {reason}")

    def _digest(self, name: str) -> str:
        return self._digests.get(name) or files.sha256_of(self.dir / name)

    def _provenance(self) -> dict[str, object]:
        unread = unread_keys(self.hash)
        return {
            "schema": schema.SCHEMA,
            "hash": self.hash,
            "started": self._started.isoformat(timespec="seconds"),
            "wall_s": round(time.monotonic() - self._clock_s, 3),  # since begun or last resumed
            "processor_s": round(time.process_time() - self._processor_s, 3),  # of this process
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            **({schema.UNDER: self._under} if self._under else {}),
            **({} if unread is None or self._resumed else {schema.UNREAD: unread}),
        }


DEFAULT_STORE = "lagbench-runs"
"""Folder in which `lagbench train` and a user's program keep runs, where one stands."""


class AlreadyFinished(Exception):  # noqa: N818 (a state of the store, not an error)
    """Raised by ``Store.begin`` if the run is finished; ``run`` is the result."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"run {run.hash[:SHORT]} is finished")
        self.run = run


def _but_weights(config: Mapping[str, object]) -> str:
    """A configuration as text without digests of a module's initial parameters."""
    return re.sub(r'"state": "[0-9a-f]{64}"', "", json.dumps(plain(config), sort_keys=True))


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
        died, here or on another host, the run is taken over (`Claim`).

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
        if not files.exists(folder / schema.CONFIG):
            self._tell_twins(config)
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

    def _tell_twins(self, config: Mapping[str, object]) -> None:
        """Say which unfinished runs are another only by the weights that the model begins with."""
        for checkpoint in self.path.glob(f"*/{schema.CHECKPOINT}"):
            with suppress(Damaged):
                begun = read_config(checkpoint.parent)
                if _but_weights(begun) == _but_weights(config) and not is_claimed(
                    checkpoint.parent
                ):
                    reason = "not resumed, as the model now begins with other weights"
                    advice = "call torch.manual_seed(0) before it is made"
                    LOG.info(f"run {checkpoint.parent.name[:SHORT]}: {reason}; {advice}")
                    return

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
