"""Every algorithm on two clusters, in one table.

    python -m reproductions.algorithms [--out DIR] [--jobs N]

Rates are searched on development data first. Runs are kept; the same command resumes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_synth import load_corpus
from harness import argument_types
from harness.base.errors import EXIT_DONE
from harness.cli import Parser, exit_code, run_process
from harness.grid.grid import execute_named
from harness.kernels import notice
from harness.search.search import FACTOR, climb, follow, lowest
from harness.store import Run
from harness.store.files import writable_folder
from reproductions.algorithms.experiments import (
    BASELINE,
    CLUSTERS,
    CORPUS,
    METHODS,
    SCALE,
    SEEDS,
    build_config,
    workers_of,
)
from reproductions.algorithms.table import Cell, CellResult, error_of, markdown, write
from reproductions.paper import DEVELOPMENT

REACH = 6
"""Largest distance of a learning rate from its first guess, in rungs of the ladder."""

Asked = tuple[str, float, int]
"""A cell, a rate and a seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    notice.announce()
    p = Parser(prog="reproductions.algorithms", description="Every algorithm on two clusters.")
    p.add_argument("--out", type=Path, default=Path("reports/out/algorithms"))
    p.add_argument("--jobs", type=argument_types.count, default=1, help="runs at a time")
    goes_on = "interrupted; the same command resumes"
    return exit_code(lambda: _main(p.parse_args(arguments)), goes_on)


def _main(asked: argparse.Namespace) -> int:
    writable_folder(asked.out, "--out")
    cells = {
        f"{method} on {cluster}": (method, cluster) for method in METHODS for cluster in CLUSTERS
    }
    searches = {
        name: climb((-1, 0, 1), together=True, reach=REACH, tries=math.inf) for name in cells
    }
    # All searches advance together, so that their next runs share the processes.
    errors = follow(searches, lambda wanted: _errors(cells, wanted, asked))
    rates = {name: _rate(cells[name], lowest(found)) for name, found in errors.items()}
    runs = _runs(cells, [(name, rates[name], seed) for seed in SEEDS for name in cells], asked)
    found = {
        cell: [runs[name, rates[name], seed] for seed in SEEDS] for name, cell in cells.items()
    }
    table = {
        cell: CellResult(rates[name], found[cell], found[BASELINE, cell[1]])
        for name, cell in cells.items()
    }
    write(table, asked.out / "table.csv")
    for cluster in CLUSTERS:
        print(f"{cluster}\n\n{markdown(asked.out / 'table.csv', cluster)}")
    return EXIT_DONE


def _errors(
    cells: Mapping[str, Cell], wanted: Sequence[tuple[str, int]], asked: argparse.Namespace
) -> list[float]:
    """Errors on development data of the wanted cells and rungs."""
    tried = [(name, _rate(cells[name], rung), DEVELOPMENT) for name, rung in wanted]
    runs = _runs(cells, tried, asked)
    return [error_of(runs[one]) for one in tried]


def _rate(cell: Cell, rung: int) -> float:
    method, cluster = cell
    return METHODS[method].guess(workers_of(cluster)) * FACTOR**rung


def _runs(
    cells: Mapping[str, Cell], wanted: Sequence[Asked], asked: argparse.Namespace
) -> dict[Asked, Run]:
    """Finished runs, each under its cell, rate and seed."""
    seeds = {seed for _, _, seed in wanted}
    corpora = {seed: load_corpus(CORPUS, scale=SCALE, seed=seed) for seed in seeds}
    configs = {
        (name, rate, seed): build_config(*cells[name], rate, corpora[seed], seed)
        for name, rate, seed in wanted
    }

    def run_name(one: Asked) -> str:
        name, rate, seed = one
        return f"{name}, rate {rate:.3g}, seed {seed}"

    return execute_named(configs, run_name, asked.out / "runs", asked.jobs)


if __name__ == "__main__":
    raise SystemExit(run_process(main))
