"""Synchronous SGD with backup workers.

All workers compute a gradient at the same version. The server takes the first N − b that
arrive, one after the other, and makes one fold of them; it drops the gradients of the b slowest
(Chen et al., "Revisiting distributed synchronous SGD", 2016). A dropped contribution is recorded
as lost.

A worker with a contribution that was taken, or dropped after the server had enough, reads again
when the fold is complete, in order of arrival. If its contribution was dropped before the server
had enough, the worker reads at once: its next one may still be among the first.

A round waits only for workers that are present: for all of them, if they are fewer than N − b. A
worker that dies loses its contribution unless it has arrived. A worker that returns, or joins late,
reads like one with a dropped contribution.

The events are those of the parameter server (`harness.simulator.protocols.asynchronous`).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Cluster
from harness.simulator.protocols.absences import OF_WORKERS, check_faults
from harness.simulator.protocols.contract import Handing
from harness.simulator.protocols.parameter_server import OneServer
from harness.simulator.protocols.state import Rules, State


@dataclass(frozen=True)
class BackupWorkers(Spec, OneServer):
    """Synchronous SGD that does not wait for the slowest.

    Attributes:
        backups: number of slowest contributions that each round drops, for N workers at most
            N − 1; with 0 it is plain synchronous SGD. A single worker is never dropped.

    Examples:
        >>> BackupWorkers(backups=2).handing(workers=8).missed
        True
    """

    name = "backup_workers"
    can = frozenset({"faults", "network"})

    backups: int = setting(0, at_least=0, at_most=10_000_000)

    @property
    def rules(self) -> Rules:
        """One minibatch a contribution, without bound, queue and shards."""
        return Rules(1, 1, bound=-1, queue=-1, depth=1, shards=1, backups=self.backups)

    def handing(self, workers: int) -> Handing:
        """A minibatch for every worker and fold, also for dropped contributions."""
        return Handing(rounds=True, own=None, a_fold=workers, under_way=workers, missed=True)

    def start(self, cluster: Cluster, workers: int) -> State:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: too many workers, as many backups as workers, or a server that fails.
        """
        if 1 < workers <= self.backups:  # one alone is what the others are compared with
            allowed = f"at most {workers - 1}"
            raise UserError(
                f"backups: {self.backups} is not allowed with {workers} workers; allowed: {allowed}"
            )
        check_faults(cluster, self.name, (*OF_WORKERS, "message"))
        return super().start(cluster, workers)
