"""`lagbench simulate`: what a cluster does to timing, as a table, as JSON, as a trace."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.errors import EXIT_DONE, UserError

if TYPE_CHECKING:
    from harness.commands.timing import Timing
    from harness.simulator import Cluster, Workload

__all__ = ["configure", "run"]

MOST_FOLDS = 10_000_000
MOST_LAYERS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("cluster", metavar="CLUSTER.toml", type=Path)
    parser.add_argument("--protocol", default="parameter_server", help="default: %(default)s")
    parser.add_argument("--workers", metavar="1,2,4", help="default: 1, 2, 4 … all of the file's")
    parser.add_argument("--folds", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of all durations; default: 0")
    parser.add_argument(
        "--network",
        metavar="429-2048x7-10217",
        help="time this fully connected network instead of the file's [workload]",
    )
    parser.add_argument("--minibatch", type=int, metavar="FRAMES", help="instead of the file's")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="the last worker count's timeline for https://ui.perfetto.dev",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures for programs")


def run(arguments: argparse.Namespace) -> int:
    """Simulate each worker count, print the table, write what was asked for."""
    from harness.commands.timing import record, table
    from harness.simulator import bare_throughput_per_s, load_cluster

    _check_options(arguments)
    cluster = load_cluster(arguments.cluster)
    workload = _workload(arguments, cluster)
    counts = _worker_counts(arguments.workers, cluster)
    simulate = _simulator(arguments, cluster, workload)
    timings = [simulate(count) for count in counts]
    single = next((timing for timing in timings if timing.workers == 1), None) or simulate(1)
    for line in table(cluster, workload, bare_throughput_per_s(cluster, workload), single, timings):
        print(line)
    if arguments.trace is not None:
        timings[-1].timeline.perfetto(arguments.trace)
    if arguments.json is not None:
        _write_json(arguments.json, [record(timing, single) for timing in timings])
    return EXIT_DONE


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is simulated."""
    from harness.simulator import protocol_named

    if not 1 <= arguments.folds <= MOST_FOLDS:
        _refuse("--folds", arguments.folds, f"a whole number from 1 to {MOST_FOLDS}")
    protocol_named(arguments.protocol)
    for option, path in (("--trace", arguments.trace), ("--json", arguments.json)):
        if path is not None and not _is_writable(path):
            _refuse(option, path, "a file in a folder that exists and can be written")


def _simulator(
    arguments: argparse.Namespace, cluster: Cluster, workload: Workload
) -> Callable[[int], Timing]:
    """A function from a worker count to its timing."""
    from harness.commands.timing import Timing
    from harness.simulator import Simulation

    def simulate(workers: int) -> Timing:
        simulation = Simulation(cluster, arguments.protocol, workload, workers, arguments.seed)
        return Timing(workers, simulation.advance(folds=arguments.folds), simulation.now_s)

    return simulate


def _workload(arguments: argparse.Namespace, cluster: Cluster) -> Workload:
    """The file's workload, with what the options put in its place."""
    from harness.simulator import Workload

    frames, known = arguments.minibatch, cluster.workload
    if frames is not None and not 1 <= frames <= 2**40:
        _refuse("--minibatch", frames, "a whole number of at least 1")
    if arguments.network is not None:
        default = 256 if known is None else known.minibatch_frames
        return Workload.of_network(_layer_sizes(arguments.network), frames or default)
    if known is None:
        raise UserError(f"{arguments.cluster}: workload: missing; give the table, or --network")
    return known if frames is None else replace(known, minibatch_frames=frames)


def _layer_sizes(text: str) -> list[int]:
    """``429-2048x7-10217``: sizes of layers, ``SIZExCOUNT`` for equal ones."""
    sizes: list[int] = []
    for part in text.split("-"):
        size, _, count = part.partition("x")
        if not (size.isdecimal() and (count or "1").isdecimal() and int(count or 1) <= MOST_LAYERS):
            sizes = []
            break
        sizes += [int(size)] * int(count or 1)
    if len(sizes) < 2 or min(sizes) < 1:
        _refuse("--network", text, "sizes of at least two layers, e.g. 429-2048x7-10217")
    return sizes


def _worker_counts(text: str | None, cluster: Cluster) -> list[int]:
    """The counts asked for; by default powers of two up to the file's, and that itself."""
    from harness.simulator import MOST_WORKERS

    if text is None:
        powers = [2**k for k in range(cluster.size.bit_length()) if 2**k < cluster.size]
        return [*powers, cluster.size]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_WORKERS for part in parts):
        _refuse("--workers", text, f"whole numbers from 1 to {MOST_WORKERS}, e.g. 1,2,4")
    return [int(part) for part in parts]


def _refuse(option: str, value: object, allowed: str) -> NoReturn:
    raise UserError(f"{option}: {str(value)!r} is not allowed; allowed: {allowed}")


def _is_writable(path: Path) -> bool:
    return path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()


def _write_json(path: Path, records: list[dict[str, object]]) -> None:
    from harness.simulator.output import written_whole

    with written_whole(path, "the figures") as draft:
        draft.write_text(json.dumps(records, indent=2, allow_nan=False) + "\n")
