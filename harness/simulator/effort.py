"""What a simulation will take, roughly and before it runs.

Every figure below was measured on one core of 2023, in processor time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.simulator.cluster import Cluster
from harness.simulator.exchange import ROUND
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.protocols.round_end import network_of, wired

__all__ = ["Effort", "effort_of"]


class Rate(NamedTuple):
    """Processor seconds and bytes of a protocol.

    Attributes:
        worker_s, worker_bytes: of a worker, until it has read for the first time.
        contribution_s: of a contribution.
        rounds: whether workers fold together.
        present_s: of a worker in a fold, whether it contributes or not.
    """

    worker_s: float
    worker_bytes: float
    contribution_s: float
    rounds: bool = False
    present_s: float = 0.0


RATES = {
    "averaging": Rate(1e-6, 600.0, 1e-6, rounds=True),
    "backup_workers": Rate(1e-6, 400.0, 0.9e-6, rounds=True),
    "client_sampling": Rate(1e-6, 350.0, 3e-6, rounds=True, present_s=0.35e-6),
    "parameter_server": Rate(2e-6, 450.0, 1e-6),
    "sequence": Rate(50e-6, 3700.0, 10e-6),
}
USUAL = RATES["parameter_server"]
"""Of a protocol from elsewhere."""

MESSAGE_S, PASSED_S = 0.3e-6, 0.5e-9
"""Of a message that is simulated singly, where only its own links matter (0.11 to 0.25
microseconds), and of one that meets no other and is passed in a recurrence."""
CROWDED_S = 10e-9
"""Of a message on fair links besides, for each that may be under way: whoever comes or goes changes
the rates of others. 6 to 19 nanoseconds with 64 to 1,024 workers."""
MESSAGE_BYTES = 64.0
"""Memory of a message in a table: measured, about 50."""
KEPT_BYTES = 500.0
"""Memory of a contribution in a timeline that is kept: measured, 200 to 590."""
LEAST_FOLDS, LEAST_READS = 320, 5
"""Of a long run: folds, and contributions of each worker; it may need many times as many."""


class Effort(NamedTuple):
    """Processor seconds, those of them before anything is folded, and bytes of memory."""

    seconds: float
    first_s: float
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
    rate, handing = RATES.get(protocol.name, USUAL), protocol.handing(workers)
    each = workers if handing is not None and handing.rounds else 1
    least = LEAST_FOLDS if rate.rounds else max(LEAST_FOLDS, LEAST_READS * workers)
    rounds = least if folds is None else folds
    first_s, size = workers * rate.worker_s, workers * rate.worker_bytes
    round_s, table = _messages(cluster, protocol, workers)
    fold_s = each * rate.contribution_s + workers * rate.present_s + round_s
    kept = 0 if folds is None else folds * each
    return Effort(first_s + rounds * fold_s, first_s, size + table + kept * KEPT_BYTES)


def _messages(cluster: Cluster, protocol: TimingProtocol, workers: int) -> tuple[float, float]:
    """Seconds that the messages of a round take, and bytes of their table; a ring has none."""
    if not isinstance(protocol, Averaging) or workers == 1:
        return 0.0, 0.0
    near = math.gcd(workers, network_of(cluster).nearby)
    count, wiring = _count(protocol.collective, workers, near), wired(cluster, workers)
    if protocol.collective == "ring" and wiring.full_duplex:
        return count * PASSED_S, 0.0
    each_s = MESSAGE_S + (CROWDED_S * workers if wiring.fair else 0.0)
    size = 0.0 if protocol.collective in ROUND else count * MESSAGE_BYTES
    return count * each_s, size


def _count(collective: str, workers: int, near: int) -> int:
    """Messages of an all-reduce, at most; ``near`` workers are a group of two levels."""
    if collective in ("ring", "gather"):
        return (2 if collective == "ring" else 1) * (workers - 1) * workers
    if collective == "two-level":
        return 2 * (near + workers // near - 2) * workers
    return 2 * math.ceil(math.log2(workers)) * workers
