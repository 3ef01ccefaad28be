"""A thousand tiny runs through somebody else's workers, of which two are killed on the way.

``python -m tests.harness.grid.thousand dask`` (slurm, local) tells how long it took,
what a run cost beside a run in this process, and whether anything is lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.grid.carriers import Submission
from harness.grid.grid import Report, execute
from harness.runs.timing import TimingConfig
from harness.simulator import load_cluster
from harness.store import Store

CLUSTER = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"
ALONE = 20
"""Runs in this process, with which others are compared."""
WHERE = ("dask", "slurm", "local")


def main() -> int:
    """The command; 1 if a run is missing or wrong."""
    asked = _options()
    one = TimingConfig(load_cluster(CLUSTER), 4, (429, 64, 100), 256, 200, 0)
    configs = [replace(one, seed=seed) for seed in range(asked.runs)]
    with tempfile.TemporaryDirectory(prefix="thousand-", dir=asked.folder) as folder:
        alone_s = _alone(configs[:ALONE], Store(Path(folder) / "alone"))
        killed: list[int] = []
        begun, cpu = time.monotonic(), time.process_time()
        runs = execute(
            configs,
            Path(folder) / "runs",
            asked.jobs,
            _killing(Path(folder), asked.runs, killed),
            submit=Submission(asked.where, asked.runs_per_job),
        )
        wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
        lost = [run for run in Store(Path(folder) / "runs").runs() if run.status != "done"]
        equal = _equal(Store(Path(folder) / "alone"), runs)
    print(
        f"{asked.where}: {len(runs)} runs in {wall_s:.0f} s, {wall_s / len(runs):.3f} s a run "
        f"({alone_s:.3f} s in this process); the submitter took {cpu_s / len(runs):.4f} s of "
        f"processor a run; {len(killed)} workers killed, {len(lost)} runs lost, equal: {equal}"
    )
    return 0 if not lost and equal and len(runs) == asked.runs else 1


def _alone(configs: list[TimingConfig], store: Store) -> float:
    replace(configs[0], seed=10**6).execute(store, lambda progress: None)  # compiled by now
    begun = time.monotonic()
    for config in configs:
        config.execute(store, lambda progress: None)
    return (time.monotonic() - begun) / len(configs)


def _killing(folder: Path, runs: int, killed: list[int]) -> Callable[[Report], None]:
    """Kills a worker after a quarter of the runs, and another after half."""

    def show(report: Report) -> None:
        if report.finished >= (len(killed) + 1) * runs / 4 and len(killed) < 2:
            for process in _workers(folder)[:1]:
                os.kill(process, signal.SIGKILL)
                killed.append(process)

    return show


def _workers(folder: Path) -> list[int]:
    """Jobs that were given the folder, and processes that this one has started for Dask."""
    found = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [
        int(path.name)
        for path in found
        if f"_submit {folder}" in _words(path)
        or ("spawn_main" in _words(path) and _parent(path) == os.getpid())
    ]


def _parent(path: Path) -> int:
    return int((path / "stat").read_text().rpartition(")")[2].split()[1])


def _words(path: Path) -> str:
    try:
        return (path / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _equal(alone: Store, runs: dict[str, object]) -> bool:
    found = {run.hash: run.summary for run in alone.runs()}
    return all(runs[name].summary == said for name, said in found.items() if name in runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("where", choices=WHERE)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs-per-job", type=int, default=25)
    parser.add_argument("--folder", default=None, help="that workers share")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
