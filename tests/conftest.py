"""What all tests share: one thread a process, as many processes as there are cores."""

from __future__ import annotations

import os

# Read when torch and numpy are first imported, which no plugin does before this file.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
