# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
"""Timelines as files: Parquet to load again, Trace Events to look at.

`save_timeline` writes one Parquet file. All tables are concatenated into one long table with a
column ``table``; columns that a table lacks are null. So any Parquet reader can filter and use it.
A column of a protocol's own table has the table's name before its own, as in ``rollouts.slot``. The
metadata has the span kinds and the SHA-256.

`write_trace` writes the Trace Event format, which https://ui.perfetto.dev opens. Each worker, and
the server, is a thread; a span is a complete event (``X``); an arrow from a contribution's read to
its fold is a pair of flow events (``s``, ``f``).

`atomic_output` writes a file atomically, or to standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.base.errors import UserError
from harness.simulator.timeline import TABLES, Columns, Timeline

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {
    name: column.dtype.name for kind in TABLES.values() for name, column in kind().columns().items()
}

_TYPES = {entry.name: _KINDS[entry.name] for kind in TABLES.values() for entry in fields(kind)}
"""Types of the columns, in the order in which the tables name them first."""


def _schema(types: dict[str, str]) -> pa.Schema:
    """Columns of the file: the name of the table, and all columns of all tables.

    Args:
        types: types of the columns of a protocol's own tables.
    """
    import pyarrow as pa  # when needed: it takes a tenth of a second

    kinds = {"table": "string", **_TYPES, **types}
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in kinds.items()])


def _own_types(timeline: Timeline) -> dict[str, str]:
    """Types of the columns of a protocol's own tables."""
    return {
        f"{table}.{name}": column.dtype.name
        for table, rows in timeline.own.items()
        for name, column in rows.columns().items()
    }


def save_timeline(timeline: Timeline, path: str | Path) -> str:
    """Write one Parquet file, whole or not at all, and return its SHA-256 (`Timeline.sha256`)."""
    from pyarrow.parquet import ParquetWriter

    schema, sha256 = _schema(_own_types(timeline)), timeline.sha256()
    tables = timeline.tables() | {"contributions": timeline.folded()}
    unfolded = [("contributions", rows) for rows in (timeline.lost(), timeline.in_flight())]
    with (
        atomic_output(Path(path), "the timeline") as draft,
        ParquetWriter(draft, schema, compression="zstd") as writer,
    ):
        for table, rows in (*tables.items(), *unfolded):
            if len(rows):
                writer.write_table(_long(table, rows.columns(), len(rows), schema))
        notes = {"kinds": json.dumps(timeline.kinds), "sha256": sha256}
        writer.add_key_value_metadata({**notes, "format": "lagbench timeline 2"})
    return sha256


def _long(name: str, columns: dict[str, Any], rows: int, schema: pa.Schema) -> pa.Table:
    """A table with all columns of the file; those that it lacks are null."""
    import pyarrow as pa

    before = "" if name in TABLES else f"{name}."
    contents = {f"{before}{column}": values for column, values in columns.items()}
    entries = [(contents.get(column.name), column.type) for column in list(schema)[1:]]
    arrays = [pa.nulls(rows, kind) if v is None else pa.array(v, kind) for v, kind in entries]
    return pa.Table.from_arrays([pa.repeat(name, rows), *arrays], schema=schema)


def load_timeline(path: str | Path) -> Timeline:
    """Load a file of `save_timeline`, and check it against its SHA-256.

    Raises:
        UserError: not a timeline, or its content does not match its hash.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        everything = pq.read_table(path)
        notes = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot read a timeline ({reason})") from error
    types = {column.name: str(column.type) for column in everything.schema if "." in column.name}
    if not everything.schema.equals(_schema(types)) or not {b"kinds", b"sha256"} <= set(notes):
        raise UserError(f"{path}: not a timeline; allowed: a file that lagbench saved")
    names = everything.column("table").to_numpy()

    def read(table: str, columns: Iterable[str]) -> dict[str, Any]:
        """The columns of a table that are not null throughout."""
        rows = everything.filter(pa.array(names == table))
        arrays = {name: rows.column(name).combine_chunks() for name in columns}
        return {
            name.rpartition(".")[2]: column.to_numpy(zero_copy_only=False)
            for name, column in arrays.items()
            # Without rows, only the name tells the optional column.
            if column.null_count == 0 and not (name == "decode_version" and len(column) == 0)
        }

    parts = {name: kind(**read(name, kind.__dataclass_fields__)) for name, kind in TABLES.items()}
    loaded = {
        table: Columns(read(table, [key for key in types if key.startswith(f"{table}.")]))
        for table in dict.fromkeys(name.partition(".")[0] for name in types)
    }
    timeline = Timeline(**parts, kinds=tuple(json.loads(notes[b"kinds"])), own=loaded)
    if timeline.sha256() != notes[b"sha256"].decode():
        raise UserError(f"{path}: the timeline's content does not match its SHA-256")
    return timeline


_MICROSECONDS = 1e6

Event = dict[str, Any]


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write all events as one JSON file, with an arrow from each read to its fold.

    Args:
        timeline: the timeline.
        path: the file.

    Raises:
        UserError: the file cannot be written.
    """
    events = chain(_names(timeline), _slices(timeline), _arrows(timeline))
    with atomic_output(Path(path), "the trace") as draft, draft.open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def _thread(worker: int) -> int:
    """Thread numbers: workers from 1000 on, the server 0, further shards from 1 on."""
    return 1000 + worker if worker >= 0 else -1 - worker


def _label(worker: int) -> str:
    if worker >= 0:
        return f"worker {worker}"
    return "server" if worker == -1 else f"server shard {-1 - worker}"


def _names(timeline: Timeline) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "cluster"}}
    lanes = np.concatenate([timeline.spans.worker, timeline.contributions.worker, [-1]])
    for lane in np.unique(lanes).tolist():
        place = {"pid": 0, "tid": _thread(lane)}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": _label(lane)}}
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            **place,
            "args": {"sort_index": place["tid"]},
        }


def _slices(timeline: Timeline) -> Iterator[Event]:
    spans = timeline.spans
    columns = (spans.worker, spans.kind, spans.start_s, spans.end_s)
    for worker, kind, start_s, end_s in zip(*(c.tolist() for c in columns), strict=True):
        yield {
            "ph": "X",
            "name": timeline.kinds[kind],
            "pid": 0,
            "tid": _thread(worker),
            "ts": start_s * _MICROSECONDS,
            "dur": (end_s - start_s) * _MICROSECONDS,
        }


def _arrows(timeline: Timeline) -> Iterator[Event]:
    """Arrows from read to fold; the fold is an instant event of the server with the figures."""
    rows = timeline.folded()
    fold_times = rows.read_time_s + timeline.lag_s()
    columns = (rows.fold, rows.worker, rows.read_time_s, fold_times, timeline.staleness())
    for number, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        fold, worker, read_s, fold_s, staleness = row
        server = {"pid": 0, "tid": _thread(-1), "ts": fold_s * _MICROSECONDS}
        reader = {"pid": 0, "tid": _thread(worker), "ts": read_s * _MICROSECONDS}
        arrow = {"name": "contribution", "cat": "flow", "id": number}
        args = {"worker": worker, "staleness": staleness, "lag_s": fold_s - read_s}
        yield {"ph": "s", **arrow, **reader}
        yield {"ph": "f", "bp": "e", **arrow, **server}
        yield {"ph": "i", "s": "t", "name": f"fold {fold}", **server, "args": args}


STANDARD = Path("-")
"""Path that stands for standard output."""


@contextmanager
def atomic_output(path: Path, title: str) -> Generator[Path]:
    """A temporary path that replaces ``path`` when the block has succeeded.

    If ``path`` is `STANDARD`, the content is copied to standard output instead. A symbolic link is
    kept, and its target replaced.

    Args:
        path: the output file.
        title: description of the output for messages, e.g. ``"the trace"``.

    Raises:
        UserError: the file cannot be written, or ``path`` is not a regular file.
    """
    try:
        if path == STANDARD:
            with TemporaryDirectory() as folder:
                yield Path(folder) / "draft"
                sys.stdout.flush()
                sys.stdout.buffer.write((Path(folder) / "draft").read_bytes())
                sys.stdout.buffer.flush()
            return
        refuse_to_replace(path, title)
        target = path.resolve()
        draft = target.with_name(f".unfinished-{os.getpid()}-{target.name}")
        try:
            yield draft
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except BrokenPipeError:  # the reader of standard output has closed it: not an error here
        raise
    except OSError as error:
        reason = str(error.strerror or error).splitlines()[0]
        raise UserError(f"{path}: cannot write {title} ({reason})") from error


def refuse_to_replace(path: Path, title: str) -> None:
    """Reject output paths that exist but are not regular files: devices, pipes or folders.

    Raises:
        UserError: the path is such a file.
    """
    if path != STANDARD and path.exists() and not path.is_file():
        raise UserError(
            f"{path}: cannot write {title} (not a regular file); allowed: a file, or - for"
            " standard output"
        )
