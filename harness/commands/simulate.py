"""`lagbench simulate`: what a cluster does to timing, as a table, JSON, a trace or a page."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.commands import protocols
from harness.commands.protocols import MOST_FOLDS
from harness.errors import EXIT_DONE, UserError

if TYPE_CHECKING:
    from harness.commands.sweep import Point
    from harness.commands.timing import Timing
    from harness.simulator import Cluster, Simulation, Timeline, Workload

__all__ = ["configure", "run"]

MOST_LAYERS = 1000
PLOT_FORMS = (".svg", ".png", ".pdf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("cluster", metavar="CLUSTER.toml", type=Path)
    protocols.configure(parser)
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
        "--sweep",
        metavar="KEY=A,B,C",
        action="append",
        default=[],
        help="a row for each value of a key of the file, e.g. link.latency_s=0,1e-4; may be"
        " given several times, for every combination",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the last row with queueing theory"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="the last row's timeline, staleness and lag, and the speed-up: .svg, .png or .pdf",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="the last row's timeline for ui.perfetto.dev"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures for programs")


def run(arguments: argparse.Namespace) -> int:
    """Simulate each worker count, print the table, write what was asked for."""
    from harness.commands.sweep import points
    from harness.commands.timing import heading, table
    from harness.simulator import bare_throughput_per_s

    _check_options(arguments)
    found = points(arguments.cluster, arguments.sweep)
    if arguments.check and any(point.cluster.faults for point in found):
        _refuse("--check", arguments.cluster, "with a cluster file without [[faults]]")
    rows = chain.from_iterable(_simulated(arguments, point) for point in found)
    timing, simulation, timeline = next(rows)
    timings = [timing]
    for row in rows:
        timing, simulation, timeline = row  # timelines are large: only the last is kept
        timings.append(timing)
    if not arguments.sweep:
        bare_per_s = bare_throughput_per_s(simulation.cluster, simulation.workload)
        _say(heading(simulation.cluster, simulation.workload, bare_per_s))
    _say(table(timings))
    if arguments.check:
        from harness.commands.check import check

        _say(check(simulation, timeline))
    _write(arguments, simulation.cluster.name, timings, timeline)
    return EXIT_DONE


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _write(
    arguments: argparse.Namespace, title: str, timings: Sequence[Timing], timeline: Timeline
) -> None:
    """The files that were asked for; the timeline is that of the last row."""
    from harness.commands.timing import record

    if arguments.plot is not None:
        from harness.commands.plot import draw

        draw(arguments.plot, title, timings, timeline)
    if arguments.trace is not None:
        from harness.simulator.trace import write_trace

        write_trace(timeline, arguments.trace)
    if arguments.json is not None:
        _write_json(arguments.json, [record(timing) for timing in timings])


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is simulated."""
    from harness.simulator import protocol_named

    if not 1 <= arguments.folds <= MOST_FOLDS:
        _refuse("--folds", arguments.folds, f"a whole number from 1 to {MOST_FOLDS}")
    protocol = protocols.protocol(arguments)
    if arguments.check and protocol != protocol_named("parameter_server"):
        _refuse("--check", arguments.protocol, "with parameter_server and its default settings")
    for option in ("plot", "trace", "json"):
        path = getattr(arguments, option)
        if path is not None and not _is_writable(path):
            _refuse(f"--{option}", path, "a file in a folder that exists and can be written")
    if arguments.plot is not None and arguments.plot.suffix not in PLOT_FORMS:
        _refuse("--plot", arguments.plot, f"a name that ends with {', '.join(PLOT_FORMS)}")


def _simulated(
    arguments: argparse.Namespace, point: Point
) -> Iterator[tuple[Timing, Simulation, Timeline]]:
    """Each worker count of one cluster; in a sweep by default all of its workers only."""
    from harness.commands.timing import throughput_per_s, timing_of
    from harness.simulator import Simulation, bare_throughput_per_s

    cluster, workload = point.cluster, _workload(arguments, point.cluster)
    protocol = protocols.protocol(arguments)

    def simulate(workers: int) -> tuple[Simulation, Timeline]:
        simulation = Simulation(cluster, protocol, workload, workers, arguments.seed)
        folds = protocols.folds(arguments, cluster, workers)
        return simulation, simulation.advance(folds=folds)

    single, alone = simulate(1)
    single_per_s = throughput_per_s(alone, single.now_s)
    bare_per_s = bare_throughput_per_s(cluster, workload)
    for count in _worker_counts(arguments.workers, cluster, alone=bool(point.values)):
        simulation, timeline = (single, alone) if count == 1 else simulate(count)
        timing = timing_of(simulation, timeline, single_per_s, bare_per_s)
        yield replace(timing, swept=point.values), simulation, timeline


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


def _worker_counts(text: str | None, cluster: Cluster, alone: bool) -> list[int]:
    """The counts asked for; by default the file's, after powers of two unless it is ``alone``."""
    from harness.simulator import MOST_WORKERS

    if text is None and alone:
        return [cluster.size]
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
