"""``torchrun --nproc-per-node 3 -m harness.train RUN.toml``: a run on real processes.

Rank 0 is the server, the other ranks are workers. Without torchrun, ``--processes 3`` starts the
processes, and the others continue when a worker dies; torchrun ends them all, and with
``--max-restarts`` restarts the group from the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import NoReturn

from harness import argument_types
from harness.base.errors import EXIT_RUN_FAILED
from harness.base.log import say
from harness.cli import Parser, exit_code, run_process
from harness.kernels import notice
from harness.processes.group import GOES_ON, LISTENING, SECRET, allow_files

NEEDED = ("harness.processes.rank_main", "harness.kernels.preload", "pyarrow.parquet")
"""Modules that every process of a group imports."""
POLL_S = 0.2

UNKNOWN = 255
"""Exit code that `multiprocessing` reports for a process if its fork server died first."""


def parser() -> Parser:
    """The parser of the command line."""
    p = Parser(prog="harness.train", description="One run from a file, on real processes.")
    argument_types.add_run(p)
    p.add_argument(
        "--restarts",
        type=argument_types.whole(0, 1000),
        default=0,
        help="with --processes: total number of restarts of failed workers (0)",
    )
    p.add_argument("--device", help="device of the workers and the server: auto, cpu or cuda (cpu)")
    return p


def main(words: Sequence[str] | None = None) -> int:
    """Run one process of the group, or start the whole group; returns the exit code."""
    return exit_code(lambda: run(parser().parse_args(words)))


def run(arguments: argparse.Namespace) -> int:
    """Run one process of the group, or start the whole group: see `parser`."""

    def execute() -> int:
        if arguments.device is not None:
            from harness.experiment.run import resolve

            resolve(arguments.device)
        return _take_part(arguments) if arguments.processes is None else _start(arguments)

    return exit_code(execute, f"interrupted; {GOES_ON}")


def _take_part(arguments: argparse.Namespace) -> int:
    """Run as the process of a group that the environment variables describe."""
    # We report a store that ends; torch would print its stack trace as well.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    from harness.processes.rank_main import run_rank

    torch.set_num_threads(1)
    if os.environ.get("RANK", "0") == "0":
        notice.announce()  # by the server alone: all ranks compile the same at the same time
    return run_rank(arguments)


def _start(arguments: argparse.Namespace) -> int:
    """Start a group on this machine; the server's exit code is the group's."""
    from harness.base import forks

    processes = arguments.processes
    allow_files(processes)
    context = forks.context(*NEEDED)
    # Bound here and handed on: no other process can take the port before the server listens.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        group = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(listening.getsockname()[1]),
            "WORLD_SIZE": str(processes),
            SECRET: os.environ.get(SECRET) or secrets.token_hex(32),
            "TORCHELASTIC_USE_AGENT_STORE": str(False),
        }

        group_of: list[BaseProcess] = []

        def start_process(rank: int) -> BaseProcess:
            served = listening if rank == 0 else None
            environment = {**group, "RANK": str(rank)}
            process = context.Process(target=_member, args=(arguments, environment, served))
            with forks.guard_start():
                process.start()
            group_of.append(process)
            return process

        try:
            server, *workers = [start_process(rank) for rank in range(processes)]
            code = _supervise(server, workers, start_process, arguments.restarts)
        finally:
            forks.end(group_of)
    if code < 0 or code == UNKNOWN:
        signal_ = f" (signal {-code})" if code < 0 else ""
        say(f"error: the server was killed{signal_}; {GOES_ON}")
        return EXIT_RUN_FAILED
    return code


def _member(
    arguments: argparse.Namespace,
    environment: Mapping[str, str],
    listening: socket.socket | None,
) -> None:
    """Run as one process of a group; rank 0 receives the socket that listens for it."""
    from harness.base import forks

    def take_part() -> int:
        forks.die_with_parent()  # starts a thread, which the machine may refuse
        return _take_part(arguments)

    os.environ |= environment
    if listening is not None:
        os.environ[LISTENING] = str(listening.detach())
    _end(exit_code(take_part, f"interrupted; {GOES_ON}"))


def _supervise(
    server: BaseProcess,
    workers: list[BaseProcess],
    started: Callable[[int], BaseProcess],
    restarts: int,
) -> int:
    """Wait for the server's end, and a while for the workers'; returns the server's exit code.

    Args:
        server: rank 0.
        workers: the others, by rank; restarted ones replace the dead in place.
        started: starts the process of a rank.
        restarts: number of restarts of dead workers in all.
    """
    from harness.base import forks

    while server.is_alive():
        if all(worker.exitcode for worker in workers):  # they have failed for want of the server
            forks.end([server], forks.ENDING_S)
        server.join(POLL_S)
        for place, worker in enumerate(workers):
            if restarts and server.is_alive() and worker.exitcode:
                workers[place], restarts = started(place + 1), restarts - 1
    forks.join(workers, forks.ENDING_S)
    assert server.exitcode is not None
    return server.exitcode


def _end(code: int) -> NoReturn:
    """Exit at once: threads that listen to peers cannot be ended, and all results are on disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(run_process(main))
