"""The messages of one all-reduce on a simulated network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness.runs.config import plain
from harness.runs.executed import Watch
from harness.simulator import Cluster
from harness.simulator.collectives import AllReduce
from harness.simulator.protocols.rounds import wired
from harness.store import Run, RunWriter, Store

FORMAT = 1
"""Grows when the same configuration would no longer give the same messages."""

MESSAGE = "message"
"""The metric that is logged once a message; its value is the message's size in bytes."""


@dataclass(frozen=True)
class AllReduceConfig:
    """One all-reduce among workers that begin it together.

    Args:
        cluster: whose network it crosses.
        workers: how many take part.
        collective: a name among `harness.simulator.collectives.ALGORITHMS`.
        size_bytes: of the model.
    """

    cluster: Cluster
    workers: int
    collective: str
    size_bytes: float
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        return plain(self)

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return timed(self, store, watch)


def timed(config: AllReduceConfig, store: Store, watch: Watch) -> Run:
    """The finished run: who sent how many bytes to whom, when, and whether they were added."""
    del watch  # it takes no second
    return store.obtain(config.to_dict(), partial(_simulate, config))


def _simulate(config: AllReduceConfig, writer: RunWriter) -> None:
    reduce = AllReduce(config.collective, wired(config.cluster, config.workers))
    sent = reduce.messages(np.zeros(config.workers), config.size_bytes)
    columns = (sent.rows, sent.size_bytes, sent.sent_s, sent.arrived_s)
    for row, size_bytes, sent_s, arrived_s in zip(*columns, strict=True):
        names = {name: row[name] for name in ("source", "target", "adds")}
        writer.log(
            MESSAGE, size_bytes, fold=0, time_s=sent_s, epoch=0.0, arrived_s=arrived_s, **names
        )
    writer.finish("done", {"messages": len(sent.rows), "last_arrival_s": sent.arrived_s.max()})
