"""The meeting of a run's processes, the return of one that died, and their back end.

How the processes of a run meet: at a key-value store that rank 0 serves. The store listens at
``MASTER_ADDR`` and nowhere else; under torchrun it is torchrun's own. In it every process says
where it is. Then each has a line to each other one, and only those who come late need the store.
Over these lines the server announces the run that begins: nobody waits for a peer that has died
meanwhile, and no two processes work on different runs without knowing.

How a worker that died comes back to an asynchronous run. It connects to the shards of the server
anew, to the first of them first, which lets it in if the worker of its number is gone. Each shard
then has a line of its own to it. Under torchrun nobody comes back: it ends all processes when one
dies.

The back end of all-reduces between workers in rounds: gloo, NCCL or MPI. Everything else, models
at the begin and the end and what workers tell, goes over gloo in any case.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.base.errors import UserError, name_error
from harness.processes.messages import (
    NOTHING,
    SERVER_RANK,
    FrameHeader,
    Kind,
    ServerGone,
    bytes_of,
    receive,
    reuse_buffer,
    send,
)
from harness.processes.transport import (
    MalformedMessage,
    PeerConnection,
    PeerGone,
    PeerInfo,
    Socket,
    connect,
    current_runtime,
    listen,
    now_s,
    start_heartbeats,
)
from harness.runs.device import resolve

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
    rank, ranks = read_env_int("RANK"), read_env_int("WORLD_SIZE")
    try:
        serves = rank == SERVER_RANK and not _is_served()
        store = _serve_store() if serves else connect_to_store()
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
    lines, met = current_runtime().lines, current_runtime().changes()
    late, came_late = current_runtime().late, current_runtime().late_arrivals()

    def enter(who: PeerInfo, connection: Socket) -> None:
        _keep(connection)
        line = PeerConnection(connection)
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

    start_heartbeats()
    host, port = listen(_own_address(), rank, enter)
    store.set(attempt(f"at/{rank}"), f"{host} {port}")
    for other in range(rank):
        line = reach(store, PeerInfo(rank, other, late=False))
        with met:
            lines[other] = line
    end = current_runtime().now_s() + SERVED_WITHIN.total_seconds()
    with met:
        while len(lines) < ranks - 1:
            if not met.wait(end - current_runtime().now_s()):
                away = sorted(set(range(ranks)) - {rank, *lines})
                raise RuntimeError(f"rank {away[0]} of {ranks} has not come")


def _keep(connection: Socket) -> None:
    """Have a connection last; those that have ended meanwhile give their sockets back."""
    for each in [each for each in _kept if isinstance(each, Socket) and each.ended]:
        with suppress(ValueError):  # another thread was quicker
            _kept.remove(each)
    _kept.append(connection)


def reach(store: TCPStore, who: PeerInfo) -> PeerConnection:
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
    return PeerConnection(connection)


def _own_address() -> str:
    """That by which this process is connected to where all meet; so others reach it there too."""
    at = os.environ["MASTER_ADDR"], read_env_int("MASTER_PORT")
    with socket.create_connection(at, SERVED_WITHIN.total_seconds()) as there:
        return there.getsockname()[0]


def is_launched_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _is_served() -> bool:
    """Whether torchrun's agent serves the store."""
    return is_launched_by_torchrun() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def connect_to_store(within: timedelta = SERVED_WITHIN) -> TCPStore:
    """A connection of its own to the store.

    Raises:
        RuntimeError: nobody serves it, so long.
        UserError: the environment names no port.
    """
    host, port = os.environ["MASTER_ADDR"], read_env_int("MASTER_PORT")
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=within)


def read_env_int(name: str) -> int:
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


def announce_run(run: str) -> None:
    """Announce a run to the processes that wait in `await_run`; called by the server.

    Args:
        run: its identity.
    """
    connect_to_store().set(attempt("begun"), run)  # for those who come late
    announced = torch.zeros(NAMED, dtype=torch.uint8)
    announced[: len(run)] = torch.frombuffer(bytearray(run.encode()), dtype=torch.uint8)
    for rank in list(current_runtime().lines):
        with suppress(PeerGone):  # as the run will notice
            send(FrameHeader(Kind.RUN), rank, announced)


def await_run(*, late: bool = False) -> str:
    """Wait until the server announces a run; returns its identity.

    Args:
        late: whether it has done so already.

    Raises:
        RuntimeError: the server is gone.
    """
    if late:
        store = connect_to_store(SERVED_WITHIN)
        store.wait([attempt("begun")], SERVED_WITHIN)
        return store.get(attempt("begun"))[:NAMED].decode(errors="replace")
    try:
        announced = reuse_buffer(torch.zeros(NAMED, dtype=torch.uint8))
        _, found = receive(SERVER_RANK, FrameHeader, announced)
    except MalformedMessage as error:
        raise RuntimeError(str(error)) from error
    return _text(found)


def _text(found: Tensor) -> str:
    return bytes(bytes_of(found)).rstrip(b"\0").decode(errors="replace")


def leave() -> None:
    """Wait until what this process has said is with the others: its end drops what is not."""
    end = current_runtime().now_s() + HEARD_WITHIN_S
    sockets = [each for each in _kept if isinstance(each, Socket)]
    while any(each.unread() for each in sockets) and current_runtime().now_s() < end:
        current_runtime().sleep(0.01)


def check_same_run(at_work: str, own: str, file: Path) -> None:
    """Check that this process would work on the run that the server has announced.

    Raises:
        UserError: it would work on another.
    """
    if at_work != own:
        raise UserError(
            f"{file}: run {own} is not allowed; allowed: {at_work}, as the server has it"
            " (the same file, corpus and options for every process)"
        )


def _serve_store() -> TCPStore:
    """The store itself, listening at one address alone."""
    host, port = os.environ["MASTER_ADDR"], read_env_int("MASTER_PORT")
    if LISTENING in os.environ:
        bound = int(os.environ.pop(LISTENING))
    else:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        bound = socket.create_server(address[:2], family=family).detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=bound)


def attempt(what: str) -> str:
    """The key of what this attempt says; torchrun's store outlives one."""
    return f"lagbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{what}"


NOTICED_S = 2.0
"""How long an answer waits: a worker may be back before its death is noticed."""

ASKED_EVERY_S = 0.05


def is_joining_late() -> bool:
    """Whether this process belongs to a run that has begun without it, or before it died.

    Raises:
        UserError: nobody answers where the environment says.
    """
    if is_launched_by_torchrun() or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return False
    try:
        return os.environ.get("RANK", "0") != "0" and connect_to_store().check([OPEN])
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
    lines = current_runtime().lines
    start_heartbeats()
    try:
        store = connect_to_store()
        for shard in range(shards):
            lines[shard] = reach(store, PeerInfo(rank, shard, late=True))
            enter(lines[shard], rank - shards)
    except (RuntimeError, OSError, MalformedMessage) as error:
        raise ServerGone from error


def enter(shard: PeerConnection, worker: int) -> None:
    """Wait until a shard lets a worker in.

    Raises:
        UserError: it does not.
        PeerGone: it is gone.
        MalformedMessage: it answers something else.
    """
    header, _ = receive(shard, FrameHeader, reuse_buffer(NOTHING))
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
        self._shards, self._here = shards, current_runtime()

    def open(
        self, enter: Callable[[int, PeerConnection], None], is_gone: Callable[[int], bool]
    ) -> None:
        """Admit workers from now on; both are called on a thread of its own.

        Args:
            enter: takes in a worker, at its new address.
            is_gone: whether a number is that of a worker who is gone. The first shard knows;
                whoever has come to another one was let in by the first.
        """
        self._enter, self._is_gone = enter, is_gone
        self._here.start(self._watch, "admission")

    def _watch(self) -> None:
        came, late = self._here.late_arrivals(), self._here.late
        while True:
            with came:
                while not late:
                    came.wait()
                rank, line = late.popleft()
            try:
                self._answer(rank - self._shards, line)
            except (RuntimeError, MalformedMessage):  # it died on the way in
                line.end()

    def _answer(self, worker: int, line: PeerConnection) -> None:
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
    return None if is_launched_by_torchrun() else Admission(shards)


LOCAL_NAMES = ("LOCAL_RANK", "SLURM_LOCALID"), ("GROUP_RANK", "SLURM_NODEID")
"""Where torchrun and Slurm say which process on its machine this is, and on which machine."""

GLOO, NCCL, MPI = "gloo", "nccl", "mpi"

AVAILABLE: Mapping[str, Callable[[], bool]] = {
    GLOO: lambda: dist.is_gloo_available(),
    NCCL: lambda: dist.is_nccl_available(),
    MPI: lambda: dist.is_mpi_available(),
}


def check(backend: str) -> None:
    """Whether this torch, on this machine, has a backend.

    Raises:
        UserError: it is unknown, torch was built without it, or it needs GPUs and there are none.
    """
    if backend not in AVAILABLE:
        raise name_error("--backend", backend, AVAILABLE)
    there = [name for name, is_available in AVAILABLE.items() if is_available()]
    if backend not in there:
        allowed = ", ".join(there)
        raise UserError(f"--backend {backend}: this torch is built without it; allowed: {allowed}")
    if backend == NCCL and not torch.cuda.is_available():
        raise UserError(f"--backend {NCCL}: no GPU here; allowed: {GLOO}")


def require_gloo(backend: str) -> None:
    """Refuse a back end of averages for a run that averages nothing.

    Raises:
        UserError: so.
    """
    if backend != GLOO:
        raise UserError(f"--backend {backend}: for rounds of averaging; allowed here: {GLOO}")


def device_of(backend: str, asked: str | None = None) -> str:
    """Where the processes of a run compute: on GPUs if their averages go between GPUs.

    Args:
        backend: of averages.
        asked: ``auto``, ``cpu`` or ``cuda``; None for what the backend needs.

    Raises:
        UserError: it is not here, or not for this backend.
    """
    if asked is None:
        return "cuda" if backend == NCCL else "cpu"
    staging_device(backend, device := resolve(asked))
    return device


def assign_device(device: str, backend: str, rank: int) -> None:
    """Take this process's own GPU, or its share of one unless averages go between GPUs.

    Raises:
        UserError: NCCL finds fewer GPUs here than workers.
    """
    if device != "cuda" or rank == 0:
        return
    # Under torchrun and under srun ranks are counted on each machine; the server, which is on
    # the first one, needs no GPU.
    local, machine = (_first_of(*names) for names in LOCAL_NAMES)
    number = int(local or rank) - (int(machine or 0) == 0)
    found = torch.cuda.device_count()
    if backend == NCCL and number >= found:
        raise UserError(f"--backend {NCCL}: {found} GPUs here; needed: one a worker")
    torch.cuda.set_device(number % found)


def _first_of(*names: str) -> str | None:
    return next((os.environ[name] for name in names if name in os.environ), None)


def staging_device(backend: str, device: str) -> str:
    """Where a device's tensor must lie for an all-reduce: on the GPU for NCCL, else in host memory.

    Raises:
        UserError: NCCL is to average what is computed on no GPU.
    """
    if backend != NCCL:
        return "cpu"
    if torch.device(device).type != "cuda":
        raise UserError(f"--backend {NCCL}: not for a run on {device}; allowed: {GLOO}")
    return device
