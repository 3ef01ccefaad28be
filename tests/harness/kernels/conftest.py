import os
from pathlib import Path

import pytest

from tests import processes

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
    """A kernel `total` in one file, and what it calls in another."""
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED)
    return tmp_path


PROGRAM = """
import runpy, sys

sys.dont_write_bytecode = True
sys.path.insert(0, {folder!r})
runpy.run_path({folder!r} + "/caller.py", run_name="__main__")
"""


def run(folder: Path) -> tuple[str, str]:
    """What the kernel returned in a process of its own, and what was said on stderr."""
    kept = {"NUMBA_CACHE_DIR": str(folder / "kept")}
    program = PROGRAM.format(folder=str(folder))
    finished = processes.run(["-c", program], environment={**os.environ, **kept})
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip(), finished.stderr


@pytest.fixture
def computed(package):
    """Runs the kernel in a process of its own: (what it returned, what was said on stderr)."""
    return lambda: run(package)
