"""Main functions of a run's processes, started by `harness.train`: rank 0 is the server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.seeds import identity
from harness.processes.console import GOES_ON, print_result, say, show_progress
from harness.processes.messages import ServerGone
from harness.processes.rendezvous import (
    DONE,
    GLOO,
    admission_to,
    announce_run,
    assign_device,
    await_run,
    check_same_run,
    come_back,
    device_of,
    require_gloo,
)
from harness.processes.rounds import Rounds, work_in_rounds
from harness.processes.server import NoWorkersLeft, ServerExecutor
from harness.processes.transport import CLOSED
from harness.processes.worker import Contributor, Pacing, work
from harness.runs.config import TrainingConfig
from harness.runs.file import RunFile, load_application, load_run
from harness.simulator import load_protocols
from harness.store import Run, Store
from harness.store.files import writable_folder
from harness.tasks.contract import Say, TaskConfig
from harness.tasks.order import Minibatches
from harness.training.run import FoldApplication, identity_config, train

Read = RunFile[TrainingConfig[Any]]

Served = ServerExecutor | Rounds

# -- rank 0 ---------------------------------------------------------------------------------


def serve(asked: argparse.Namespace, ranks: int) -> int:
    """Run rank 0: read the file, load the data, train, and dismiss the other ranks.

    Args:
        asked: the command line of `harness.train`.
        ranks: number of processes.

    Raises:
        UserError: a mistake in the file, or a setting that real processes do not support.
    """
    device = asked.device or device_of(asked.backend)
    run = _read(asked, device, say)
    _check(run.config, asked, ranks)
    writable_folder(asked.out, "--out")
    try:
        found = _train_or_load(run, asked)
    except NoWorkersLeft:
        say(f"error: no {run.config.application.worker} is left; {GOES_ON}")
        return EXIT_RUN_FAILED
    who = f"{asked.file.stem}, seed {run.config.seed}"
    return print_result(found, who)


def _read(asked: argparse.Namespace, device: str, progress: Say = lambda line: None) -> Read:
    """Read the run of a file.

    Raises:
        UserError: a mistake in the file, or a task that is only simulated.
    """
    if reason := load_application(asked.file).simulated:
        raise UserError(f"{asked.file}: processes: {reason}; allowed: lagbench train")
    return load_run(asked.file, TrainingConfig, seed=asked.seed, device=device, progress=progress)


def _train_or_load(run: Read, asked: argparse.Namespace) -> Run:
    """Load the finished run from the store, or train it on all processes."""
    served: list[Served] = []

    def start_executor(
        config: TrainingConfig[Any], data: Any, model: Tensor, minibatches: Minibatches
    ) -> Served:
        # Called only when the store lacks the run: until then the other ranks wait.
        announce_run(_identity(config, asked))
        placed = replace(config, algorithm=config.algorithm.on(config.network(data)))
        served.append(_executor(placed, model, minibatches, asked))
        return served[-1]

    store, how = Store(asked.out), _execution_facts(asked)
    with show_progress(asked.file.stem) as watch:
        found = train(run.config, run.data, store, watch, start_executor, how)
    for executor in served:
        executor.close()
    if not served:  # the store had the run
        announce_run(DONE)
    return found


def _executor(
    config: TrainingConfig[Any], model: Tensor, minibatches: Minibatches, asked: argparse.Namespace
) -> Served:
    if config.rounds:
        return Rounds(config, model, minibatches, say=say, backend=asked.backend)
    pace = Pacing.from_config(config, asked.paced)
    return ServerExecutor(config, model, minibatches, pace, say, admission_to(1))


# -- checks of the settings -----------------------------------------------------------------


def _execution_facts(asked: argparse.Namespace) -> dict[str, object]:
    """Facts of the execution that enter the run's identity, which a simulated run lacks."""
    executed: dict[str, object] = {"by": "processes", "paced": asked.paced}
    return executed | ({} if asked.backend == GLOO else {"backend": asked.backend})


def _identity(config: TaskConfig, asked: argparse.Namespace) -> str:
    """Identity of a run, equal on all its processes."""
    return identity(identity_config(config, _execution_facts(asked)))


def _check(config: TrainingConfig[Any], asked: argparse.Namespace, ranks: int) -> None:
    """Reject settings that real processes do not support.

    Raises:
        UserError: one is set.
    """
    if not config.rounds:
        require_gloo(asked.backend)
    check_protocol(config, asked.file)
    if config.has_replica_state:
        told = "its buffers change in training, and servers do not receive them"
        raise UserError(f"{asked.file}: model: {told}; allowed: a simulated cluster")
    if asked.restarts and config.algorithm.remembers and not config.rounds:
        name, told = type(config.algorithm).__name__, "a worker's memory is lost when it dies"
        raise UserError(f"--restarts {asked.restarts}: {told}; allowed with {name}: 0")
    if asked.restarts and config.rounds:
        raise UserError(f"--restarts {asked.restarts}: workers cannot rejoin rounds; allowed: 0")
    if config.shards > 1:
        raise UserError(f"{asked.file}: shards: {config.shards} is simulated only; allowed here: 1")
    if config.workers != ranks - 1:
        raise UserError(
            f"{asked.file}: workers: {config.workers} is not allowed;"
            f" allowed: {ranks - 1}, as there are {ranks} processes and one is the server"
        )


def check_protocol(config: TrainingConfig[Any], file: Path) -> None:
    """Reject faults and protocols that exist only in the simulator.

    Raises:
        UserError: the configuration has one.
    """
    if config.cluster.faults:
        told = "real processes have no simulated faults"
        raise UserError(f"{file}: cluster.faults: {told}; allowed here: none")
    if (trouble := config.find_simulation_only()) is not None:
        raise UserError(f"{file}: {trouble[0]}: {trouble[1]}")
    protocol = config.timed
    if "processes" not in protocol.can:
        able = [name for name, kind in load_protocols().items() if "processes" in kind.can]
        told = f"simulated only; allowed here: {' or '.join(able)}, which can 'processes'"
        raise UserError(f"{file}: protocol: {type(protocol).__name__}: {told}")
    if (trouble := protocol.simulated_only()) is not None:
        raise UserError(f"{file}: protocol.{trouble[0]}: {trouble[1]}")


# -- the other ranks ------------------------------------------------------------------------


def take_part(asked: argparse.Namespace, rank: int, *, late: bool = False) -> int:
    """Run any rank but 0, once the server has announced the run.

    Args:
        asked: the command line of `harness.train`.
        rank: rank of this process.
        late: whether the run has begun already, so that this worker rejoins it.

    Raises:
        UserError: this process has another run than the server, or may not rejoin.
    """
    try:
        at_work = await_run(late=late)
    except RuntimeError:  # the server has printed the reason
        return EXIT_RUN_FAILED
    if at_work == DONE:
        return EXIT_DONE
    device = asked.device or device_of(asked.backend)
    assign_device(device, asked.backend, rank)  # before any tensor is put on the device
    run = _read(asked, device)
    check_same_run(at_work, _identity(run.config, asked), asked.file)
    try:
        return _take_part(run.config, run.data, rank, asked, late)
    except ServerGone as gone:
        why = "is gone" if str(gone) in ("", CLOSED) else str(gone)
        say(f"error: worker {rank - 1}: the server {why}; {GOES_ON}")
        return EXIT_RUN_FAILED


def _take_part(
    config: TrainingConfig[Any], data: Any, rank: int, asked: argparse.Namespace, late: bool
) -> int:
    """Run a worker."""
    if late and config.rounds:
        raise UserError(
            f"RANK={rank}: the run has already begun;"
            " only workers of an asynchronous run can join it"
        )
    if late:
        come_back(rank, 1)
    application = cast("FoldApplication[Any, Any]", config.application)
    with application.computing(config):
        _work(config, data, rank, asked)
    return EXIT_DONE


def _work(config: TrainingConfig[Any], data: Any, rank: int, asked: argparse.Namespace) -> None:
    """Run the loop of a worker until the server sends `Kind.STOP`."""
    pace = Pacing.from_config(config, asked.paced)
    if config.rounds:
        work_in_rounds(config, data, rank, pace, asked.backend)
    else:
        work(Contributor(config, data, rank - 1, pace))
