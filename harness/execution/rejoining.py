"""How a worker that died comes back to an asynchronous run.

A process group admits nobody later, so who comes back enters a small one of its own, with the
shards of the server. They meet at the store of the first group, which the server's process has:
the worker takes a ticket and leaves its number, the first shard answers, and if it may come in,
all shards and the worker form the group of that ticket. Under torchrun nobody comes back: it
ends all processes when one dies.
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
from harness.execution.wire import DEAD_AFTER_S, Peer

OPEN, TICKETS = "lagbench/open", "lagbench/tickets"
YES = "come in"
NOTICED_S = 2.0
"""A worker may be back before its death is noticed; so long the answer waits."""


def comes_late() -> bool:
    """Whether this process belongs to a run that has begun without it, or before it died."""
    if _under_torchrun() or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return False
    return os.environ.get("RANK", "0") != "0" and _store().check([OPEN])


def come_back(rank: int, shards: int) -> list[Peer]:
    """Enter a run that goes on.

    Args:
        rank: of this worker in the first group.
        shards: of the server, whose ranks are the first.

    Returns:
        Where the shards are.

    Raises:
        UserError: it may not come in.
    """
    try:
        store = _store()
        ticket = int(store.add(TICKETS, 1))
        store.set(_key(ticket, "worker"), str(rank - shards))
        answer = store.get(_key(ticket, "answer")).decode()
        if answer != YES:
            raise UserError(answer)
        group = _group(store, ticket, shards, shards)
    except RuntimeError as error:
        raise UserError(f"worker {rank - shards}: the server is gone") from error
    return [Peer(group, shard) for shard in range(shards)]


class Door:
    """Where a shard lets workers in that come back.

    Args:
        shard: which shard.
        shards: how many there are.
    """

    def __init__(self, shard: int, shards: int) -> None:
        self._shard, self._shards, self._store = shard, shards, _store()

    def open(
        self,
        enters: Callable[[int, Peer], None],
        is_absent: Callable[[int], bool] = lambda worker: True,
    ) -> None:
        """Let workers in from now on; both are called on threads of their own.

        Args:
            enters: takes in a worker, at its new address.
            is_absent: asked by the first shard whether a number is that of a worker who is gone.
        """
        if self._shard == 0:
            self._store.set(OPEN, "yes")
        threading.Thread(target=self._watch, args=(enters, is_absent), daemon=True).start()

    def _watch(self, enters: Callable[[int, Peer], None], is_absent: Callable[[int], bool]) -> None:
        with suppress(RuntimeError):  # the store is gone, and with it the run
            for ticket in count(1):
                self._store.wait([_key(ticket, "worker")], timedelta(days=1000))
                worker = int(self._store.get(_key(ticket, "worker")))
                if self._shard == 0:
                    self._store.set(_key(ticket, "answer"), _answer(worker, is_absent))
                self._store.wait([_key(ticket, "answer")], timedelta(days=1000))
                if self._store.get(_key(ticket, "answer")).decode() == YES:
                    entering = ticket, worker, enters
                    threading.Thread(target=self._let_in, args=entering, daemon=True).start()

    def _let_in(self, ticket: int, worker: int, enters: Callable[[int, Peer], None]) -> None:
        with suppress(RuntimeError):  # it died at the door
            group = _group(_store(), ticket, self._shard, self._shards)
            enters(worker, Peer(group, self._shards))


def door_of(shard: int, shards: int) -> Door | None:
    """A shard's door; None under torchrun."""
    return None if _under_torchrun() else Door(shard, shards)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _answer(worker: int, is_absent: Callable[[int], bool]) -> str:
    end = time.monotonic() + NOTICED_S
    while not is_absent(worker):
        if time.monotonic() > end:
            return f"RANK: worker {worker} is not allowed; allowed: one of a worker that is gone"
        time.sleep(0.05)
    return YES


def _key(ticket: int, what: str) -> str:
    return f"lagbench/{ticket}/{what}"


def _store() -> TCPStore:
    """A connection of its own to the store of the first group."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, wait_for_workers=False)


def _group(store: TCPStore, ticket: int, rank: int, shards: int) -> ProcessGroupGloo:
    """The shards and, after them, the worker of a ticket."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = PrefixStore(_key(ticket, "group"), store)
    return ProcessGroupGloo(own, rank, shards + 1, timedelta(seconds=DEAD_AFTER_S))
