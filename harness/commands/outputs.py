"""Outputs of a command: files that are replaced when they are whole, standard output, traces.

`write_trace` writes the Trace Event format, which https://ui.perfetto.dev opens. Each worker, and
the server, is a thread; a span is a complete event (``X``); an arrow from a contribution's read to
its fold is a pair of flow events (``s``, ``f``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.simulator.timeline import Timeline
from harness.store.files import replacing

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
    if path == STANDARD:
        with TemporaryDirectory() as folder:
            yield Path(folder) / "draft"
            sys.stdout.flush()
            sys.stdout.buffer.write((Path(folder) / "draft").read_bytes())
            sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():
        reason = "(not a regular file); allowed: a file, or - for standard output"
        raise UserError(f"{path}: cannot write {title} {reason}")
    with replacing(path.resolve()) as draft:
        yield draft


MICROSECONDS = 1e6

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
            "ts": start_s * MICROSECONDS,
            "dur": (end_s - start_s) * MICROSECONDS,
        }


def _arrows(timeline: Timeline) -> Iterator[Event]:
    """Arrows from read to fold; the fold is an instant event of the server with the figures."""
    rows = timeline.folded()
    fold_times = rows.read_time_s + timeline.lag_s()
    columns = (rows.fold, rows.worker, rows.read_time_s, fold_times, timeline.staleness())
    for number, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        fold, worker, read_s, fold_s, staleness = row
        server = {"pid": 0, "tid": _thread(-1), "ts": fold_s * MICROSECONDS}
        reader = {"pid": 0, "tid": _thread(worker), "ts": read_s * MICROSECONDS}
        arrow = {"name": "contribution", "cat": "flow", "id": number}
        args = {"worker": worker, "staleness": staleness, "lag_s": fold_s - read_s}
        yield {"ph": "s", **arrow, **reader}
        yield {"ph": "f", "bp": "e", **arrow, **server}
        yield {"ph": "i", "s": "t", "name": f"fold {fold}", **server, "args": args}
