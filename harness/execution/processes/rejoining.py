"""How a worker that died comes back to an asynchronous run.

A process group takes nobody in once it is formed. So a worker that comes back forms a small group
of its own with the shards of the server. They meet at the store of the first group, which the
server's process has: the worker takes a ticket and leaves its number, the first shard answers, and
if the worker is admitted, it and all shards form the group of that ticket. Under torchrun nobody
comes back: it ends all processes when one dies.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    ProcessGroupGloo,
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from harness.errors import UserError
from harness.execution.processes.group import LONG, OPEN, connected, under_torchrun
from harness.execution.processes.headers import GarbageReceived
from harness.execution.processes.messages import DEAD_AFTER_S, Peer, ServerGone

TICKETS = "lagbench/tickets"
YES = "come in"
NOTICED_S = 2.0
"""How long an answer waits: a worker may be back before its death is noticed."""


def comes_late() -> bool:
    """Whether this process belongs to a run that has begun without it, or before it died.

    Raises:
        UserError: nobody answers where the environment says.
    """
    if under_torchrun() or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return False
    try:
        return os.environ.get("RANK", "0") != "0" and connected().check([OPEN])
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(f"environment: no server answers at {where}") from error


def come_back(rank: int, shards: int) -> list[Peer]:
    """Enter a run that goes on.

    Args:
        rank: of this worker in the first group.
        shards: of the server, whose ranks are the first.

    Returns:
        Where the shards are.

    Raises:
        UserError: it may not come in.
        ServerGone: nobody answers any more.
    """
    try:
        store = connected()
        ticket = int(store.add(TICKETS, 1))
        store.set(_key(ticket, "worker"), str(rank - shards))
        if (answer := _told(store, ticket, "answer")) != YES:
            raise UserError(answer)
        group = _group(store, ticket, shards, shards)
    except RuntimeError as error:
        raise ServerGone from error
    return [Peer(group, shard) for shard in range(shards)]


class Admission:
    """How a shard takes in workers that come back.

    Args:
        shard: which shard.
        shards: how many there are.
    """

    def __init__(self, shard: int, shards: int) -> None:
        self._shard, self._shards, self._store = shard, shards, connected()
        self._latest: dict[int, int] = {}
        self._entering: set[int] = set()
        self._deciding = threading.Lock()

    def open(
        self,
        enter: Callable[[int, Peer], None],
        is_gone: Callable[[int], bool] = lambda worker: True,
    ) -> None:
        """Admit workers from now on; both are called on threads of their own.

        Args:
            enter: takes in a worker, at its new address.
            is_gone: asked by the first shard whether a number is that of a worker who is gone.
        """
        self._enter, self._is_gone = enter, is_gone
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Take one ticket after the other; each worker enters on a thread of its own."""
        with suppress(RuntimeError):  # the store is gone, and with it the run
            for ticket in count(1):
                worker = _number(_told(self._store, ticket, "worker"))
                if self._shard == 0:
                    self._store.set(_key(ticket, "answer"), self._answer(worker, ticket))
                if _told(self._store, ticket, "answer") == YES:
                    self._latest[worker] = ticket
                    threading.Thread(target=self._admit, args=(worker, ticket), daemon=True).start()

    def _answer(self, worker: int, ticket: int) -> str:
        """The first shard's answer: yes, or why not."""
        end = time.monotonic() + NOTICED_S
        while not self._admits(worker, ticket):
            if time.monotonic() > end:
                return (
                    f"RANK: worker {worker} is not allowed; allowed: one of a worker that is gone"
                )
            time.sleep(0.05)
        return YES

    def _admits(self, worker: int, ticket: int) -> bool:
        """Whether a worker may enter now; its earlier tickets are then worth nothing."""
        with self._deciding:
            admitted = worker not in self._entering and self._is_gone(worker)
            if admitted:
                self._latest[worker] = ticket
            return admitted

    def _admit(self, worker: int, ticket: int) -> None:
        """Form the group of a ticket, and let its worker enter."""
        with suppress(RuntimeError, GarbageReceived):  # it died on the way in
            group = _group(connected(), ticket, self._shard, self._shards)
            with self._deciding:
                if self._latest[worker] != ticket:  # it has died, and come with another
                    return
                self._entering.add(worker)
            try:
                self._enter(worker, Peer(group, self._shards))
            finally:
                self._entering.discard(worker)


def admission_to(shard: int, shards: int) -> Admission | None:
    """How workers come back to a shard; None under torchrun."""
    return None if under_torchrun() else Admission(shard, shards)


def _told(store: TCPStore, ticket: int, what: str) -> str:
    """What is said with a ticket; waits for it."""
    store.wait([_key(ticket, what)], LONG)
    return store.get(_key(ticket, what)).decode()


def _number(told: str) -> int:
    """The worker's number, or -1 if what came is none."""
    try:
        return int(told)
    except ValueError:
        return -1


def _key(ticket: int, what: str) -> str:
    return f"lagbench/{ticket}/{what}"


def _group(store: TCPStore, ticket: int, rank: int, shards: int) -> ProcessGroupGloo:
    """The shards and, after them, the worker of a ticket."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = PrefixStore(_key(ticket, "group"), store)
    return ProcessGroupGloo(own, rank, shards + 1, timedelta(seconds=DEAD_AFTER_S))
