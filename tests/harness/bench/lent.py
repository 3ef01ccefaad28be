"""The rehearsal: run this file.

`lagbench device` as on a machine that is lent for its GPU, small and on this processor: with
nothing but what is usual there (`tests/lent`), a limit of time, killed at its first checkpoint;
again, killed at a random moment; then on until nothing is left. After every command the archive
must be whole. The Python that runs this file is the one that is rehearsed with.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[3]
LENT = ROOT / "tests" / "lent"
ARCHIVE = "lagbench-device.tar.gz"
CHECKPOINTS = "reproductions/*/runs/*/checkpoint/*.safetensors"
MOST = 12
"""Commands."""
KILLED_WITHIN_S = 120.0
"""The second command, at a moment of it."""


def environment() -> dict[str, str]:
    """Of a process that finds the usual packages only."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (LENT, ROOT)))}


def command(out: Path, *options: str) -> list[str]:
    """One of several commands on a folder."""
    program = [sys.executable, "-m", "harness", "device", "--device", "cpu", "--out", str(out)]
    return [*program, *options]


def packed(out: Path) -> dict[str, Any]:
    """The figures in the archive, which has to be whole."""
    with tarfile.open(out / ARCHIVE) as archive:
        names = archive.getnames()
        file = archive.extractfile("lagbench-device/results.json")
        assert file is not None
        return {**json.load(file), "names": names}


def killed(process: subprocess.Popen[bytes], due: Callable[[], bool]) -> None:
    """Wait until it is due, or the process has ended."""
    while process.poll() is None:
        time.sleep(0.2)
        if due():
            process.kill()
            return


def main() -> None:
    """Rehearse, and tell what each command left."""
    options = ("--minutes", "6", "--preset", "paper1/smoke:fig1")
    moment = random.uniform(0.0, KILLED_WITHIN_S)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "numba"))
    print(f"Python {platform.python_version()}, {versions}; the second command has {moment:.0f} s")
    with TemporaryDirectory() as folder:
        out = Path(folder)
        for number in range(MOST):
            began = time.monotonic()
            with subprocess.Popen(command(out, *options), env=environment()) as process:
                if number == 0:
                    killed(process, lambda: any(out.glob(CHECKPOINTS)))
                elif number == 1:
                    ends = began + moment
                    killed(process, lambda ends=ends: time.monotonic() > ends)
                code = process.wait()
            found = packed(out)
            took = time.monotonic() - began
            print(f"command {number + 1}: exit {code}, {took:.0f} s, left {found['unfinished']}")
            runs = [run for runs in found["runs"].values() for run in runs]
            print(f"  runs: {[(run['run'][:8], run['status']) for run in runs]}", flush=True)
            if not found["unfinished"]:
                print(f"  archive: {found['names']}")
                return
        raise SystemExit(f"after {MOST} commands something is left")


if __name__ == "__main__":
    main()
