"""`lagbench compare`: what a real run did, beside what the simulator predicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.simulator import Cluster, Timeline
    from harness.store import Run

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, help="the run's folder, as lagbench runs names it")
    parser.add_argument(
        "--cluster", type=Path, help="the cluster that predicts; the run's own if not given"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate the run's cluster, and print both."""
    from harness.errors import EXIT_DONE
    from harness.execution.data.corpora import corpus_of
    from harness.execution.fidelity.compare import compare, shown
    from harness.execution.fidelity.replay import config_of, is_sequence, stored_run
    from harness.execution.training.run import TIMELINE
    from harness.simulator import load_cluster
    from harness.simulator.timeline_file import load_timeline

    found = stored_run(arguments.folder)
    cluster = load_cluster(arguments.cluster) if arguments.cluster else None
    timeline = load_timeline(found.dir / TIMELINE)
    if is_sequence(found):
        lines = _sequence(found, timeline, cluster)
    else:
        config = config_of(found)
        train = corpus_of(config, _say).split("train")
        lines = shown(compare(config, train, timeline, cluster))
    for line in lines:
        print(line)
    return EXIT_DONE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sequence(found: Run, timeline: Timeline, cluster: Cluster | None) -> Iterator[str]:
    """Of a sequence training, which needs its corpus: utterances have lengths."""
    from harness.execution.data.corpora import corpus_of
    from harness.execution.fidelity import compare_sequence as comparing
    from harness.execution.fidelity.replay import sequence_config_of
    from harness.execution.processes.sequence_recorder import load_told
    from harness.execution.training.sequence import RECORD

    told, _ = load_told(found.dir / RECORD)
    config = sequence_config_of(found)
    train = corpus_of(config, _say).split("train")
    return comparing.shown_sequence(
        comparing.compare_sequence(config, train, timeline, told, cluster)
    )
