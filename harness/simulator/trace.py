"""A timeline in the Trace Event format, which https://ui.perfetto.dev opens.

Each worker, and the server, is a thread; a span is a complete event (``X``); an arrow from
the start of a contribution's first span to its fold is a pair of flow events (``s``, ``f``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.simulator.output import written_whole
from harness.simulator.timeline import Timeline

__all__ = ["trace_events", "write_trace"]

_MICROSECONDS = 1e6
Event = dict[str, Any]


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """The events of a timeline, one JSON object each."""
    yield from _names(timeline)
    yield from _slices(timeline)
    yield from _arrows(timeline)


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write all events as one JSON file, with an arrow from each read to its fold.

    Raises:
        UserError: the file cannot be written.
    """
    with written_whole(Path(path), "the trace") as draft, draft.open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(trace_events(timeline)):
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
    """Read to fold; the fold itself is an instant on the server that carries the figures."""
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
