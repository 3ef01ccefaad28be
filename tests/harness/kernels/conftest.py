from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from called import raised
from harness.kernels import notice
from harness.kernels.compiling import kernel, part

notice.announce()

@kernel
def total(value):
    return raised(value) + 1

if __name__ == "__main__":
    print(total(3))
"""
CALLED = """
from harness.kernels.compiling import part

BY = 10

@part
def raised(value):
    return value * BY
"""


@pytest.fixture
def package(tmp_path):
    """A kernel `total` in one file, what it calls in another, and one that nobody uses."""
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED)
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    return tmp_path


def run(folder: Path) -> tuple[str, str]:
    """What the kernel returned in a fresh process, and what was said on stderr."""
    kept = {"NUMBA_CACHE_DIR": str(folder / "kept"), "PYTHONDONTWRITEBYTECODE": "1"}
    finished = subprocess.run(
        [sys.executable, str(folder / "caller.py")],
        env={**os.environ, **kept},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout.strip(), finished.stderr


@pytest.fixture
def computed(package):
    """Runs the kernel in a fresh process: (what it returned, what was said on stderr)."""
    return lambda: run(package)
