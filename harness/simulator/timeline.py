"""The ordered record of folds, contributions and busy spans, and ages taken from it.

Fold k (counted from 0) turns version k into version k + 1. A timeline has three tables, each of
equally long columns:

- folds: the instant of each fold's completion;
- contributions: the contributions of each fold, in the order in which they entered. A row with
  fold −1 was in flight at the end of the segment: it gives an executor the version that its worker
  holds. It appears again, with its fold, in the segment of that fold;
- spans: busy times. Workers count from 0, the server is −1 (shard s is −1 − s). A worker's spans
  appear in the segment in which its contribution folds.

Three more tables may have rows:

- restarts: failures of the server and its restarts from a checkpoint;
- decodes: in sequence training, the version with which each utterance was decoded;
- pieces: for a server in shards, each shard's folds, and the shard's versions that were read.

A protocol may add tables of its own (`Timeline.own`), of a class that it derives from `Table`.

A contribution that a failure destroyed is a row with fold −2, in the segment of its loss.

`inner_lag` computes the age of folded contributions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from harness.base.settings import format_count, format_seconds

IN_FLIGHT, LOST = -1, -2

SERVER = -1

KINDS = ("fetch", "compute", "push", "fold")
"""Span kinds of every timeline; others are added after them."""

Ints = NDArray[np.int64]

SmallInts = NDArray[np.int32]

Floats = NDArray[np.float64]


_ints = partial(np.zeros, 0, np.int64)
_small_ints = partial(np.zeros, 0, np.int32)
_floats = partial(np.zeros, 0, np.float64)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in order, without absent optional ones."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: column for name, column in columns.items() if column is not None}

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.__dataclass_fields__))))  # never an absent one

    def where(self, keep: NDArray[np.bool_]) -> Any:
        """The rows where ``keep`` is true."""
        return replace(self, **{name: column[keep] for name, column in self.columns().items()})


@dataclass(frozen=True, eq=False)
class Columns(Table):
    """A table that was loaded from a file which does not know its class.

    Attributes:
        named: its columns by name.
    """

    named: Mapping[str, NDArray[Any]]

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in order."""
        return dict(self.named)

    def __len__(self) -> int:
        return len(next(iter(self.named.values())))

    def where(self, keep: NDArray[np.bool_]) -> Columns:
        """The rows where ``keep`` is true."""
        return Columns({name: column[keep] for name, column in self.named.items()})


@dataclass(frozen=True, eq=False)
class Folds(Table):
    """[F] folds in order.

    Attributes:
        fold: number of the fold; fold k makes version k + 1.
        time_s: instant of its completion, in virtual seconds.
    """

    fold: Ints = field(default_factory=_ints)
    time_s: Floats = field(default_factory=_floats)


@dataclass(frozen=True, eq=False)
class Contributions(Table):
    """[C] contributions: folded, in that order; lost, in that order; in flight, by first step.

    Attributes:
        fold: number of the fold that it entered, `LOST` or `IN_FLIGHT`.
        worker: index of the worker.
        read_version: version that the worker read.
        read_time_s: instant of that read, in virtual seconds.
        first_step: number of its first minibatch, counted over all workers in order of
            reading; counted by worker if each has its own part of the data, as in averaging.
        steps: number of its minibatches.
        decode_version: in sequence training, the oldest version with which one of its utterances
            was decoded.
    """

    fold: Ints = field(default_factory=_ints)
    worker: SmallInts = field(default_factory=_small_ints)
    read_version: Ints = field(default_factory=_ints)
    read_time_s: Floats = field(default_factory=_floats)
    first_step: Ints = field(default_factory=_ints)
    steps: SmallInts = field(default_factory=_small_ints)
    decode_version: Ints | None = None


@dataclass(frozen=True, eq=False)
class Spans(Table):
    """[S] busy times.

    Attributes:
        worker: worker index; −1 − s for shard s of the server.
        kind: index into `Timeline.kinds`.
        start_s: start of the interval, in virtual seconds.
        end_s: end of the interval, in virtual seconds.
    """

    worker: SmallInts = field(default_factory=_small_ints)
    kind: SmallInts = field(default_factory=_small_ints)
    start_s: Floats = field(default_factory=_floats)
    end_s: Floats = field(default_factory=_floats)


@dataclass(frozen=True, eq=False)
class Restarts(Table):
    """[R] restarts of the server from a checkpoint.

    Attributes:
        time_s: instant at which the server is up again, in virtual seconds.
        version: number of folds at the failure; versions continue from there.
        restored_version: the version with the model of version ``version`` after the restart; the
            folds between are undone.
    """

    time_s: Floats = field(default_factory=_floats)
    version: Ints = field(default_factory=_ints)
    restored_version: Ints = field(default_factory=_ints)


@dataclass(frozen=True, eq=False)
class Decodes(Table):
    """[D] utterances in the order they entered a minibatch.

    Attributes:
        worker: index of the worker that decoded it.
        slot: the row of the worker's minibatch that it fills.
        utterance: number, counted over all workers in order of decoding.
        decode_version: version with which it was decoded.
        decode_time_s: instant of the read of that version, in virtual seconds.
        first_step: the worker's own count of minibatches at its first frame.
        steps: number of frames kept, one per minibatch.
    """

    worker: SmallInts = field(default_factory=_small_ints)
    slot: SmallInts = field(default_factory=_small_ints)
    utterance: Ints = field(default_factory=_ints)
    decode_version: Ints = field(default_factory=_ints)
    decode_time_s: Floats = field(default_factory=_floats)
    first_step: Ints = field(default_factory=_ints)
    steps: SmallInts = field(default_factory=_small_ints)


@dataclass(frozen=True, eq=False)
class Pieces(Table):
    """[P] pieces of folded contributions: by fold, then by shard.

    A shard's version is its number of folded pieces. Shards may fold in different orders.

    Attributes:
        fold: number of the fold with this piece.
        worker: −1 − s for shard s, as in spans.
        read_version: the shard's version that the contribution's worker read.
        version: the shard's version just before it folded this piece.
        time_s: instant at which the piece was folded, in virtual seconds.
    """

    fold: Ints = field(default_factory=_ints)
    worker: SmallInts = field(default_factory=_small_ints)
    read_version: Ints = field(default_factory=_ints)
    version: Ints = field(default_factory=_ints)
    time_s: Floats = field(default_factory=_floats)


TABLES: dict[str, Any] = {
    "folds": Folds,
    "contributions": Contributions,
    "spans": Spans,
    "restarts": Restarts,
    "decodes": Decodes,
    "pieces": Pieces,
}
"""Classes of the tables of every timeline."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Events of a simulation, or of a real run, during one segment.

    Attributes:
        folds: the folds.
        contributions: contributions folded, lost, and in flight at the end.
        spans: busy times of workers and server.
        kinds: names of the span kinds.
        restarts: restarts of the server.
        decodes: decoded utterances.
        pieces: folds of each shard of the server.
        own: tables of the protocol's own, by a name that no other table has.
        unit: name of what contributions are made of, in the summary.
    """

    folds: Folds = field(default_factory=Folds)
    contributions: Contributions = field(default_factory=Contributions)
    spans: Spans = field(default_factory=Spans)
    kinds: tuple[str, ...] = KINDS
    restarts: Restarts = field(default_factory=Restarts)
    decodes: Decodes = field(default_factory=Decodes)
    pieces: Pieces = field(default_factory=Pieces)
    own: Mapping[str, Table] = field(default_factory=dict[str, Table])
    unit: str = "minibatches"

    def tables(self) -> dict[str, Table]:
        """The tables by name; all but the first three only if they have rows."""
        tables = {name: getattr(self, name) for name in TABLES} | dict(self.own)
        always = ("folds", "contributions", "spans")
        return {name: rows for name, rows in tables.items() if name in always or len(rows)}

    def folded(self) -> Contributions:
        """The contributions that were folded, without those lost or in flight."""
        # The usual case, which needs no copy.
        if len(self.contributions) == 0 or self.contributions.fold.min() >= 0:
            return self.contributions
        return self.contributions.where(self.contributions.fold >= 0)

    def kept(self) -> Contributions:
        """The folded contributions that no restart of the server in this segment undid."""
        rows = self.folded()
        undone = np.zeros(len(rows), np.bool_)
        edges = zip(self.restarts.restored_version, self.restarts.version, strict=True)
        for restored, version in edges:
            undone |= (rows.fold >= restored) & (rows.fold < version)
        return rows.where(~undone) if len(self.restarts) else rows

    def lost(self) -> Contributions:
        """The contributions that a failure destroyed before they were folded."""
        if self.folded() is self.contributions:
            return Contributions()
        return self.contributions.where(self.contributions.fold == LOST)

    def in_flight(self) -> Contributions:
        """The contributions in flight at the end of the segment."""
        return self.contributions.where(self.contributions.fold == IN_FLIGHT)

    def staleness(self) -> Ints:
        """[C'] for each folded contribution, the folds between its read and its fold."""
        rows = self.folded()
        return rows.fold - rows.read_version

    def lag_s(self) -> Floats:
        """[C'] for each folded contribution, seconds from its read to its fold."""
        rows = self.folded()
        if len(rows) == 0:
            return np.zeros(0)
        # Folds of one segment have numbers without gaps.
        return self.folds.time_s[rows.fold - self.folds.fold[0]] - rows.read_time_s

    def sha256(self) -> str:
        """Hash of the canonical bytes: every column's name, type and little-endian values."""
        digest = hashlib.sha256("\x1f".join(self.kinds).encode())
        for table, rows in self.tables().items():
            for name, column in rows.columns().items():
                plain = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
                content = hashlib.sha256(plain.data).hexdigest()
                digest.update(f"{table}.{name}:{plain.dtype.str}:{content}\n".encode())
        return digest.hexdigest()

    def lines(self) -> list[str]:
        """A summary: events, throughput, staleness, lag, and the share of time spent computing."""
        rows, lost = self.folded(), len(self.lost())
        if not len(rows):
            return ["timeline without folds"]
        workers = len(np.unique(self.contributions.worker))
        seconds = float(self.folds.time_s[-1] - self.contributions.read_time_s.min())
        events = f"{len(self.folds)} folds (updates of the model) of {len(rows)} contributions"
        events += f", {lost} lost" if lost else ""
        if undone := len(rows) - len(self.kept()):
            events += f", {undone} undone by {format_count(len(self.restarts), 'restart')}"
        crew = f"{workers} worker{'' if workers == 1 else 's'}"
        lines = [f"{crew}: {events} in {format_seconds(seconds)} of simulated time"]
        if seconds > 0.0:
            steps = int(self.kept().steps.sum()) / seconds
            lines.append(f"throughput  {steps:.4g} {self.unit}/s, {steps / workers:.4g} a worker")
        stale, lag = self.staleness(), self.lag_s()
        text = f"mean {stale.mean():.2f}, p95 {np.percentile(stale, 95):g}, max {stale.max()} folds"
        lines.append(f"staleness   {text}")
        times = (format_seconds(float(x)) for x in (lag.mean(), np.percentile(lag, 95), lag.max()))
        lines.append("lag         mean {}, p95 {}, max {}, from a read to its fold".format(*times))
        if seconds > 0.0 and len(self.spans) and "compute" in self.kinds:
            spans = self.spans.where(self.spans.kind == self.kinds.index("compute"))
            busy = float((spans.end_s - spans.start_s).sum()) / (workers * seconds)
            lines.append(f"computing   {busy:.0%} of the workers' time")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """The summary in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"


def concat(segments: Sequence[Timeline]) -> Timeline:
    """Concatenate successive segments: the result equals that of one long segment.

    Rows in flight are taken from the last segment only, because the others have folded since.
    """
    if not segments:
        return Timeline()
    kinds = tuple(dict.fromkeys(kind for part in segments for kind in part.kinds))
    tail = segments[-1]
    rows = [part.folded() for part in segments]
    rows += [part.lost() for part in segments] + [tail.in_flight()]
    return Timeline(
        contributions=stack(rows),
        spans=stack([_renumber_kinds(part, kinds) for part in segments]),
        kinds=kinds,
        **{
            name: stack([getattr(part, name) for part in segments])
            for name in ("folds", "restarts", "decodes", "pieces")
        },
        own={
            name: stack([part.own[name] for part in segments if name in part.own])
            for name in dict.fromkeys(name for part in segments for name in part.own)
        },
        unit=next((part.unit for part in segments if len(part.folds)), segments[0].unit),
    )


def _renumber_kinds(part: Timeline, kinds: tuple[str, ...]) -> Spans:
    """The spans of one segment with kinds numbered as in ``kinds``."""
    numbers = np.array([kinds.index(kind) for kind in part.kinds], dtype=np.int32)
    return replace(part.spans, kind=numbers[part.spans.kind])


def stack(tables: Sequence[Any]) -> Any:
    """Concatenate tables of one type; an optional column must be in all or none."""
    filled = [table for table in tables if len(table)] or [tables[0]]
    if len(filled) == 1:
        return filled[0]
    # A loaded table does not know its class, one that was simulated since then does.
    like = next((table for table in filled if not isinstance(table, Columns)), None)
    parts = [cast(Table, table).columns() for table in filled]
    joined = {name: np.concatenate([columns[name] for columns in parts]) for name in parts[0]}
    return Columns(joined) if like is None else replace(like, **joined)


class Lag(NamedTuple):
    """Ages of folded contributions or frames, from some instant to their folds.

    Attributes:
        staleness: [K] number of folds between the two.
        lag_s: [K] seconds between them.
    """

    staleness: Ints
    lag_s: Floats


def inner_lag(timeline: Timeline) -> Lag:
    """[C] ages of contributions since their workers' reads."""
    return Lag(timeline.staleness(), timeline.lag_s())
