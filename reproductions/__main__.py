"""``python -m reproductions paper1 …`` is ``lagbench reproduce paper1 …``."""

from __future__ import annotations

import sys

from harness.cli import run_process
from reproductions.command import main

if __name__ == "__main__":
    sys.exit(run_process(main))
