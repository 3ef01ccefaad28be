"""Where results come from: the program, the command, and the runs behind them."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from harness.base.files import version_of
from harness.judge.makers import Runs

PACKAGES = ("lagbench", "torch", "numpy", "numba", "scipy", "matplotlib", "typst")


def of_program(command: str) -> dict[str, Any]:
    """Commit, versions, and what was asked for.

    Args:
        command: as it is called, e.g. ``"python -m reproductions"``; its arguments are added.
    """
    return {
        "git": _commit(),
        "versions": {"python": platform.python_version(), **{p: version_of(p) for p in PACKAGES}},
        "command": " ".join([command, *sys.argv[1:]]),
    }


def of_runs(runs: Runs, before: Collection[str]) -> dict[str, Any]:
    """Which runs each setting has, how long they took together, and how many were reused.

    Processor time is left out if a run's is not known: earlier versions did not keep it.

    Args:
        runs: by setting.
        before: hashes of the runs that were finished before.
    """
    distinct = {run.hash: run for group in runs.values() for run in group}
    moments = [run.provenance for run in distinct.values()]
    found = {
        "settings": {name: [run.hash for run in group] for name, group in runs.items()},
        "runs_s": round(sum(each.get("wall_s", 0.0) for each in moments), 1),
        "reused": len(distinct.keys() & set(before)),
    }
    if moments and all("processor_s" in each for each in moments):
        found["runs_processor_s"] = round(sum(each["processor_s"] for each in moments), 1)
    return found


def _commit() -> str:
    """The commit of the source tree, or "unknown" where there is none."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
