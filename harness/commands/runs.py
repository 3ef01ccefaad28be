"""`lagbench runs`: list the runs of all stores in a folder; push to and pull from a bucket."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.seeds import SHORT
from harness.commands.progress import Progress
from harness.store import Bucket, BucketStore, Run, Store, is_run, schema, verify_run
from reports import provenance

__all__ = ["configure", "pull", "push", "run"]

OUT = Path("reports/out")  # where reproductions write unless told otherwise

STYLES = {
    "diverged": "bold red",
    "failed": "bold red",
    "damaged": "bold red",
    "unfinished": "yellow",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder", nargs="?", type=Path, default=OUT, help="a store, or a folder that holds some"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv",
        action="store_true",
        help="print CSV: a row for each run, a column for each number of its summary",
    )
    form.add_argument("--json", action="store_true", help="every field of each run as JSON")
    parser.add_argument(
        "--verify", action="store_true", help="compare every file of results with its digest"
    )
    form.add_argument("--push", metavar="URL", help="send finished runs to an object store")
    parser.add_argument(
        "--light", action="store_true", help="with --push: without models, timelines and targets"
    )
    form.add_argument(
        "--pull", metavar="URL", help="fetch runs from an object store that are missing here"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the runs of every store in or below a folder, or `push` or `pull` them.

    The list is a table on a terminal; elsewhere one tab-separated line for each run: hash, status,
    summary, differing settings, store.

    Exit code 3 if a run is damaged: its record, or with ``--verify`` a file of its results, does
    not match its digest. A damaged run is executed again when a command needs it.

    Raises:
        UserError: the folder does not exist or holds no store.
    """
    if arguments.light and not arguments.push:
        raise UserError("runs --light: allowed: with --push")
    if arguments.pull:
        return pull(_store_for(arguments.folder), arguments.pull, _say)
    if arguments.push:
        stores = find_stores(arguments.folder)
        return push(stores, arguments.push, _say, arguments.light)
    check = verify_run if arguments.verify else _skip_verification
    stores = {
        store: [check(run) for run in store.runs()] for store in find_stores(arguments.folder)
    }
    every = [run for runs in stores.values() for run in runs]
    if arguments.json:
        print(json.dumps([_plain(run) for run in every], indent=1))
    elif arguments.csv:
        _write_csv(every)
    else:
        for store, runs in stores.items():
            _list(store, runs)
    damaged = sum(run.status == "damaged" for run in every)
    if arguments.verify or damaged:
        print(f"{damaged} damaged", file=sys.stderr)
    return EXIT_RUN_FAILED if damaged else EXIT_DONE


def _store_for(folder: Path) -> Path:
    """The only store in or below a folder; ``runs`` in it if there is none.

    Raises:
        UserError: there are several.
    """
    try:
        stores = find_stores(folder)
    except UserError:
        return folder / "runs"
    if len(stores) > 1:
        told = f"{len(stores)} stores in {str(folder)!r}; allowed: one of them, or another folder"
        raise UserError(f"runs --pull: {told}")
    return stores[0].path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _skip_verification(run: Run) -> Run:
    return run


def _plain(run: Run) -> dict[str, object]:
    """A run as plain JSON values; a number that is not finite is null."""
    summary = {key: schema.finite_or_none(value) for key, value in run.summary.items()}
    told = {"hash": run.hash, "status": run.status, "summary": summary, "note": run.note}
    return {**told, "config": run.config, "folder": str(run.dir)}


def _write_csv(runs: Sequence[Run]) -> None:
    names = sorted({key for run in runs for key in run.summary})
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("hash", "status", *names, "note", "folder"))
    for run in runs:
        numbers = (run.summary.get(name, "") for name in names)
        writer.writerow((run.hash, run.status, *numbers, run.note, run.dir))


def _list(store: Store, runs: Sequence[Run]) -> None:
    rows = build_rows(runs)
    if sys.stdout.isatty():
        _show(store, rows)
        return
    for row in rows:
        print(*row, store.path, sep="\t")


def build_rows(runs: Sequence[Run]) -> list[tuple[str, str, str, str]]:
    """Rows of hash, status, summary and differing settings, grouped by kind of run."""
    rows: list[tuple[str, str, str, str]] = []
    for group in provenance.group_by_keys([run.config for run in runs]):
        kind = [runs[index] for index in group]
        _, apart = provenance.split([run.config for run in kind])
        rows += [
            (run.hash[:SHORT], _status(run), summary(run), pairs(own))
            for run, own in zip(kind, apart, strict=True)
        ]
    return rows


def _status(run: Run) -> str:
    return f"{run.status}, light" if run.without(schema.LARGE) else run.status


def find_stores(folder: Path) -> list[Store]:
    """The folder itself if it is a store, else the folders named ``runs`` below it.

    Raises:
        UserError: there is none.
    """
    found = [folder] if any(map(is_run, folder.glob("*"))) else []
    found = found or sorted(path for path in folder.rglob("runs") if path.is_dir())
    if not found:
        raise UserError(
            f"runs: no store in {str(folder)!r}; allowed: an output folder or its runs/"
        )
    return [Store(path) for path in found]


def summary(run: Run) -> str:
    """The run's note, if any, and the numbers of its summary, in one line."""
    numbers = {k: v for k, v in run.summary.items() if isinstance(v, int | float)}
    told = pairs({key: f"{value:.5g}" for key, value in numbers.items()})
    return "; ".join(filter(None, (run.note, told)))


def pairs(items: dict[str, str]) -> str:
    """``key value`` pairs in one line."""
    return ", ".join(f"{key} {value}" for key, value in items.items())


def _show(store: Store, rows: list[tuple[str, str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{store.path}: {len(rows)} runs", title_justify="left", box=None)
    for head in ("run", "status", "summary", "settings that differ"):
        table.add_column(head, no_wrap=head in ("run", "status"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row), style=STYLES.get(row[1].split(",")[0], ""))
    Console().print(table)


def push(stores: Sequence[Store], url: str, say: Callable[[str], None], light: bool = False) -> int:
    """Send every finished run that the bucket lacks or has only in part.

    Exit code 3 if a run is damaged here, or has different results in the bucket.

    Args:
        stores: stores of the runs.
        url: URL of the bucket.
        say: receives a line for each run that could not be sent, and a line of counts.
        light: whether to leave out models, timelines and targets.
    """
    bucket, runs = Bucket(url), [run for store in stores for run in store.runs()]
    there, outcomes = bucket.hashes(), Counter[str]()
    watch = Progress(1).begin(1, url, "runs")
    for number, run in enumerate(runs, 1):
        ended = _push_run(run, bucket, run.hash in there, light)
        outcomes[ended] += 1
        if ended in ("damaged", "different"):
            why = "is damaged" if ended == "damaged" else f"differs from the one in {url}"
            say(f"run {run.hash[:SHORT]} {why}; left as it is")
        watch(number, len(runs))
    say(f"{url}: {_format_counts(outcomes) or 'no runs'}")
    return EXIT_RUN_FAILED if outcomes["damaged"] or outcomes["different"] else EXIT_DONE


def pull(folder: Path, url: str, say: Callable[[str], None]) -> int:
    """Fetch every run that the store lacks; exit code 3 if one is damaged in the bucket.

    Args:
        folder: folder of the store; created if missing.
        url: URL of the bucket.
        say: receives a line of counts.
    """
    store = BucketStore(folder, Bucket(url))
    names, outcomes = sorted(store.bucket.hashes()), Counter[str]()
    watch = Progress(1).begin(1, url, "runs")
    for number, name in enumerate(names, 1):
        here = store.has(name)
        outcomes["here" if here else "pulled" if store.pull(name) else "damaged"] += 1
        watch(number, len(names))
    say(f"{url}: {_format_counts(outcomes) or 'no runs'}")
    return EXIT_RUN_FAILED if outcomes["damaged"] else EXIT_DONE


def _push_run(run: Run, bucket: Bucket, there: bool, light: bool) -> str:
    """Send a run, or compare it with the bucket's; returns the outcome in a word or two."""
    if run.status in ("unfinished", "failed"):
        return run.status
    if verify_run(run).status == "damaged":
        return "damaged"
    try:
        ended = bucket.compare(run) if there else "damaged there"
        ended = bucket.push(run, light) if ended == "damaged there" else ended
    except UserError:  # a run stored by a version without digests
        return "too old"
    return "there" if light and ended == "there, light" else ended


def _format_counts(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items())
