"""Options of the commands that try settings on the development seed, before any verdict."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from data_synth import load_corpus
from harness import argument_types
from reproductions.paper import DEVELOPMENT, Subject


@dataclass(frozen=True)
class TrialOptions:
    """Corpus, store and processes of a command that tries settings.

    Args:
        subject: the development seed's corpus at a scale.
        store: folder of the runs of that scale's report, which shares them.
        jobs: number of processes.
    """

    subject: Subject
    store: Path
    jobs: int


def parse_options(
    prog: str, description: str, paper: str, corpus: str, scales: Collection[str]
) -> TrialOptions:
    """Parse the command line and load the development corpus.

    Args:
        prog: name of the command.
        description: of the command, for ``--help``.
        paper: ``"paper1"`` …
        corpus: name of the paper's corpus.
        scales: the paper's scales.
    """
    p = argparse.ArgumentParser(prog=prog, description=description)
    p.add_argument("--scale", default="overnight", choices=sorted(scales))
    p.add_argument("--out", type=Path, help=f"the report's folder, reports/out/{paper}/SCALE")
    p.add_argument("--jobs", type=argument_types.count, default=os.cpu_count() or 1)
    given = p.parse_args()
    made = load_corpus(corpus, scale=given.scale, seed=DEVELOPMENT)
    out = given.out or Path("reports/out") / paper / given.scale
    return TrialOptions(Subject(given.scale, made, DEVELOPMENT, "cpu"), out / "runs", given.jobs)
