"""Finished runs sent to an object store, and fetched from one: `lagbench runs --push`, `--pull`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.seeds import SHORT
from harness.commands.progress import Progress
from harness.store import Bucket, Gathered, Run, Store, verified

__all__ = ["pull", "push"]


def push(stores: Sequence[Store], url: str, say: Callable[[str], None], light: bool = False) -> int:
    """Send every finished run that is not there as a whole.

    Exit code 3 if one is damaged here, or has other results there.

    Args:
        stores: where runs lie.
        url: where they go.
        say: is told what could not be sent, and in the end what was.
        light: without models, timelines and targets.
    """
    bucket, runs = Bucket(url), [run for store in stores for run in store.runs()]
    there, outcomes = bucket.hashes(), Counter[str]()
    watch = Progress(1).begin(1, url, "runs")
    for number, run in enumerate(runs, 1):
        ended = _sent(run, bucket, run.hash in there, light)
        outcomes[ended] += 1
        if ended in ("damaged", "different"):
            why = "is damaged" if ended == "damaged" else f"differs from the one in {url}"
            say(f"run {run.hash[:SHORT]} {why}; left as it is")
        watch(number, len(runs))
    say(f"{url}: {_counted(outcomes) or 'no runs'}")
    return EXIT_RUN_FAILED if outcomes["damaged"] or outcomes["different"] else EXIT_DONE


def pull(folder: Path, url: str, say: Callable[[str], None]) -> int:
    """Fetch every run that is not here; exit code 3 if one is damaged there.

    Args:
        folder: a store; made if there is none.
        url: where they lie.
        say: is told in the end what was fetched.
    """
    store = Gathered(folder, Bucket(url))
    names, outcomes = sorted(store.bucket.hashes()), Counter[str]()
    watch = Progress(1).begin(1, url, "runs")
    for number, name in enumerate(names, 1):
        here = store.has(name)
        outcomes["here" if here else "pulled" if store.pull(name) else "damaged"] += 1
        watch(number, len(names))
    say(f"{url}: {_counted(outcomes) or 'no runs'}")
    return EXIT_RUN_FAILED if outcomes["damaged"] else EXIT_DONE


def _sent(run: Run, bucket: Bucket, there: bool, light: bool) -> str:
    """What became of a run; one that is there is compared with it."""
    if run.status in ("unfinished", "failed"):
        return run.status
    if verified(run).status == "damaged":
        return "damaged"
    try:
        ended = bucket.compared(run) if there else "damaged there"
        ended = bucket.push(run, light) if ended == "damaged there" else ended
    except UserError:  # of a version without digests
        return "too old"
    return "there" if light and ended == "there, light" else ended


def _counted(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items())
