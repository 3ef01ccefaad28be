"""How a worker that died comes back to an asynchronous run.

It connects to the shards of the server anew, to the first of them first, which lets it in if the
worker of its number is gone. Each shard then has a line of its own to it. Under torchrun nobody
comes back: it ends all processes when one dies.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from harness.base.errors import UserError
from harness.execution.processes.group import OPEN, connected, reach, under_torchrun
from harness.execution.processes.headers import FrameHeader, GarbageReceived, Kind
from harness.execution.processes.lines import Line
from harness.execution.processes.messages import NOTHING, ServerGone, into, receive, send
from harness.execution.processes.sockets import Introduced
from harness.execution.processes.world import beat_on, now_s, world

NOTICED_S = 2.0
"""How long an answer waits: a worker may be back before its death is noticed."""
ASKED_EVERY_S = 0.05


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


def come_back(rank: int, shards: int) -> None:
    """Enter a run that goes on: have a line to every shard.

    Args:
        rank: of this worker in the first group.
        shards: of the server, whose ranks are the first.

    Raises:
        UserError: it may not come in.
        ServerGone: nobody answers any more.
    """
    lines = world().lines
    beat_on()
    try:
        store = connected()
        for shard in range(shards):
            lines[shard] = reach(store, Introduced(rank, shard, late=True))
            enter(lines[shard], rank - shards)
    except (RuntimeError, OSError, GarbageReceived) as error:
        raise ServerGone from error


def enter(shard: Line, worker: int) -> None:
    """Wait until a shard lets a worker in.

    Raises:
        UserError: it does not.
        PeerGone: it is gone.
        GarbageReceived: it answers something else.
    """
    header, _ = receive(shard, FrameHeader, into(NOTHING))
    if header.kind is not Kind.BACK:
        raise UserError(
            f"RANK: worker {worker} is not allowed; allowed: one of a worker that is gone"
        )


class Admission:
    """How a shard takes in workers that come back, one after the other.

    Args:
        shards: how many there are.
    """

    def __init__(self, shards: int) -> None:
        self._shards, self._here = shards, world()

    def open(self, enter: Callable[[int, Line], None], is_gone: Callable[[int], bool]) -> None:
        """Admit workers from now on; both are called on a thread of its own.

        Args:
            enter: takes in a worker, at its new address.
            is_gone: whether a number is that of a worker who is gone. The first shard knows;
                whoever has come to another one was let in by the first.
        """
        self._enter, self._is_gone = enter, is_gone
        self._here.start(self._watch, "admission")

    def _watch(self) -> None:
        came, late = self._here.came_late(), self._here.late
        while True:
            with came:
                while not late:
                    came.wait()
                rank, line = late.popleft()
            try:
                self._answer(rank - self._shards, line)
            except (RuntimeError, GarbageReceived):  # it died on the way in
                line.end()

    def _answer(self, worker: int, line: Line) -> None:
        """Let a worker in, or tell it that it may not."""
        end = now_s() + NOTICED_S
        while not self._is_gone(worker) and now_s() < end:
            self._here.sleep(ASKED_EVERY_S)
        if self._is_gone(worker):
            self._here.lines[worker + self._shards] = line
            send(FrameHeader(Kind.BACK), line)
            self._enter(worker, line)
        else:
            send(FrameHeader(Kind.STOP), line)
            line.end()


def admission_to(shards: int) -> Admission | None:
    """How workers come back to a shard of so many; None under torchrun."""
    return None if under_torchrun() else Admission(shards)
