"""Writing of a run while it is executed."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import numpy as np

from harness.base.errors import Damaged, UserError
from harness.base.log import LOG
from harness.base.reads import unread_keys
from harness.base.seeds import SHORT, identity, plain
from harness.store import files, schema
from harness.store.claim import Claim
from harness.store.files import MetricRow, columns_of, save_arrays, write_columns
from harness.store.read import read_record
from harness.store.schema import Outcome


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
