"""Run the benchmarks in a process of their own, and read what they told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bench.comparison import Measured, read

BENCHMARKS = Path("tests") / "benchmarks"
OPTIONS = (
    "--benchmark-enable",
    "--benchmark-only",
    "--benchmark-max-time=0.3",
    "--benchmark-min-rounds=3",
    "--benchmark-quiet",
    "--quiet",
    "--no-header",
    "-rfE",
)


class BenchmarkError(Exception):
    """A benchmark did not end: its own checks failed, or it could not be collected."""


@dataclass(frozen=True)
class Run:
    """What one run of the benchmarks told.

    Args:
        measured: by benchmark.
        skipped: benchmarks that said they cannot run here.
        seconds: the median of each benchmark's own time, for people.
    """

    measured: dict[str, Measured]
    skipped: tuple[str, ...]
    seconds: dict[str, float]


def measure(root: Path, names: Sequence[str] = (), extra: Sequence[str] = ()) -> Run:
    """Run all benchmarks of a source tree, or those named, in one thread.

    Args:
        root: the source tree.
        names: pytest names, relative to ``root``; none for all.
        extra: further options for pytest.

    Raises:
        BenchmarkError: with pytest's exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        told, ended = Path(folder) / "told.json", Path(folder) / "ended.xml"
        files = (f"--benchmark-json={told}", f"--junitxml={ended}")
        command = [sys.executable, "-m", "pytest", *(names or [str(BENCHMARKS)]), *OPTIONS]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # Asked from a test that shares the cores with others, pytest would not measure at all.
        here = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
        done = subprocess.run(
            [*command, *files, *extra], cwd=root, env={**here, **threads}, check=False
        )
        if done.returncode != 0:
            raise BenchmarkError(f"pytest ended with {done.returncode}")
        # With nothing but skipped benchmarks there is nothing to tell.
        text = told.read_text(encoding="utf-8") if told.is_file() else ""
        each: list[dict[str, Any]] = json.loads(text)["benchmarks"] if text.strip() else []
        measured = {str(one["fullname"]): read(one["extra_info"]) for one in each}
        seconds = {str(one["fullname"]): float(one["stats"]["median"]) for one in each}
        return Run(measured, tuple(skipped(ended.read_text(encoding="utf-8"))), seconds)


def skipped(junit: str) -> Iterable[str]:
    """The pytest names of the tests that were skipped, from a report in JUnit's format."""
    for case in ElementTree.fromstring(junit).iter("testcase"):
        if case.find("skipped") is not None:
            file = case.attrib["classname"].replace(".", "/")
            yield f"{file}.py::{case.attrib['name']}"
