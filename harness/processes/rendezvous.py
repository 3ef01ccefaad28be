"""Rendezvous of a run's processes, admission of restarted workers, and the all-reduce back end.

Rendezvous: rank 0 serves a key-value store, which listens at ``MASTER_ADDR`` alone; under torchrun
it is torchrun's own. Every process stores its address there, and each pair of processes connects.
Afterwards only restarted workers and gloo need the store. The server announces the run over these
connections, so no process waits for a peer that has died meanwhile, and a process with another run
ends with an error.

Restarted workers of an asynchronous run connect to the shards of the server again, beginning with
the first, which admits a worker if the one of its index is gone. Under torchrun no worker can
rejoin: torchrun ends all processes when one dies.

Back end of the all-reduces between workers in rounds: gloo, NCCL or MPI. All other messages use the
connections of `transport`.
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
"""Key of the store that exists once the group is complete: later processes rejoin a run."""

DONE = "done"
"""Announced in place of a run's identity if the store of results has the run already."""

NAMED = 64
"""Bytes of an announcement."""

HEARD_WITHIN_S = 10.0
"""Seconds that an ending process waits for its last messages to be delivered."""

SERVED_WITHIN = timedelta(minutes=5)
"""Time that a process waits for the store and for the other processes of the group."""

LATE = 64
"""Most restarted workers that wait for admission; further connections are closed."""

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

LISTENING = "LAGBENCH_STORE_FD"
"""Environment variable with the file descriptor of a socket that is bound for the store already."""

_kept: list[TCPStore | Socket] = []
"""The store and all open connections: references that keep them from being closed."""


def join() -> tuple[int, int]:
    """Join the group that ``torchrun`` (or Slurm) describes; returns (rank, ranks).

    Raises:
        UserError: the process was not started as one of a group, or no store answers.
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
    """Connect to all lower ranks, and accept the connections of all higher ones.

    Raises:
        RuntimeError: a rank does not connect in time, or its address in the store is invalid.
        OSError: a rank does not answer.
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

    start_heartbeats()  # at once: a rank that has met all others already waits for the server
    host, port = listen(_own_address(), rank, enter)
    store.set(attempt(f"at/{rank}"), f"{host} {port}")  # from now on others can connect
    for other in range(rank):
        line = reach(store, PeerInfo(rank, other, late=False))
        with met:
            lines[other] = line
    end = current_runtime().now_s() + SERVED_WITHIN.total_seconds()
    with met:
        while len(lines) < ranks - 1:
            if not met.wait(end - current_runtime().now_s()):
                away = sorted(set(range(ranks)) - {rank, *lines})
                raise RuntimeError(f"rank {away[0]} of {ranks} has not connected")


def _keep(connection: Socket) -> None:
    """Keep a reference to a connection, and drop those to connections that have ended."""
    for each in [each for each in _kept if isinstance(each, Socket) and each.ended]:
        with suppress(ValueError):  # another thread has removed it
            _kept.remove(each)
    _kept.append(connection)


def reach(store: TCPStore, who: PeerInfo) -> PeerConnection:
    """Connect to another process by its address in the store.

    Args:
        store: key-value store of the group.
        who: greeting of this process, with the rank to reach.

    Raises:
        RuntimeError: the store has no address of that rank, or an invalid one.
        OSError: the process does not answer, or is not of this run.
    """
    store.wait([attempt(f"at/{who.wants}")], SERVED_WITHIN)
    found = store.get(attempt(f"at/{who.wants}"))[:NAMED].decode(errors="replace")
    host, _, port = found.partition(" ")
    if not port.isdecimal():
        raise RuntimeError(f"rank {who.wants} has no valid address: {found!r}")
    connection = connect((host, int(port)), who)
    _keep(connection)
    return PeerConnection(connection)


def _own_address() -> str:
    """Local address of a connection to the store, at which other processes reach this one too."""
    at = os.environ["MASTER_ADDR"], read_env_int("MASTER_PORT")
    with socket.create_connection(at, SERVED_WITHIN.total_seconds()) as there:
        return there.getsockname()[0]


def is_launched_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _is_served() -> bool:
    """Whether torchrun's agent serves the store, and not rank 0."""
    return is_launched_by_torchrun() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def connect_to_store(within: timedelta = SERVED_WITHIN) -> TCPStore:
    """Open a new connection to the store.

    Raises:
        RuntimeError: no store answers within the time.
        UserError: the environment names no port.
    """
    host, port = os.environ["MASTER_ADDR"], read_env_int("MASTER_PORT")
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=within)


def read_env_int(name: str) -> int:
    """Read an environment variable as a whole number.

    Raises:
        UserError: its value is no whole number.
    """
    try:
        return int(os.environ[name])
    except ValueError as error:
        found = os.environ[name]
        raise UserError(f"environment: {name}={found}: allowed: a whole number") from error


# -- announcement of a run ------------------------------------------------------------------


def announce_run(run: str) -> None:
    """Announce a run to the processes that wait in `await_run`; called by the server.

    Args:
        run: identity of the run, or `DONE`.
    """
    connect_to_store().set(attempt("begun"), run)  # for workers that rejoin
    announced = torch.zeros(NAMED, dtype=torch.uint8)
    announced[: len(run)] = torch.frombuffer(bytearray(run.encode()), dtype=torch.uint8)
    for rank in list(current_runtime().lines):
        with suppress(PeerGone):  # the run itself finds the dead process
            send(FrameHeader(Kind.RUN), rank, announced)


def await_run(*, late: bool = False) -> str:
    """Wait until the server announces a run; returns its identity.

    Args:
        late: whether this process rejoins a run that was announced before.

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
    """Wait until the other machines have this process's messages, at most `HEARD_WITHIN_S`."""
    # The end of a process may reset its connections, which drops bytes that are not delivered.
    end = current_runtime().now_s() + HEARD_WITHIN_S
    sockets = [each for each in _kept if isinstance(each, Socket)]
    while any(each.unread() for each in sockets) and current_runtime().now_s() < end:
        current_runtime().sleep(0.01)


def check_same_run(at_work: str, own: str, file: Path) -> None:
    """Check that this process has the run that the server has announced.

    Raises:
        UserError: it has another.
    """
    if at_work != own:
        raise UserError(
            f"{file}: run {own} is not allowed; allowed: {at_work}, as the server has it"
            " (the same file, corpus and options for every process)"
        )


def _serve_store() -> TCPStore:
    """Serve the store, listening at ``MASTER_ADDR`` alone."""
    host, port = os.environ["MASTER_ADDR"], read_env_int("MASTER_PORT")
    if LISTENING in os.environ:
        bound = int(os.environ.pop(LISTENING))
    else:
        # A socket of ours: the store by itself would listen at every address of the machine.
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        bound = socket.create_server(address[:2], family=family).detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=bound)


def attempt(what: str) -> str:
    """Key of the store for this attempt; torchrun's store outlives a single attempt."""
    return f"lagbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{what}"


NOTICED_S = 2.0
"""Seconds that admission waits: a worker may be restarted before its death is detected."""

ASKED_EVERY_S = 0.05
"""Seconds between two checks in that time."""


def is_joining_late() -> bool:
    """Whether this process was started after the group of its run was complete.

    Raises:
        UserError: no store answers at the address of the environment.
    """
    if is_launched_by_torchrun() or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return False
    try:
        return os.environ.get("RANK", "0") != "0" and connect_to_store().check([OPEN])
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(f"environment: no server answers at {where}") from error


def come_back(rank: int, shards: int) -> None:
    """Rejoin a run in progress: connect to every shard, and wait until each admits this worker.

    Args:
        rank: rank of this worker in the first group.
        shards: number of shards of the server, which have the ranks from 0.

    Raises:
        UserError: a shard does not admit it.
        ServerGone: a shard does not answer.
    """
    lines = current_runtime().lines
    start_heartbeats()
    try:
        store = connect_to_store()
        for shard in range(shards):  # in order: the first one decides for all
            lines[shard] = reach(store, PeerInfo(rank, shard, late=True))
            enter(lines[shard], rank - shards)
    except (RuntimeError, OSError, MalformedMessage) as error:
        raise ServerGone from error


def enter(shard: PeerConnection, worker: int) -> None:
    """Wait until a shard admits a worker.

    Raises:
        UserError: it does not.
        PeerGone: the shard is gone.
        MalformedMessage: the shard sent an invalid message.
    """
    header, _ = receive(shard, FrameHeader, reuse_buffer(NOTHING))
    if header.kind is not Kind.BACK:
        raise UserError(
            f"RANK: worker {worker} is not allowed; allowed: one of a worker that is gone"
        )


class Admission:
    """Admits restarted workers to a shard, one after the other.

    Args:
        shards: number of shards of the server.
    """

    def __init__(self, shards: int) -> None:
        self._shards, self._here = shards, current_runtime()

    def open(
        self, enter: Callable[[int, PeerConnection], None], is_gone: Callable[[int], bool]
    ) -> None:
        """Admit workers from now on; both functions are called on a thread of their own.

        Args:
            enter: registers a worker with its new address.
            is_gone: whether an index is that of a worker that is gone. The first shard checks;
                a worker that reaches another shard has been admitted by the first.
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
            except (RuntimeError, MalformedMessage):  # it died meanwhile
                line.end()

    def _answer(self, worker: int, line: PeerConnection) -> None:
        """Admit a worker with `Kind.BACK`, or refuse it with `Kind.STOP`."""
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
    """Admission for a server of ``shards`` shards; None under torchrun."""
    return None if is_launched_by_torchrun() else Admission(shards)


LOCAL_NAMES = ("LOCAL_RANK", "SLURM_LOCALID"), ("GROUP_RANK", "SLURM_NODEID")
"""Variables of torchrun and Slurm: a process's index on its machine, and the machine's index."""

GLOO, NCCL, MPI = "gloo", "nccl", "mpi"

AVAILABLE: Mapping[str, Callable[[], bool]] = {
    GLOO: lambda: dist.is_gloo_available(),
    NCCL: lambda: dist.is_nccl_available(),
    MPI: lambda: dist.is_mpi_available(),
}


def check(backend: str) -> None:
    """Check that torch on this machine has a back end.

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
    """Reject a back end of all-reduces for a run without them.

    Raises:
        UserError: it is not gloo, the default.
    """
    if backend != GLOO:
        raise UserError(f"--backend {backend}: for rounds of averaging; allowed here: {GLOO}")


def device_of(backend: str, asked: str | None = None) -> str:
    """Device of the processes of a run: by default a GPU for NCCL, else the CPU.

    Args:
        backend: back end of the all-reduces.
        asked: ``auto``, ``cpu`` or ``cuda``; None for the default.

    Raises:
        UserError: the device is not available, or the back end does not support it.
    """
    if asked is None:
        return "cuda" if backend == NCCL else "cpu"
    staging_device(backend, device := resolve(asked))
    return device


def assign_device(device: str, backend: str, rank: int) -> None:
    """Select the GPU of this process; processes share GPUs if there are too few, except with NCCL.

    Raises:
        UserError: NCCL, and fewer GPUs on this machine than workers.
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
    """Device of the operand of an all-reduce: the GPU for NCCL, else the CPU.

    Raises:
        UserError: NCCL, and the run does not compute on a GPU.
    """
    if backend != NCCL:
        return "cpu"
    if torch.device(device).type != "cuda":
        raise UserError(f"--backend {NCCL}: not for a run on {device}; allowed: {GLOO}")
    return device
