"""The group of processes that the environment describes, and where its server listens."""

from __future__ import annotations

import os
import resource
import socket
from typing import NamedTuple

from harness.base.errors import UserError

SECRET = "LAGBENCH_SECRET"
"""Environment variable with the shared secret of a run's processes."""

LISTENING = "LAGBENCH_SERVER_FD"
"""Environment variable with the file descriptor of a socket that listens for rank 0 already."""

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

SERVER_RANK = 0

MOST = 1001
"""Most processes of a group."""

FILES, FILES_A_PROCESS = 64, 4
"""Open files that a server needs, and further ones for each process of its group."""

GOES_ON = "the same command resumes from the last checkpoint"


class Group(NamedTuple):
    """The processes of a run, as one of them knows them.

    Attributes:
        rank: rank of this process; 0 is the server.
        ranks: number of processes.
        host: IP address of the server.
        port: its port; 0 for any.
        secret: shared secret; empty for none.
        job: what tells this group from others with its secret.
    """

    rank: int
    ranks: int
    host: str
    port: int
    secret: str = ""
    job: str = ""

    @property
    def url_host(self) -> str:
        """The host as a part of a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @classmethod
    def from_environment(cls) -> Group:
        """The group that ``torchrun``, Slurm or the user describes.

        Raises:
            UserError: a variable is missing or not allowed.
        """
        missing = [name for name in NAMES if name not in os.environ]
        if missing:
            raise UserError(f"environment: {missing[0]} is missing; start with torchrun")
        ranks = _number("WORLD_SIZE", 2, MOST)
        rank, port = _number("RANK", 0, ranks - 1), _number("MASTER_PORT", 1, 65535)
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")
        job = " ".join(os.environ.get(name, "") for name in names)
        host = _resolve(os.environ["MASTER_ADDR"])
        return cls(rank, ranks, host, port, os.environ.get(SECRET, ""), f"{port} {job}")


def allow_files(ranks: int) -> None:
    """Let this process open as many files as the connections of a group need.

    Raises:
        UserError: it may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES + FILES_A_PROCESS * ranks
    if 0 <= hard < needed:  # less than 0 for no limit
        allowed = f"allowed with {ranks} processes: at least {needed} open files"
        raise UserError(f"environment: ulimit -n {hard}: {allowed}")
    if 0 <= soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _number(name: str, least: int, most: int) -> int:
    """A whole number of the environment.

    Raises:
        UserError: it is another, or none.
    """
    text = os.environ[name]
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise UserError(f"environment: {name}={text}: allowed: {least} to {most}")
    return number


def _resolve(name: str) -> str:
    """The IP address of a host.

    Raises:
        UserError: it has none.
    """
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"environment: MASTER_ADDR={name}: {error}") from error
    return str(addresses[0][4][0])
