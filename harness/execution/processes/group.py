"""How the processes of a run meet: at a key-value store that rank 0 serves.

The store listens at ``MASTER_ADDR`` and nowhere else; under torchrun it is torchrun's own. In it
the server announces the run that begins. So nobody waits in a collective for a peer that has died
meanwhile, and no two processes work on different runs without knowing.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.errors import UserError
from harness.execution.processes.messages import DEAD_AFTER_S, SERVER_RANK

OPEN = "lagbench/open"
"""Key that exists once the first group is complete: a process that starts now comes late."""
DONE = "done"
"""Announced in place of a run's identity when there is nothing to do."""
LONG = timedelta(days=1000)
"""How long processes wait for a server that makes a corpus or pretrains; if it dies, its store
ends, which ends the wait."""
HEARD_WITHIN = timedelta(seconds=10)
"""How long a server that has nothing to do waits for all to hear so."""
SERVED_WITHIN = timedelta(minutes=5)
"""How long a process that was started before the server waits for the store."""
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LISTENING = "LAGBENCH_STORE_FD"
"""The file descriptor of a socket that was bound for the store before the server started."""


def join() -> tuple[int, int]:
    """Enter the process group that ``torchrun`` (or Slurm) describes; returns (rank, ranks).

    Listens on the loopback interface unless ``GLOO_SOCKET_IFNAME`` names another.

    Raises:
        UserError: the process was not started as one of a group, or nobody answers.
    """
    missing = [name for name in NAMES if name not in os.environ]
    if missing:
        raise UserError(f"environment: {missing[0]} is missing; start with torchrun")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = timedelta(seconds=DEAD_AFTER_S)
    try:
        if under_torchrun():
            dist.init_process_group("gloo", timeout=timeout)
        else:
            rank, ranks = whole("RANK"), whole("WORLD_SIZE")
            store = _served() if rank == SERVER_RANK else connected()
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=ranks, timeout=timeout
            )
            if rank == SERVER_RANK:
                store.set(OPEN, "yes")
    except (RuntimeError, ValueError, OSError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"torch.distributed: cannot form the group: {first}") from error
    return dist.get_rank(), dist.get_world_size()


def under_torchrun() -> bool:
    """Whether torchrun started this process, and serves the store."""
    return "TORCHELASTIC_RUN_ID" in os.environ


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


def begin(run: str) -> None:
    """Announce a run to the processes that wait in `begun`; called by the server.

    Args:
        run: its identity.
    """
    connected().set(_key(), run)


def dismiss(ranks: int) -> None:
    """Announce that there is nothing to do, and wait a little for all to hear it.

    Args:
        ranks: how many processes there are.
    """
    store = connected()
    store.set(_key(), DONE)
    with suppress(RuntimeError):  # somebody is gone: so be it
        store.wait([_heard(str(rank)) for rank in range(1, ranks)], HEARD_WITHIN)


def begun() -> str:
    """Wait until the server announces a run; returns its identity.

    Raises:
        RuntimeError: the server is gone.
    """
    # The group is whole, so the store is there, or the server has ended since.
    store = connected(HEARD_WITHIN)
    store.wait([_key()], LONG)
    run = store.get(_key()).decode()
    store.set(_heard(os.environ["RANK"]), "yes")
    return run


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


def _heard(rank: str) -> str:
    return f"{_key()}/{rank}"


def _served() -> TCPStore:
    """The store itself, listening at one address alone."""
    host, port = os.environ["MASTER_ADDR"], whole("MASTER_PORT")
    if LISTENING in os.environ:
        bound = int(os.environ.pop(LISTENING))
    else:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        bound = socket.create_server(address[:2], family=family).detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=bound)


def _key() -> str:
    """Of what is begun; torchrun's store outlives an attempt."""
    return f"lagbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/begun"
