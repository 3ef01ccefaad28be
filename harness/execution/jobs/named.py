"""A grid of runs that have names: executed, and shown to people while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from harness.base.seeds import identity
from harness.execution.jobs.display import Display
from harness.execution.jobs.grid import execute
from harness.execution.jobs.submitted import Submission
from harness.execution.runs.executed import Configuration
from harness.store import Run, Store

Key = TypeVar("Key", bound=Hashable)


def execute_named(
    configs: Mapping[Key, Configuration],
    called: Callable[[Key], str],
    store: Store | Path,
    jobs: int,
    budget_s: float | None = None,
    submit: Submission | None = None,
) -> dict[Key, Run]:
    """The finished run of every configuration; equal ones run once, under all their names.

    Args:
        configs: by whatever tells them apart.
        called: what people call one.
        store: where runs are kept, or its folder.
        jobs: processes.
        budget_s: stop starting and checkpoint after so long; None for no limit.
        submit: who carries the runs; None for processes here.

    Raises:
        UserError, ProcessDied, KeyboardInterrupt: as `harness.execution.jobs.grid.execute`.
    """
    hashes = {key: identity(config.to_dict()) for key, config in configs.items()}
    names: dict[str, dict[str, None]] = {}
    for key, hash_ in hashes.items():
        names.setdefault(hash_, {})[called(key)] = None
    titles = {hash_: " = ".join(labels) for hash_, labels in names.items()}
    with Display(titles) as display:
        runs = execute(
            list(configs.values()), store, jobs, display.show, budget_s=budget_s, submit=submit
        )
    return {key: runs[hash_] for key, hash_ in hashes.items()}
