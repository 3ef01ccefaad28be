"""The rehearsal: run this file.

`lagbench device` as on a machine that is lent for its GPU, small and on this processor: with
nothing but what is usual there (`tests/lent`), a limit of time, killed at a checkpoint; then again
until nothing is left. After every command the archive must be whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[3]
LENT = ROOT / "tests" / "lent"
ARCHIVE = "lagbench-device.tar.gz"
CHECKPOINTS = "reproductions/*/runs/*/checkpoint/*.safetensors"
MOST = 12
"""Commands."""


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


def main() -> None:
    """Rehearse, and tell what each command left."""
    options = ("--minutes", "6", "--preset", "paper1/smoke:fig1")
    with TemporaryDirectory() as folder:
        out = Path(folder)
        for number in range(MOST):
            began = time.monotonic()
            with subprocess.Popen(command(out, *options), env=environment()) as process:
                while number == 0 and process.poll() is None:
                    time.sleep(0.2)
                    if any(out.glob(CHECKPOINTS)):
                        process.kill()
                code = process.wait()
            found = packed(out)
            took = time.monotonic() - began
            print(f"command {number + 1}: exit {code}, {took:.0f} s, left {found['unfinished']}")
            runs = [run for runs in found["runs"].values() for run in runs]
            print(f"  runs: {[(run['run'][:8], run['status']) for run in runs]}")
            if not found["unfinished"]:
                print(f"  archive: {found['names']}")
                return
        raise SystemExit(f"after {MOST} commands something is left")


if __name__ == "__main__":
    main()
