"""Main functions of a run's processes, started by `harness.train`: rank 0 is the server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.log import say
from harness.base.seeds import identity
from harness.experiment.contract import Say
from harness.experiment.experiment import AnyExperiment
from harness.experiment.run import identity_config, resolve
from harness.experiment.run import run as execute
from harness.experiment.run_file import load_folds
from harness.experiment.task import Problem
from harness.networks.contract import StatefulNetwork
from harness.processes.group import GOES_ON, LISTENING, SECRET, SERVER_RANK, Group, allow_files
from harness.processes.rounds import Rounds
from harness.processes.server import NoWorkersLeft, ServerExecutor
from harness.processes.transport import (
    CLOSED,
    CONNECTED_WITHIN_S,
    Header,
    Hub,
    Kind,
    Link,
    ServerGone,
)
from harness.processes.worker import Contributor, Pacing, clock_offset_s, work
from harness.simulator.simulation import load_protocols
from harness.store import Run, Store
from harness.store.files import writable_folder
from harness.tasks.order import Minibatches

if TYPE_CHECKING:
    from harness.experiment.contract import Watch

Served = ServerExecutor | Rounds

DONE = "done"
"""Announced in place of a run's identity if the store has the run already."""

LOCAL_NAMES = ("LOCAL_RANK", "SLURM_LOCALID"), ("GROUP_RANK", "SLURM_NODEID")
"""Variables of torchrun and Slurm: a process's index on its machine, and the machine's index."""


def run_rank(arguments: argparse.Namespace) -> int:
    """Run as the process of the group that the environment describes; returns the exit code.

    Raises:
        UserError: a mistake in the environment or in the run file.
    """
    group = Group.from_environment()
    allow_files(group.ranks)
    if group.rank != SERVER_RANK:
        with closing(Link(_locate_server(group))) as server:
            return _take_part(arguments, group.rank, server)
    with closing(_listen(group)) as hub:
        return _serve(arguments, group.ranks, hub)


# -- where the server is ----------------------------------------------------------------------


def _listen(group: Group) -> Hub:
    """Listen as the server: at the environment's port, or at any where torchrun's store has it."""
    if (store := _torchrun_store()) is None:
        listening = os.environ.pop(LISTENING, None)
        return Hub(group, None if listening is None else int(listening))
    hub = Hub(group._replace(port=0))
    store.set(_port_key(), str(hub.port))
    return hub


def _locate_server(group: Group) -> Group:
    """The group with the port that its server listens at.

    Raises:
        UserError: the server has published none in time.
    """
    if (store := _torchrun_store()) is None:
        return group
    try:
        return group._replace(port=int(store.get(_port_key())))
    except (RuntimeError, ValueError) as error:
        reason = f"the server has not said within {CONNECTED_WITHIN_S:g} s where it listens"
        raise UserError(f"environment: RANK={group.rank}: {reason}") from error


def _torchrun_store() -> TCPStore | None:
    """The key-value store that torchrun serves at the port of the environment; None without it.

    It need not be trusted: a process that puts another port there has not the server's key.

    Raises:
        UserError: it does not answer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=CONNECTED_WITHIN_S)
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patience)
    except RuntimeError as error:
        reason = f"torchrun's store does not answer at {host}:{port}"
        raise UserError(f"environment: {reason}") from error


def _port_key() -> str:
    """Key of the server's port; torchrun's store outlives a single attempt."""
    return f"lagbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/port"


# -- rank 0 ---------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace, ranks: int, hub: Hub) -> int:
    """Run rank 0: meet the others, read the file, load the data, train, and dismiss them.

    Raises:
        UserError: a mistake in the file, or a setting that real processes do not support.
    """
    for worker in sorted(hub.meet()):
        reason = f"has not connected within {CONNECTED_WITHIN_S:g} s"
        if hub.strangers:
            reason += f"; a process with another {SECRET}, RANK or WORLD_SIZE was refused"
        say(f"rank {worker + 1} (worker {worker}) {reason}")
    run = _read(arguments, say)
    check(run, arguments, ranks)
    writable_folder(arguments.out, "--out")
    try:
        stored = _train_or_load(run, arguments, hub)
    except NoWorkersLeft as error:
        say(f"error: {error}; {GOES_ON}")
        return EXIT_RUN_FAILED
    print(*stored.lines(), sep="\n")
    if stored.status == "done":
        return EXIT_DONE
    say(stored.ending(f"{arguments.file.stem}, seed {run.seed}"))
    return EXIT_RUN_FAILED


def _read(arguments: argparse.Namespace, progress: Say = lambda line: None) -> AnyExperiment:
    """Read the run of a file.

    Raises:
        UserError: a mistake in the file, or a task that is only simulated.
    """
    device = "cpu" if arguments.device is None else resolve(arguments.device)
    return load_folds(arguments.file, seed=arguments.seed, device=device, progress=progress)


def _train_or_load(run: AnyExperiment, arguments: argparse.Namespace, hub: Hub) -> Run:
    """Load the finished run from the store, or train it on all processes."""
    served: list[Served] = []

    def start_executor(
        config: AnyExperiment, problem: Problem, model: Tensor, minibatches: Minibatches
    ) -> Served:
        # Called only when the store lacks the run: until then the other ranks wait.
        hub.late = not config.rounds
        hub.announce(_identity(config, arguments))
        placed = replace(config, algorithm=config.algorithm.on(problem.network))
        kind = Rounds if config.rounds else ServerExecutor
        pace = Pacing.from_config(config, arguments.paced)
        served.append(kind(placed, model, minibatches, hub, pace, say))
        return served[-1]

    with _show_progress(arguments.file.stem) as watch:
        store, facts = Store(arguments.out), _execution_facts(arguments)
        stored = execute(run, store, watch, start_executor, facts, alone=False)
    for executor in served:
        executor.close()
    if not served:  # the store had the run
        hub.announce(DONE)
    return stored


@contextmanager
def _show_progress(name: str) -> Generator[Watch]:
    """Show the progress of a run; yields the function that takes each `Progress`."""
    from harness.experiment.display import Display

    with Display({name: name}, {name: 1.0}) as display:
        yield lambda progress: display.hear(replace(progress, run=name))


# -- checks of the settings -----------------------------------------------------------------


def _execution_facts(arguments: argparse.Namespace) -> dict[str, object]:
    """Facts of the execution that enter the run's identity, which a simulated run lacks."""
    return {"by": "processes", "paced": arguments.paced}


def _identity(config: AnyExperiment, arguments: argparse.Namespace) -> str:
    """Identity of a run, equal on all its processes."""
    return identity(identity_config(config, _execution_facts(arguments)))


def check(config: AnyExperiment, arguments: argparse.Namespace, ranks: int) -> None:
    """Reject settings that real processes do not support.

    Raises:
        UserError: one is set.
    """
    check_protocol(config, arguments.file)
    network = config.task.open(config).network
    if isinstance(network, StatefulNetwork) and network.fresh_state():
        reason = "its buffers change in training, and servers do not receive them"
        raise UserError(f"{arguments.file}: model: {reason}; allowed: a simulated cluster")
    if arguments.restarts and config.algorithm.remembers and not config.rounds:
        name, reason = type(config.algorithm).__name__, "a worker's memory is lost when it dies"
        raise UserError(f"--restarts {arguments.restarts}: {reason}; allowed with {name}: 0")
    if arguments.restarts and config.rounds:
        raise UserError(
            f"--restarts {arguments.restarts}: workers cannot rejoin rounds; allowed: 0"
        )
    if config.workers != ranks - 1:
        raise UserError(
            f"{arguments.file}: workers: {config.workers} is not allowed;"
            f" allowed: {ranks - 1}, as there are {ranks} processes and one is the server"
        )


def check_protocol(config: AnyExperiment, file: Path) -> None:
    """Reject faults and protocols that exist only in the simulator.

    Raises:
        UserError: the configuration has one.
    """
    if config.cluster.faults:
        reason = "real processes have no simulated faults"
        raise UserError(f"{file}: cluster.faults: {reason}; allowed here: none")
    if config.counts_by_worker:  # a real server counts the minibatches of all workers together
        reason = "simulated only without rounds; allowed on real processes: 'iid'"
        raise UserError(f"{file}: task.partition: {reason}")
    if (trouble := config.task.find_simulation_only()) is not None:
        raise UserError(f"{file}: {trouble[0]}: {trouble[1]}")
    protocol = config.timed
    if "processes" not in protocol.can:
        able = [name for name, kind in load_protocols().items() if "processes" in kind.can]
        reason = f"simulated only; allowed here: {' or '.join(able)}, which can 'processes'"
        raise UserError(f"{file}: protocol: {type(protocol).__name__}: {reason}")
    if (trouble := protocol.simulated_only()) is not None:
        raise UserError(f"{file}: protocol.{trouble[0]}: {trouble[1]}")


# -- the other ranks ------------------------------------------------------------------------


def _take_part(arguments: argparse.Namespace, rank: int, server: Link) -> int:
    """Run any rank but 0, once the server has announced the run.

    Raises:
        UserError: this process has another run than the server, or may not take part.
    """
    try:
        header, body = server.receive()
    except ServerGone:  # it has printed the reason
        return EXIT_RUN_FAILED
    at_work = bytes(body).decode(errors="replace")
    if header.kind is not Kind.RUN or at_work == DONE:
        return EXIT_DONE
    if arguments.device is not None and resolve(arguments.device) == "cuda":
        _choose_gpu(rank)  # before any tensor is put on it
    run = _read(arguments)
    if (own_run := _identity(run, arguments)) != at_work:
        raise UserError(
            f"{arguments.file}: run {own_run} is not allowed; allowed: {at_work}, as the server has"
            " it (the same file, corpus and options for every process)"
        )
    try:
        _work(run, rank, arguments, server)
    except ServerGone as error:
        reason = "is gone" if str(error) == CLOSED else str(error)
        say(f"error: worker {rank - 1}: the server {reason}; {GOES_ON}")
        return EXIT_RUN_FAILED
    return EXIT_DONE


def _work(run: AnyExperiment, rank: int, arguments: argparse.Namespace, server: Link) -> None:
    """Run the loop of a worker."""
    problem = run.task.open(run)
    with problem.computing(alone=False):
        pace = Pacing.from_config(run, arguments.paced)
        offset_s = clock_offset_s(server)
        if offset_s is None:
            return
        contributor = Contributor(run, problem, rank - 1, pace, offset_s)
        server.send(Header(Kind.READY))
        work(contributor, server)


def _choose_gpu(rank: int) -> None:
    """Select the GPU of this process; processes share GPUs if there are too few."""
    # Under torchrun and under srun ranks are counted on each machine; the server, which is on
    # the first one, needs no GPU.
    local, machine = (
        next((os.environ[name] for name in names if name in os.environ), None)
        for names in LOCAL_NAMES
    )
    number = int(local or rank) - (int(machine or 0) == 0)
    torch.cuda.set_device(number % torch.cuda.device_count())
