"""What a simulation will take, roughly and before it runs."""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.simulator.cluster import Cluster
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.protocols.round_end import wired

__all__ = ["Effort", "effort_of"]

MESSAGE_S, CONTRIBUTION_S = 1.1e-6, 1.0e-6
"""Processor time of a message that is simulated singly, and of a contribution: measured on one core
of 2023, 0.7 to 1.5 and 0.1 to 5 microseconds."""
MESSAGE_BYTES = 64.0
"""Memory of a message of a round: measured, about 50."""
KEPT_BYTES = 500.0
"""Memory of a contribution in a timeline that is kept: measured, 200 to 590."""
LEAST_FOLDS = 320
"""Of a long run, which may need many times as many."""


class Effort(NamedTuple):
    """Processor seconds, and bytes of memory: of a timeline that is kept, of a round's messages."""

    seconds: float
    size: float


def effort_of(
    cluster: Cluster, protocol: TimingProtocol, workers: int, folds: int | None
) -> Effort:
    """Of one worker count.

    Args:
        cluster: the machine.
        protocol: who waits for whom.
        workers: how many.
        folds: that are asked for; None for the long run, of which the least is told.
    """
    handing = protocol.handing(workers)
    rounds = LEAST_FOLDS if folds is None else folds
    each = workers if handing is not None and handing.rounds else 1
    messages = _messages(cluster, protocol, workers) if isinstance(protocol, Averaging) else 0
    seconds = rounds * (each * CONTRIBUTION_S + messages * MESSAGE_S)
    kept = 0 if folds is None else folds * each
    return Effort(seconds, messages * MESSAGE_BYTES + kept * KEPT_BYTES)


def _messages(cluster: Cluster, protocol: Averaging, workers: int) -> int:
    """Messages of a round that are simulated one by one; a ring of separate links needs none."""
    ring = protocol.collective == "ring"
    if workers == 1 or (ring and wired(cluster, workers).full_duplex):
        return 0
    steps = 2 * (workers - 1) if ring else 2 * math.ceil(math.log2(workers))
    return steps * workers
