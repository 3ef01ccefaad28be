"""`lagbench predict`: how long a run would take on a cluster, without training it."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=Path, help="the run, as a TOML file")
    parser.add_argument("--cluster", type=Path, help="in place of the run file's")
    parser.add_argument("--workers", type=int, help="in place of the run file's")
    parser.add_argument(
        "--target", type=Path, help="a finished run of the same settings: when its folds are done"
    )
    parser.add_argument(
        "--kept",
        type=float,
        help="share of frames that decoders keep, in sequence training;"
        " that of the target, else 0.15, if not given",
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print throughput, speed-up, staleness and time."""
    from harness.errors import EXIT_DONE, UserError
    from harness.execution.fidelity.predict import prediction
    from harness.execution.runs.file import kind_of, load_run
    from harness.execution.runs.sequence import SequenceConfig
    from harness.simulator import load_cluster

    if arguments.workers is not None and not 1 <= arguments.workers <= 1_000_000:
        raise UserError(f"--workers {arguments.workers}: allowed: 1 to 1000000")
    if arguments.kept is not None and not 0.0 < arguments.kept <= 1.0:
        raise UserError(f"--kept {arguments.kept}: allowed: above 0, to 1")
    kind = kind_of(arguments.file)
    if arguments.kept is not None and kind is not SequenceConfig:
        raise UserError(f"--kept {arguments.kept}: for sequence training; {arguments.file} is none")
    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    asked = load_run(arguments.file, kind)
    options = cluster, arguments.workers, arguments.target, arguments.kept
    for line in prediction(asked.config, asked.corpus.split("train"), *options):
        print(line)
    return EXIT_DONE
