"""``torchrun --nproc-per-node 3 -m harness.train RUN.toml``: a run on real processes.

Rank 0 is the server, the others are the run's workers. Started without torchrun, ``--processes
3`` starts them itself, and lets the others go on when one dies; torchrun ends them all, and with
``--max-restarts`` begins again from the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.cli import Parser, exit_code
from harness.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.kernels import notice

if TYPE_CHECKING:
    from torch import Tensor

    from data_synth.corpus import Corpus
    from harness.execution.data.minibatches import Minibatches
    from harness.execution.processes.rounds import Rounds
    from harness.execution.processes.server import Distributed
    from harness.execution.processes.shards import Sharded
    from harness.execution.runs.config import RunConfig

SEQUENCE = "sequence"
"""Said in place of an identity: sequence training begins in its own way."""
NEEDED = (
    "harness.execution.processes.rounds",
    "harness.execution.processes.sequence_command",
    "harness.execution.processes.shards",
    "harness.execution.processes.worker",
    "harness.execution.runs.file",
    "harness.execution.processes.shard",
)
"""What any process of a group imports."""
GOES_ON = "the same command goes on from the last checkpoint"


def parser() -> Parser:
    """The command line."""
    p = Parser(prog="harness.train", description="One run from a file, on real processes.")
    p.add_argument("file", type=Path, help="the run, as a TOML file")
    p.add_argument("--seed", type=int, help="in place of the file's")
    p.add_argument("--out", type=Path, default=Path("reports/out/runs"), help="the store")
    p.add_argument(
        "--paced",
        action="store_true",
        help="wait wherever a process is quicker than the run's cluster file says",
    )
    p.add_argument(
        "--processes", type=int, help="start so many here: a server and the others as workers"
    )
    p.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="with --processes: start workers that died again, so many times in all (0)",
    )
    p.add_argument(
        "--backend", default="gloo", help="of averages in rounds: gloo, nccl or mpi (gloo)"
    )
    p.add_argument(
        "--device", help="where processes compute: auto, cpu or cuda (cpu; cuda with nccl)"
    )
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process of the group, or start them all; returns the exit code."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(lambda: _main(parser().parse_args(asked), asked), f"interrupted; {GOES_ON}")


def _main(asked: argparse.Namespace, words: Sequence[str]) -> int:
    if asked.seed is not None and asked.seed < 0:
        raise UserError(f"--seed {asked.seed}: allowed: a whole number from 0")
    if asked.backend != "gloo":
        from harness.execution.processes.backends import check

        check(asked.backend)
    if asked.device is not None:
        from harness.execution.processes.backends import device_of

        asked.device = device_of(asked.backend, asked.device)
    if asked.processes is not None and "RANK" not in os.environ:
        if not 2 <= asked.processes <= 1000:
            raise UserError(f"--processes {asked.processes}: allowed: 2 to 1000")
        if not 0 <= asked.restarts <= 1000:
            raise UserError(f"--restarts {asked.restarts}: allowed: 0 to 1000")
        return _start(asked.processes, asked.restarts, words)
    # A store that ends is said in our own words; torch would print its stack as well.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    from harness.execution.processes.group import join, whole
    from harness.execution.processes.messages import SERVER_RANK
    from harness.execution.processes.rejoining import comes_late

    torch.set_num_threads(1)
    if comes_late():
        return _work(asked, whole("RANK"), late=True)
    rank, ranks = join()
    if rank != SERVER_RANK:
        return _work(asked, rank)
    notice.announce()  # one of them all: what others compile, they compile at the same time
    return _serve(asked, ranks)


def _serve(asked: argparse.Namespace, ranks: int) -> int:
    """Be the server: read the file, make the corpus, train, send the workers home."""
    from harness.execution.jobs.display import Display
    from harness.execution.jobs.grid import Report
    from harness.execution.processes.backends import device_of
    from harness.execution.processes.group import begin, dismiss
    from harness.execution.processes.membership import NoWorkersLeft
    from harness.execution.processes.messages import SERVER_RANK
    from harness.execution.processes.pace import Pace
    from harness.execution.processes.rejoining import admission_to
    from harness.execution.processes.rounds import Rounds
    from harness.execution.processes.sequence_command import serve as serve_sequence
    from harness.execution.processes.server import Distributed
    from harness.execution.processes.shards import Sharded, ShardGone
    from harness.execution.runs.file import kind_of, load_run
    from harness.execution.runs.sequence import SequenceConfig
    from harness.execution.training.run import train
    from harness.store import Store
    from harness.store.atomic import writable_folder

    if kind_of(asked.file) is SequenceConfig:
        _only_rounds(asked, in_rounds=False)
        if asked.device not in (None, "cpu"):
            raise UserError(f"--device {asked.device}: sequence training on processes: cpu")
        begin(SEQUENCE)
        return serve_sequence(asked, ranks, _say, GOES_ON)
    device = asked.device or device_of(asked.backend)
    run = load_run(asked.file, seed=asked.seed, device=device, progress=_say)
    config = run.config
    _only_rounds(asked, in_rounds=config.rounds)
    _check_protocol(config, asked.file)
    if asked.restarts and config.rounds:
        raise UserError(f"--restarts {asked.restarts}: nobody comes back to rounds; allowed: 0")
    if config.workers != ranks - config.shards:
        servers = "one is the server" if config.shards == 1 else f"{config.shards} are the server"
        raise UserError(
            f"{asked.file}: workers: {config.workers} is not allowed;"
            f" allowed: {ranks - config.shards}, as there are {ranks} processes and {servers}"
        )
    writable_folder(asked.out, "--out")
    pace = Pace.of(config, asked.paced)
    executed = _executed(asked)
    executors: list[Distributed | Rounds | Sharded] = []
    name = asked.file.stem

    def made(
        config: RunConfig, corpus: Corpus, model: Tensor, minibatches: Minibatches
    ) -> Distributed | Rounds | Sharded:
        del corpus  # processes make their own
        begin(_identity(config, asked))
        parts = config, model, minibatches
        if config.rounds:
            executors.append(Rounds(*parts, say=_say, backend=asked.backend))
        else:
            kind = Sharded if config.shards > 1 else Distributed
            executors.append(kind(*parts, pace, _say, admission_to(SERVER_RANK, config.shards)))
        return executors[-1]

    with Display({name: name}) as display:
        try:
            found = train(
                config, run.corpus, Store(asked.out),
                lambda progress: display.show(Report(0, 1, {name: replace(progress, run=name)})),
                made, executed,
            )  # fmt: skip
        except NoWorkersLeft:
            _say(f"error: no worker is left; {GOES_ON}")
            return EXIT_RUN_FAILED
        except ShardGone as gone:
            _say(f"error: server shard {gone} is gone; {GOES_ON}")
            return EXIT_RUN_FAILED
    for executor in executors:
        executor.close()
    if not executors:  # the store had the run
        dismiss(ranks)
    for key in ("folds", "virtual_s"):
        print(f"{key:32} {found.summary[key]:.6g}")
    print(f"{'status':32} {found.status}\n{'run':32} {found.dir}")
    if found.status == "done":
        return EXIT_DONE
    _say(found.ending(f"{name}, seed {config.seed}"))
    return EXIT_RUN_FAILED


def _executed(asked: argparse.Namespace) -> dict[str, object]:
    """What sets the record apart from a simulated run, as part of its identity."""
    executed: dict[str, object] = {"by": "processes", "paced": asked.paced}
    return executed | ({} if asked.backend == "gloo" else {"backend": asked.backend})


def _identity(config: RunConfig, asked: argparse.Namespace) -> str:
    """What all processes of a run have to agree on."""
    from harness.execution.training.run import identified
    from harness.identity import identity

    return identity(identified(config, _executed(asked)))


def _check_protocol(config: RunConfig, file: Path) -> None:
    """Refuse what is simulated but not done by real processes.

    Raises:
        UserError: the protocol is of that kind.
    """
    from harness.simulator import Averaging, ParameterServer

    if config.missed_rounds and config.cluster.faults:
        told = "rounds of real processes are missed by those that really die"
        raise UserError(f"{file}: cluster.faults: {told}; allowed here: none")
    if config.protocol is None or isinstance(config.protocol, Averaging):
        return
    if config.protocol != ParameterServer():
        name = type(config.protocol).__name__
        allowed = "Averaging, or ParameterServer with its defaults"
        raise UserError(f"{file}: protocol: {name}: simulated only; allowed here: {allowed}")


def _only_rounds(asked: argparse.Namespace, *, in_rounds: bool) -> None:
    if asked.backend != "gloo" and not in_rounds:
        raise UserError(f"--backend {asked.backend}: for rounds of averaging; allowed here: gloo")


def _work(asked: argparse.Namespace, rank: int, *, late: bool = False) -> int:
    """Be a worker, or a further shard of the server, once the first one has made the corpus.

    Args:
        asked: the options.
        rank: of this process.
        late: whether the run has begun, so that a worker comes back.
    """
    import torch.distributed as dist

    from harness.acoustics.denormals import denormals_flushed
    from harness.execution.processes.backends import device_of, own_device
    from harness.execution.processes.group import DONE, agree, begun
    from harness.execution.processes.messages import ServerGone
    from harness.execution.processes.pace import Pace
    from harness.execution.processes.rejoining import admission_to, come_back
    from harness.execution.processes.rounds import work_in_rounds
    from harness.execution.processes.sequence_command import take_part
    from harness.execution.processes.shard import serve
    from harness.execution.processes.worker import work, work_in_shards
    from harness.execution.runs.file import load_run

    try:
        at_work = begun()
        if at_work == SEQUENCE and late:
            raise UserError(f"RANK={rank}: the run goes on; nobody comes back to sequence training")
        if at_work == SEQUENCE:
            dist.barrier()
    except RuntimeError:  # the server has said why
        return EXIT_RUN_FAILED
    if at_work == DONE:
        return EXIT_DONE
    if at_work == SEQUENCE:
        return take_part(asked, rank, _say, GOES_ON)
    device = asked.device or device_of(asked.backend)
    own_device(device, asked.backend, rank)
    run = load_run(asked.file, seed=asked.seed, device=device)
    config, shards = run.config, run.config.shards
    agree(at_work, _identity(config, asked), asked.file)
    name = f"worker {rank - shards}" if rank >= shards else f"server shard {rank}"
    if late and (config.rounds or rank < shards):
        raise UserError(f"RANK={rank}: the run goes on; allowed: a worker of an asynchronous one")
    with denormals_flushed():
        try:
            servers = come_back(rank, shards) if late else range(shards)
            pace = Pace.of(config, asked.paced)
            if config.rounds:
                work_in_rounds(config, run.corpus, rank, pace, asked.backend)
            elif shards == 1:
                work(config, run.corpus, rank, pace, servers[0])
            elif rank < shards:
                serve(config, run.corpus, rank, pace, _say, admission_to(rank, shards))
            else:
                work_in_shards(config, run.corpus, rank - shards, pace, servers)
        except ServerGone:
            _say(f"error: {name}: the server is gone; {GOES_ON}")
            return EXIT_RUN_FAILED
    return EXIT_DONE


def _start(processes: int, restarts: int, words: Sequence[str]) -> int:
    """Start a group on this machine; the server's exit code is the group's.

    Args:
        processes: how many.
        restarts: so many times in all one that has died is started again while the server lives.
        words: the command line.
    """
    from harness import forked

    context = forked.context(*NEEDED)
    # Bound here and handed on, the port is nobody else's before the server listens.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        group = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(listening.getsockname()[1]),
            "WORLD_SIZE": str(processes),
        }

        group_of: list[BaseProcess] = []

        def started(rank: int) -> BaseProcess:
            served = listening if rank == 0 else None
            process = context.Process(
                target=_member, args=(words, {**group, "RANK": str(rank)}, served)
            )
            process.start()
            group_of.append(process)
            return process

        try:
            with forked.interrupts_held():
                server, *workers = [started(rank) for rank in range(processes)]
            code = _kept_up(server, workers, started, restarts)
        finally:
            for process in group_of:
                process.terminate()
            for process in group_of:
                process.join()
    if code < 0:
        _say(f"error: the server was killed (signal {-code}); {GOES_ON}")
        return EXIT_RUN_FAILED
    return code


def _member(
    words: Sequence[str], environment: Mapping[str, str], listening: socket.socket | None
) -> None:
    """Be one process of a group; rank 0 is handed the socket of the store."""
    from harness import forked
    from harness.execution.processes.group import LISTENING

    forked.interrupts_heard()
    os.environ |= environment
    if listening is not None:
        os.environ[LISTENING] = str(listening.detach())
    _end(main(words))


def _kept_up(
    server: BaseProcess,
    workers: list[BaseProcess],
    started: Callable[[int], BaseProcess],
    restarts: int,
) -> int:
    """Wait for the server's end, and a while for the workers'; returns its exit code.

    Args:
        server: rank 0.
        workers: the others, by rank; renewed in place.
        started: starts the process of a rank.
        restarts: so many times in all a worker that has died is started again.
    """
    while server.is_alive():
        server.join(0.2 if restarts else None)
        for place, worker in enumerate(workers):
            if restarts and server.is_alive() and worker.exitcode:
                workers[place], restarts = started(place + 1), restarts - 1
    end = time.monotonic() + 10.0
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    assert server.exitcode is not None
    return server.exitcode


def _end(code: int) -> NoReturn:
    """Threads that listen to peers cannot be ended; everything worth keeping is on disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    _end(main())
