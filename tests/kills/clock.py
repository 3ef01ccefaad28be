"""A time of day that is set while commands run, for all their processes.

A library of six functions (`clock.c`) is preloaded into them. libfaketime was tried first: it makes
Python's `time.sleep` fail, which waits for a moment of the monotonic clock.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

FILE = "KILLS_CLOCK"
JUMPS_S = (4e7, -9e7, 0.0, -3600.0, 1.5e8)
"""Where the clock is set, one after the other: a year on, three back, right, ..."""

_jumped = 0


def settable(folder: Path) -> dict[str, str]:
    """What the environment of processes needs; nothing where there is no compiler of C.

    Args:
        folder: which outlives them.
    """
    if shutil.which("cc") is None:
        return {}
    library, file = folder / "clock.so", folder / "clock"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-lm"], check=True)
    file.write_bytes(struct.pack("d", 0.0))
    return {"LD_PRELOAD": str(library), FILE: str(file)}


def is_settable() -> bool:
    """Whether the processes that this one starts have such a clock."""
    return FILE in os.environ


def jump() -> None:
    """Set the clock, for every process that has it."""
    global _jumped
    with Path(os.environ[FILE]).open("r+b") as file:
        file.write(struct.pack("d", JUMPS_S[_jumped % len(JUMPS_S)]))
    _jumped += 1
