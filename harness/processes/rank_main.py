"""Main functions of a run's processes, started by `harness.train`: rank 0 is the server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
from harness.processes.sharded_server import ShardedServerExecutor, ShardGone
from harness.processes.sharded_server import serve as serve_shard
from harness.processes.transport import CLOSED
from harness.processes.worker import Contributor, Pacing, work, work_in_shards
from harness.runs.config import TrainingConfig
from harness.runs.file import RunFile, load_application, load_run
from harness.simulator import load_protocols
from harness.store import Run, Store
from harness.store.files import writable_folder
from harness.tasks.contract import Roles, Say, Serving, TaskConfig
from harness.tasks.order import Minibatches
from harness.training.run import FoldApplication, identity_config, train

Read = RunFile[TaskConfig]

Served = ServerExecutor | Rounds | ShardedServerExecutor

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
    run, roles = _read(asked, device, say)
    roles.check(run.config, asked, ranks)
    writable_folder(asked.out, "--out")
    try:
        found = _train_or_load(run, roles, asked)
    except NoWorkersLeft:
        say(f"error: no {run.config.application.worker} is left; {GOES_ON}")
        return EXIT_RUN_FAILED
    except ShardGone as gone:
        say(f"error: server shard {gone} is gone; {GOES_ON}")
        return EXIT_RUN_FAILED
    who = f"{asked.file.stem}, seed {run.config.seed}"
    return print_result(found, who)


def _read(
    asked: argparse.Namespace, device: str, progress: Say = lambda line: None
) -> tuple[Read, Roles]:
    """Read the run of a file, and the functions of its processes.

    Raises:
        UserError: a mistake in the file.
    """
    roles = load_application(asked.file).roles()
    spec = TaskConfig if roles else TrainingConfig
    run: Read = load_run(asked.file, spec, seed=asked.seed, device=device, progress=progress)
    return run, roles or FOLDS


def _train_or_load(run: Read, roles: Roles, asked: argparse.Namespace) -> Run:
    """Load the finished run from the store, or train it on all processes."""
    served: list[Any] = []

    def begin_with(make: Callable[[], Any]) -> Any:
        # Called only when the store lacks the run: until then the other ranks wait.
        announce_run(_identity(run.config, asked))
        served.append(make())
        return served[-1]

    with show_progress(asked.file.stem) as watch:
        serving = Serving(asked, watch, _execution_facts(asked), begin_with)
        found = roles.serve(run.config, run.data, serving)
    for executor in served:
        executor.close()
    if not served:  # the store had the run
        announce_run(DONE)
    return found


def _serve(config: TrainingConfig[Any], data: Any, serving: Serving) -> Run:
    """Train with an executor on the processes of the group."""

    def start_executor(
        config: TrainingConfig[Any], data: Any, model: Tensor, minibatches: Minibatches
    ) -> Served:
        placed = replace(config, algorithm=config.algorithm.on(config.network(data)))
        return serving.begin(lambda: _executor(placed, model, minibatches, serving.asked))

    store = Store(serving.asked.out)
    return train(config, data, store, serving.watch, start_executor, serving.how)


def _executor(
    config: TrainingConfig[Any], model: Tensor, minibatches: Minibatches, asked: argparse.Namespace
) -> Served:
    if config.rounds:
        return Rounds(config, model, minibatches, say=say, backend=asked.backend)
    kind = ShardedServerExecutor if config.shards > 1 else ServerExecutor
    admission = admission_to(config.shards)
    return kind(config, model, minibatches, Pacing.from_config(config, asked.paced), say, admission)


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
    if config.workers != ranks - config.shards:
        servers = "one is the server" if config.shards == 1 else f"{config.shards} are the server"
        raise UserError(
            f"{asked.file}: workers: {config.workers} is not allowed;"
            f" allowed: {ranks - config.shards}, as there are {ranks} processes and {servers}"
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
    run, roles = _read(asked, device)
    check_same_run(at_work, _identity(run.config, asked), asked.file)
    try:
        return roles.take_part(run.config, run.data, rank, asked, late)
    except ServerGone as gone:
        why = "is gone" if str(gone) in ("", CLOSED) else str(gone)
        say(f"error: {roles.name(run.config, rank)}: the server {why}; {GOES_ON}")
        return EXIT_RUN_FAILED


def _take_part(
    config: TrainingConfig[Any], data: Any, rank: int, asked: argparse.Namespace, late: bool
) -> int:
    """Run a worker, or a shard of the server other than the first."""
    if late and (config.rounds or rank < config.shards):
        raise UserError(
            f"RANK={rank}: the run has already begun;"
            " only workers of an asynchronous run can join it"
        )
    if late:
        come_back(rank, config.shards)
    application = cast("FoldApplication[Any, Any]", config.application)
    with application.computing(config):
        _work(config, data, rank, asked)
    return EXIT_DONE


def _name(config: TrainingConfig[Any], rank: int) -> str:
    shards = config.shards
    return f"worker {rank - shards}" if rank >= shards else f"server shard {rank}"


def _work(config: TrainingConfig[Any], data: Any, rank: int, asked: argparse.Namespace) -> None:
    """Run the loop of a rank until the server sends `Kind.STOP`."""
    pace, shards = Pacing.from_config(config, asked.paced), config.shards
    if config.rounds:
        work_in_rounds(config, data, rank, pace, asked.backend)
    elif rank < shards:
        serve_shard(config, data, rank, pace, say, admission_to(shards))
    else:
        contributor = Contributor(config, data, rank - shards, pace)
        if shards == 1:
            work(contributor)
        else:
            work_in_shards(contributor, rank - shards, shards)


FOLDS = Roles(_check, _serve, _take_part, _name)
"""Functions of the processes of a training run: a server or its shards, and workers."""
