"""`lagbench runs`: a table of the runs of all stores here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.log import one_line
from harness.base.seeds import SHORT, TUNING_SEEDS
from harness.base.settings import format_count, format_seconds
from harness.store import DEFAULT_STORE, Run, Store, is_run, schema, verify_run
from harness.store.files import list_folder

HERE = (Path(DEFAULT_STORE), Path("reports/out"))
"""Stores of trainings, and the folder of reports, whose commands keep their runs beside them."""

HEAD = ("run", "algorithm", "workers", "rate", "seed", "status", "result", "seconds", "note")

MOST_LETTERS = 500
"""Longest text of a cell."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help=f"a store, or a folder that holds some ({' and '.join(map(str, HERE))})",
    )
    parser.add_argument("--json", action="store_true", help="every field of each run as JSON")
    parser.add_argument(
        "--verify", action="store_true", help="compare every file of results with its digest"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the runs of every store in or below a folder.

    Trials of learning rates, and runs that train nothing, are listed apart.

    Exit code 3 if a run is damaged: its record, or with ``--verify`` a file of its results, does
    not match its digest. A damaged run is executed again when a command needs it.

    Raises:
        UserError: the folder does not exist or holds no store.
    """
    stores = {
        store: [verify_run(run) if arguments.verify else run for run in store.runs()]
        for store in find_stores([arguments.folder] if arguments.folder else HERE)
    }
    every = [run for runs in stores.values() for run in runs]
    if arguments.json:
        print(json.dumps([_plain(run) for run in every], indent=1))
    else:
        for store, runs in stores.items():
            heading = one_line(f"{store.path}: {format_count(len(runs), 'run')}")
            print(heading, *lines(runs), sep="\n")
    damaged = sum(run.status == "damaged" for run in every)
    if arguments.verify or damaged:
        print(f"{damaged} damaged", file=sys.stderr)
    return EXIT_RUN_FAILED if damaged else EXIT_DONE


def _plain(run: Run) -> dict[str, object]:
    """A run as plain JSON values; a number that is not finite is null."""
    summary = {key: schema.finite_or_none(value) for key, value in run.summary.items()}
    record = {"hash": run.hash, "status": run.status, "summary": summary, "note": run.note}
    return {**record, "config": run.config, "folder": str(run.dir)}


def lines(runs: Sequence[Run]) -> Iterator[str]:
    """Tables of results, of trials of learning rates, and of runs that train nothing."""
    kinds = {kind: list[Run]() for kind in ("results", "trials of learning rates", "others")}
    for run in runs:
        kinds[_kind(run)].append(run)
    for kind, group in kinds.items():
        if group:
            yield from ("", f"{kind}: {len(group)}")
            yield from _align([HEAD, *(_cells(run) for run in sorted(group, key=_place))])


def _kind(run: Run) -> str:
    if "algorithm" not in run.config:
        return "others"
    return "trials of learning rates" if run.config.get("seed") in TUNING_SEEDS else "results"


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines of columns of equal width, whatever text a configuration holds."""
    rows = [[one_line(cell)[:MOST_LETTERS] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def _place(run: Run) -> tuple[Any, ...]:
    config = run.config
    counts = (config.get(key) for key in ("workers", "seed"))
    workers, seed = (count if isinstance(count, int) else -1 for count in counts)
    return _name(run), workers, _rate(run) or 0.0, seed, run.hash


def _cells(run: Run) -> tuple[str, ...]:
    """Values of `HEAD`; ``-`` for those that a run lacks."""
    config, seconds, rate = run.config, _number(run.summary, "virtual_s"), _rate(run)
    return (
        run.hash[:SHORT],
        _name(run),
        str(config.get("workers", "-")),
        "-" if rate is None else f"{rate:.4g}",
        str(config.get("seed", "-")),
        _status(run),
        _result(run),
        "-" if seconds is None else format_seconds(seconds),
        run.note,
    )


def _name(run: Run) -> str:
    """The class of algorithm or loss, and minibatches of a contribution; else the run's class."""
    algorithm = _part(run, "algorithm") or _part(run, "loss")
    protocol = _part(run, "protocol")
    steps = protocol.get("every", protocol.get("push_every", 1))
    return f"{algorithm.get('is', run.config.get('is', '-'))}{'' if steps == 1 else f':{steps}'}"


def _rate(run: Run) -> float | None:
    """The learning rate of the schedule; without one that of the summary, or the setting."""
    return _number({**run.config, **run.summary, **_part(run, "schedule")}, "rate")


def _number(table: Mapping[str, Any], name: str) -> float | None:
    """A number of a table; None if it has none of that name."""
    value = table.get(name)
    return float(value) if isinstance(value, int | float) else None


def _part(run: Run, name: str) -> dict[str, Any]:
    """A table of a run's configuration; empty if it has none of that name."""
    part = run.config.get(name)
    return cast("dict[str, Any]", part) if isinstance(part, dict) else {}


def _result(run: Run) -> str:
    """The first measurement on development or test data, with its name."""
    names = (key for key in run.summary if key.startswith(("dev", "test")))
    errors = ((key, value) for key in names if (value := _number(run.summary, key)) is not None)
    key, value = next(errors, ("", 0.0))
    return f"{key.partition('/')[0]} {value:.4g}" if key else "-"


def _status(run: Run) -> str:
    return f"{run.status}, light" if run.without(schema.LARGE) else run.status


def find_stores(folders: Sequence[Path]) -> list[Store]:
    """Folders that are a store, and the folders named ``runs`` below the others.

    Raises:
        UserError: there is none.
    """
    stores: list[Store] = []
    for folder in folders:
        is_store = any(map(is_run, list_folder(folder)))
        paths = [folder] if is_store else sorted(filter(Path.is_dir, folder.rglob("runs")))
        stores += map(Store, paths)
    if not stores:
        names = " and ".join(repr(str(folder)) for folder in folders)
        raise UserError(f"runs: no store in {names}; allowed: an output folder or its runs/")
    return stores
