"""The processes of a sequence training, as `harness.train` starts them."""

from __future__ import annotations

import argparse

from torch import Tensor

from data_synth.corpus import Corpus
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.execution.processes.membership import NoWorkersLeft
from harness.execution.processes.messages import ServerGone
from harness.execution.processes.replica import pace_of, send_home
from harness.execution.processes.replica_worker import PartnerGone, contribute
from harness.execution.processes.replicas import Replicas
from harness.execution.processes.telling import GOES_ON, concluded, say, shown
from harness.execution.runs.executed import Watch
from harness.execution.runs.file import load_run
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.run import train_sequence
from harness.execution.training.setup import Setup
from harness.networks.feedforward import denormals_flushed
from harness.store import Run, Store
from harness.store.files import writable_folder


def serve(asked: argparse.Namespace, ranks: int) -> int:
    """Be the server: read the file, make the corpus, train, send the replicas home.

    Args:
        asked: the command line of `harness.train`.
        ranks: how many processes there are.

    Raises:
        UserError: a mistake in the file, or another number of processes than it needs.
    """
    if asked.restarts:
        raise UserError(f"--restarts {asked.restarts}: nobody comes back to sequence training")
    run = load_run(asked.file, SequenceConfig, seed=asked.seed, progress=say)
    config, name = run.config, asked.file.stem
    check(config)
    if 1 + 2 * config.replicas != ranks:
        raise UserError(
            f"{asked.file}: replicas: {config.replicas} is not allowed with {ranks} processes;"
            f" needed are {1 + 2 * config.replicas}: a server, and two for each replica"
        )
    writable_folder(asked.out, "--out")
    try:
        with shown(name) as watch:
            found = _trained(config, run.corpus, Store(asked.out), watch, paced=asked.paced)
    except NoWorkersLeft:
        say(f"error: no replica is left; {GOES_ON}")
        return EXIT_RUN_FAILED
    return concluded(found, f"{name}, seed {config.seed}")


def check(config: SequenceConfig) -> None:
    """Whether a configuration can be trained on real processes.

    Raises:
        UserError: it cannot.
    """
    if config.shuffling == "full":
        raise UserError(
            "shuffling: 'full' is not allowed on real processes; allowed: none, on the fly"
        )
    if config.shards != 1:
        raise UserError(f"shards: {config.shards} is not allowed on real processes; allowed: 1")


def _trained(
    config: SequenceConfig, corpus: Corpus, store: Store, watch: Watch, *, paced: bool
) -> Run:
    """The finished run of a configuration, with this process as its server.

    Raises:
        NoWorkersLeft: every replica is dead.
    """
    servers: list[Replicas] = []

    def executed_by(config: SequenceConfig, setup: Setup, initial: Tensor) -> Replicas:
        server = Replicas(config, setup, initial, pace_of(config, paced), say)
        servers.append(server)
        return server

    how = {"by": "processes", "paced": paced}
    run = train_sequence(config, corpus, store, watch, executed_by, how)
    for server in servers:
        server.close()
    if not servers:
        send_home(config.replicas)
    return run


def take_part(asked: argparse.Namespace, rank: int) -> int:
    """Be a trainer or a decoder, once the server has made the corpus; see `serve`."""
    run = load_run(asked.file, SequenceConfig, seed=asked.seed)
    who = f"replica {(rank - 1) // 2}: {'trainer' if rank % 2 else 'decoder'}"
    with denormals_flushed():
        try:
            contribute(run.config, run.corpus, rank, pace_of(run.config, asked.paced))
        except ServerGone as gone:
            say(f"error: {who}: the server {str(gone) or 'is gone'}; {GOES_ON}")
            return EXIT_RUN_FAILED
        except PartnerGone as gone:
            say(f"error: {who}: the other half of the replica {str(gone) or 'is gone'}")
            return EXIT_RUN_FAILED
    return EXIT_DONE
