"""`lagbench simulate`: timing of a cluster as a table, JSON or a trace."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import argument_types
from harness.base.errors import EXIT_DONE, UserError
from harness.base.log import say
from harness.base.reads import Reads, describe_idle, watch
from harness.base.registry import cluster_file, describe_choices
from harness.cli import Parser
from harness.commands import protocols
from harness.commands.outputs import STANDARD, atomic_output, write_trace
from harness.commands.timing import (
    News,
    Point,
    Row,
    Timing,
    heading,
    own_table,
    points,
    record,
    rows,
    table,
    warnings,
)
from harness.simulator.cluster import (
    MOST_WORKERS,
    Cluster,
    Workload,
    load_bundled,
)
from harness.simulator.costs import bare_throughput_per_s
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.simulation import describe_doubts

MOST_FOLDS = 10_000_000
MOST_LAYERS, MOST_UNITS = 1000, 10**9

TRACED = 10_000
"""Contributions of a long run that are traced."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "cluster", metavar="CLUSTER", type=cluster_file, help=describe_choices("cluster")
    )
    protocols.configure(parser)
    parser.add_argument(
        "--workers",
        type=argument_types.wholes(MOST_WORKERS),
        metavar="1,2,4",
        help="numbers of workers (default: 1, 2, 4, … up to the file's)",
    )
    parser.add_argument(
        "--folds",
        type=argument_types.whole(1, MOST_FOLDS),
        help="number of folds to simulate from the start (default: until the estimates settle)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random durations (default: 0)"
    )
    parser.add_argument(
        "--network",
        type=layer_sizes,
        metavar="429-2048x7-10217",
        help="time this fully connected network instead of the file's [workload]",
    )
    parser.add_argument(
        "--sweep",
        metavar="KEY=A,B,C",
        action="append",
        default=[],
        help="a row for each value of a key of the file, e.g. link.latency_s=0,1e-4; may be"
        " given several times, for every combination",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="trace of the last row's timeline for ui.perfetto.dev",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="list of rows as JSON: workers, throughput_per_s, speedup, staleness, lag_s, …",
    )


Job = tuple[Point, Workload, list[int]]
"""A cluster, the workload of a minibatch, and the numbers of workers."""


def run(arguments: argparse.Namespace) -> int:
    """Simulate every row of every point, print the table, and write the requested files."""
    _check_options(arguments)
    jobs = [_job(arguments, point) for point in points(arguments.cluster, arguments.sweep)]
    timings: list[Timing] = []
    news = News(sum(len(counts) for _, _, counts in jobs))

    row: Row | None = None  # timelines are large: only the last is kept
    unread: list[list[str]] = []
    for point, workload, counts in jobs:
        with _watch_keys(point.cluster, protocols.protocol(arguments), unread):
            for row in rows(arguments, point, workload, counts, news):
                timings.append(row.timing)
    assert row is not None
    _print(arguments, timings, row)
    notes = list[str]()
    for point, workload, counts in jobs:
        protocol = protocols.protocol(arguments)
        notes += describe_doubts(point.cluster, protocol, workload, max(counts))
    remarks = [*describe_idle(unread), *dict.fromkeys(notes), *warnings(timings)]
    for line in remarks:
        say(line)
    _write_outputs(arguments, timings, row)
    return EXIT_DONE


def _print(arguments: argparse.Namespace, timings: Sequence[Timing], row: Row) -> None:
    """Print the table; on stderr if one of the outputs goes to standard output."""
    lines, simulation = [*table(timings), *own_table(timings)], row.simulation
    if not arguments.sweep:
        bare_per_s = bare_throughput_per_s(simulation.cluster, simulation.workload)
        workload = simulation.workload if simulation.protocol.trains_minibatches else None
        lines = [*heading(simulation.cluster, workload, bare_per_s), *lines]
    is_taken = STANDARD in _outputs(arguments).values()
    print(*lines, sep="\n", file=sys.stderr if is_taken else sys.stdout)


@contextmanager
def _watch_keys(
    cluster: Cluster, protocol: TimingProtocol, unread: list[list[str]]
) -> Generator[None]:
    """Append the options and the keys of the cluster's file that nothing reads in the block."""
    settings, machine = Reads(protocol), Reads(cluster, load_bundled(cluster.name))
    with watch(settings), watch(machine):
        yield
    options = [f"--{name.replace('_', '-')}" for name in settings.unread()]
    unread.append([*options, *machine.unread()])


def _outputs(arguments: argparse.Namespace) -> dict[str, Path | None]:
    return {f"--{name}": getattr(arguments, name) for name in ("trace", "json")}


def _write_outputs(arguments: argparse.Namespace, timings: Sequence[Timing], row: Row) -> None:
    """Write the requested outputs; the timeline is that of the last row."""
    if arguments.json is not None:
        records = [record(timing) for timing in timings]
        with atomic_output(arguments.json, "the figures") as draft:
            draft.write_text(json.dumps(records, indent=2, allow_nan=False) + "\n")
    if arguments.trace is not None:
        write_trace(row.timeline_of(TRACED), arguments.trace)


def _check_options(arguments: argparse.Namespace) -> None:
    """Reject invalid options before anything is simulated."""
    protocols.protocol(arguments)
    for option, path in _outputs(arguments).items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            allowed = "a file in a folder that exists, or - for standard output"
            raise UserError(f"{option}: {str(path)[:200]!r} is not allowed; allowed: {allowed}")


def _job(arguments: argparse.Namespace, point: Point) -> Job:
    """The workload and the worker counts; a sweep has by default one count, all workers."""
    size = point.cluster.size
    counts = arguments.workers or [size]
    if not (arguments.workers or point.values):  # powers of two too, if enough for the protocol
        powers = [2**k for k in range(size.bit_length()) if 2**k < size]
        kind = protocols.protocol(arguments)
        counts = [*(k for k in powers if _can_start(kind, point.cluster, k)), size]
    return point, _workload(arguments, point.cluster), counts


def _can_start(protocol: TimingProtocol, cluster: Cluster, workers: int) -> bool:
    try:
        protocol.start(cluster, workers)
    except UserError:
        return False
    return True


def _workload(arguments: argparse.Namespace, cluster: Cluster) -> Workload:
    """The file's workload, or that of ``--network``."""
    workload = cluster.workload
    if arguments.network is not None:
        frames = 256 if workload is None else workload.minibatch_frames
        return Workload.of_network(arguments.network, frames)
    if workload is None:
        needed = "needed: minibatch_frames, flops_per_frame, parameter_bytes; or --network"
        raise UserError(f"{arguments.cluster}: [workload]: missing; {needed}")
    return workload


def layer_sizes(text: str) -> list[int]:
    """The type of layer sizes as ``429-2048x7-10217``, with ``SIZExCOUNT`` for equal layers."""
    sizes: list[int] = []
    try:
        for part in text.split("-"):
            size, times, count = part.partition("x")
            layers = argument_types.whole(1, MOST_LAYERS)(count) if times else 1
            sizes += [argument_types.whole(1, MOST_UNITS)(size)] * layers
    except argparse.ArgumentTypeError:
        sizes = []
    if len(sizes) < 2:
        allowed = "sizes of at least two layers, e.g. 429-2048x7-10217"
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not allowed; allowed: {allowed}")
    return sizes
