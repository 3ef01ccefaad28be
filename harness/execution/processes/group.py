"""How the processes of a run meet: at a key-value store that rank 0 serves.

The store listens at ``MASTER_ADDR`` and nowhere else; under torchrun it is torchrun's own. In it
every process says where it is. Then each has a line to each other one, and only those who come
late need the store. Over these lines the server announces the run that begins: nobody waits for
a peer that has died meanwhile, and no two processes work on different runs without knowing.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.base.errors import UserError
from harness.execution.processes.headers import FrameHeader, GarbageReceived, Kind
from harness.execution.processes.lines import Line, PeerGone
from harness.execution.processes.messages import SERVER_RANK, bytes_of, into, receive, send
from harness.execution.processes.sockets import Introduced, Socket, connect, listen
from harness.execution.processes.world import beat_on, world

OPEN = "lagbench/open"
"""Key that exists once the first group is complete: a process that starts now comes late."""
DONE = "done"
"""Announced in place of a run's identity when there is nothing to do."""
NAMED = 64
"""Bytes of what is announced."""
HEARD_WITHIN_S = 10.0
"""How long a process that ends waits for what it said to arrive."""
SERVED_WITHIN = timedelta(minutes=5)
"""How long processes that were started earlier wait for the others."""
LATE = 64
"""So many of those who come late wait to be let in; more are hung up on."""
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LISTENING = "LAGBENCH_STORE_FD"
"""The file descriptor of a socket that was bound for the store before the server started."""
_kept: list[TCPStore | Socket] = []
"""What has to last as long as the process: the store, and every connection that has not ended."""


def join() -> tuple[int, int]:
    """Enter the group that ``torchrun`` (or Slurm) describes; returns (rank, ranks).

    Raises:
        UserError: the process was not started as one of a group, or nobody answers.
    """
    missing = [name for name in NAMES if name not in os.environ]
    if missing:
        raise UserError(f"environment: {missing[0]} is missing; start with torchrun")
    rank, ranks = whole("RANK"), whole("WORLD_SIZE")
    try:
        serves = rank == SERVER_RANK and not _is_served()
        store = _served() if serves else connected()
        _kept.append(store)
        _meet(store, rank, ranks)
        if rank == SERVER_RANK:
            store.set(OPEN, "yes")
    except (RuntimeError, ValueError, OSError) as error:
        first = (str(error) or repr(error)).splitlines()[0]
        raise UserError(f"environment: cannot form the group: {first}") from error
    return rank, ranks


def _meet(store: TCPStore, rank: int, ranks: int) -> None:
    """Have a line to everybody: to lower ranks we connect, higher ones come.

    Raises:
        RuntimeError: somebody does not come in time, or lies in the store.
        OSError: somebody does not answer.
    """
    lines, met = world().lines, world().changes()
    late, came_late = world().late, world().came_late()

    def enter(who: Introduced, connection: Socket) -> None:
        _keep(connection)
        line = Line(connection)
        if who.late:
            with came_late:
                if len(late) == LATE:
                    connection.close()
                    return
                late.append((who.rank, line))
                came_late.notify_all()
            return
        with met:
            if rank < who.rank < ranks and who.rank not in lines:
                lines[who.rank] = line
                met.notify_all()
            else:
                connection.close()

    beat_on()
    host, port = listen(_own_address(), rank, enter)
    store.set(attempt(f"at/{rank}"), f"{host} {port}")
    for other in range(rank):
        line = reach(store, Introduced(rank, other, late=False))
        with met:
            lines[other] = line
    end = world().now_s() + SERVED_WITHIN.total_seconds()
    with met:
        while len(lines) < ranks - 1:
            if not met.wait(end - world().now_s()):
                away = sorted(set(range(ranks)) - {rank, *lines})
                raise RuntimeError(f"rank {away[0]} of {ranks} has not come")


def _keep(connection: Socket) -> None:
    """Have a connection last; those that have ended meanwhile give their sockets back."""
    for each in [each for each in _kept if isinstance(each, Socket) and each.ended]:
        with suppress(ValueError):  # another thread was quicker
            _kept.remove(each)
    _kept.append(connection)


def reach(store: TCPStore, who: Introduced) -> Line:
    """A line to another process.

    Args:
        store: where it says where it is.
        who: this process, and the one it wants.

    Raises:
        RuntimeError: it is not in the store, or not as we write it.
        OSError: it does not answer, or it is a stranger.
    """
    store.wait([attempt(f"at/{who.wants}")], SERVED_WITHIN)
    found = store.get(attempt(f"at/{who.wants}"))[:NAMED].decode(errors="replace")
    host, _, port = found.partition(" ")
    if not port.isdecimal():
        raise RuntimeError(f"rank {who.wants} is nowhere: {found!r}")
    connection = connect((host, int(port)), who)
    _keep(connection)
    return Line(connection)


def _own_address() -> str:
    """That by which this process is connected to where all meet; so others reach it there too."""
    at = os.environ["MASTER_ADDR"], whole("MASTER_PORT")
    with socket.create_connection(at, SERVED_WITHIN.total_seconds()) as there:
        return there.getsockname()[0]


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _is_served() -> bool:
    """Whether torchrun's agent serves the store."""
    return under_torchrun() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def connected(within: timedelta = SERVED_WITHIN) -> TCPStore:
    """A connection of its own to the store.

    Raises:
        RuntimeError: nobody serves it, so long.
        UserError: the environment names no port.
    """
    host, port = os.environ["MASTER_ADDR"], whole("MASTER_PORT")
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=within)


def whole(name: str) -> int:
    """An environment variable as a whole number.

    Raises:
        UserError: it is none.
    """
    try:
        return int(os.environ[name])
    except ValueError as error:
        found = os.environ[name]
        raise UserError(f"environment: {name}={found}: allowed: a whole number") from error


# -- what begins ----------------------------------------------------------------------------


def begin(run: str) -> None:
    """Announce a run to the processes that wait in `begun`; called by the server.

    Args:
        run: its identity.
    """
    connected().set(attempt("begun"), run)  # for those who come late
    announced = torch.zeros(NAMED, dtype=torch.uint8)
    announced[: len(run)] = torch.frombuffer(bytearray(run.encode()), dtype=torch.uint8)
    for rank in list(world().lines):
        with suppress(PeerGone):  # as the run will notice
            send(FrameHeader(Kind.RUN), rank, announced)


def begun(*, late: bool = False) -> str:
    """Wait until the server announces a run; returns its identity.

    Args:
        late: whether it has done so already.

    Raises:
        RuntimeError: the server is gone.
    """
    if late:
        store = connected(SERVED_WITHIN)
        store.wait([attempt("begun")], SERVED_WITHIN)
        return store.get(attempt("begun"))[:NAMED].decode(errors="replace")
    try:
        announced = into(torch.zeros(NAMED, dtype=torch.uint8))
        _, found = receive(SERVER_RANK, FrameHeader, announced)
    except GarbageReceived as error:
        raise RuntimeError(str(error)) from error
    return _text(found)


def _text(found: Tensor) -> str:
    return bytes(bytes_of(found)).rstrip(b"\0").decode(errors="replace")


def leave() -> None:
    """Wait until what this process has said is with the others: its end drops what is not."""
    end = world().now_s() + HEARD_WITHIN_S
    sockets = [each for each in _kept if isinstance(each, Socket)]
    while any(each.unread() for each in sockets) and world().now_s() < end:
        world().sleep(0.01)


def agree(at_work: str, own: str, file: Path) -> None:
    """Check that this process would work on the run that the server has announced.

    Raises:
        UserError: it would work on another.
    """
    if at_work != own:
        raise UserError(
            f"{file}: run {own} is not allowed; allowed: {at_work}, as the server has it"
            " (the same file, corpus and options for every process)"
        )


def _served() -> TCPStore:
    """The store itself, listening at one address alone."""
    host, port = os.environ["MASTER_ADDR"], whole("MASTER_PORT")
    if LISTENING in os.environ:
        bound = int(os.environ.pop(LISTENING))
    else:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        bound = socket.create_server(address[:2], family=family).detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=bound)


def attempt(what: str) -> str:
    """The key of what this attempt says; torchrun's store outlives one."""
    return f"lagbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{what}"
