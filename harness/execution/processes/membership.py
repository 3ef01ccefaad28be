"""Who takes part in an asynchronous run: which workers are idle, at work, gone or back.

A worker that dies is lost with the contribution it was making, whose minibatch goes to another.
One that comes back is announced in the mailbox, and has work again once that is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto

from harness.algorithms.contract import Server
from harness.execution.processes.headers import FrameHeader, GarbageReceived, Kind
from harness.execution.processes.lines import CLOSED, PeerGone
from harness.execution.processes.messages import Address, Mailbox, line_to, send
from harness.execution.processes.pace import Clock
from harness.execution.processes.recorder import Work
from harness.execution.processes.transfer import bodies
from harness.execution.replay.state import Facts


class NoWorkersLeft(Exception):  # noqa: N818 (what happened)
    """Every worker is gone."""


class Standing(Enum):
    """How a worker stands with its server."""

    HERE = auto()
    LEAVING = auto()
    """It is dead, but some of what it has sent is still to be folded."""
    GONE = auto()
    BACK = auto()
    """It has come back, and the server has not read so yet."""


class Membership:
    """The workers of an asynchronous server, and the minibatches they are given.

    Args:
        addresses: of the workers, by number; each is asked for its clock and listened to.
        server: what their contributions are for.
        say: told who goes and who comes back.
        steps: minibatches of a contribution.

    Attributes:
        clock: of the run.
        mailbox: what workers send.
        addresses: where they are.
        free: those without work, in the order in which they are given some.
        out: the work of the others.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        server: Server,
        say: Callable[[str], None],
        steps: int = 1,
    ) -> None:
        self._server, self._say, self._steps = server, say, steps
        self.clock, self.mailbox = Clock(FrameHeader(Kind.CLOCK)), Mailbox(FrameHeader)
        self.addresses = dict(enumerate(addresses))
        self._standing = dict.fromkeys(self.addresses, Standing.HERE)
        self.free = deque(self.addresses)
        self.out: dict[int, Work] = {}
        self._next, self._again = 0, deque[int]()
        for worker, address in self.addresses.items():
            try:
                self._meet(worker, address)
            except (RuntimeError, GarbageReceived):  # it has died before the run began
                self.mailbox.put(worker, None, CLOSED)

    def _meet(self, worker: int, address: Address) -> None:
        self.clock.ask(worker, address)
        self.mailbox.listen(worker, address, bodies(self._server))

    @property
    def here(self) -> int:
        """How many workers are neither gone nor leaving."""
        return list(self._standing.values()).count(Standing.HERE)

    # -- work ---------------------------------------------------------------------------

    def hand_out(self, version: int) -> Work:
        """Give the next worker the next minibatches, or some that were lost.

        Args:
            version: of the model that the worker will read.
        """
        worker = self.free.popleft()
        step = self._again.popleft() if self._again else self._next
        self._next = max(self._next, step + self._steps)
        self.out[worker] = work = Work(worker, step, self._steps, version, self.clock.now_s)
        return work

    # -- who goes -----------------------------------------------------------------------

    def is_here(self, worker: int) -> bool:
        """Whether a worker is neither gone nor leaving."""
        return self._standing[worker] is Standing.HERE

    def is_gone(self, worker: int) -> bool:
        """Whether a number is that of a worker that may come back; on any thread."""
        return self._standing.get(worker) is Standing.GONE

    def leave(self, worker: int) -> None:
        """A worker is dead; `lose` will follow."""
        self._standing[worker] = Standing.LEAVING

    def lose(self, worker: int, why: str) -> Work | None:
        """Do without a worker from now on; should it live, it notices.

        Returns:
            What it was at, which will be handed out again.
        """
        with suppress(PeerGone):
            line_to(self.addresses[worker]).end()
        self._standing[worker] = Standing.GONE
        if worker in self.free:
            self.free.remove(worker)
        work = self.out.pop(worker, None)
        if work is not None:
            self._again.append(work.step)
        self._say(f"worker {worker} {why}; {self.here} left")
        return work

    # -- who comes back -----------------------------------------------------------------

    def enter(self, worker: int, address: Address) -> None:
        """A worker has come back; on the thread of the admission."""
        self.clock.ask(worker, address)
        self.addresses[worker] = address
        self._standing[worker] = Standing.BACK
        self.mailbox.put(worker, FrameHeader(Kind.BACK))
        self.mailbox.listen(worker, address, bodies(self._server))

    def take_back(self, worker: int) -> bool:
        """Give a worker that has come back work like the others; False if none has."""
        if self._standing[worker] is not Standing.BACK:
            return False
        self._standing[worker] = Standing.HERE
        self.free.append(worker)
        self._say(f"worker {worker} is back; {self.here} at work")
        return True

    def send_home(self) -> None:
        """Tell all workers that wait for work that there is none."""
        back = [worker for worker, each in self._standing.items() if each is Standing.BACK]
        for worker in (*self.free, *back):
            self.tell(FrameHeader(Kind.STOP), worker)

    def tell(self, header: FrameHeader, worker: int) -> None:
        """Send a worker something; that it is gone will be heard otherwise."""
        with suppress(RuntimeError):
            send(header, self.addresses[worker])

    # -- the state ----------------------------------------------------------------------

    def capture(self) -> Facts:
        """What `reinstate` needs; work under way is remembered as to be handed out again."""
        out = [list(work) for work in self.out.values()]
        counts = {"next": self._next, "again": list(self._again), "out": out}
        return {**counts, "now_s": self.clock.now_s}

    def reinstate(self, facts: Facts) -> list[Work]:
        """Undo `capture`; returns the work that is lost."""
        lost = [Work(*work) for work in facts["out"]]
        self._next = facts["next"]
        self._again = deque([*facts["again"], *(work.step for work in lost)])
        self.clock.go_on_at(facts["now_s"])
        return lost
