# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
"""Timelines as Parquet files.

`save_timeline` writes one Parquet file. All tables are concatenated into one long table with a
column ``table``; columns that a table lacks are null. So any Parquet reader can filter and use it.
A column of a protocol's own table has the table's name before its own, as in ``rollouts.slot``. The
metadata has the span kinds and the SHA-256.

"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError, machine_error
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


def save_timeline(timeline: Timeline, path: str | Path) -> str:
    """Write one Parquet file, and return its SHA-256 (`Timeline.sha256`).

    Raises:
        UserError: the file cannot be written.
    """
    from pyarrow.parquet import ParquetWriter

    own_types = {
        f"{table}.{name}": column.dtype.name
        for table, rows in timeline.own.items()
        for name, column in rows.columns().items()
    }
    schema, sha256 = _schema(own_types), timeline.sha256()
    tables = timeline.tables() | {"contributions": timeline.folded()}
    unfolded = [("contributions", rows) for rows in (timeline.lost(), timeline.in_flight())]
    try:
        with ParquetWriter(path, schema, compression="zstd") as writer:
            for table, rows in (*tables.items(), *unfolded):
                if len(rows):
                    writer.write_table(_long(table, rows.columns(), len(rows), schema))
            notes = {"kinds": json.dumps(timeline.kinds), "sha256": sha256}
            writer.add_key_value_metadata({**notes, "format": "lagbench timeline 2"})
    except OSError as error:
        raise machine_error(error, Path(path)) from error
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
