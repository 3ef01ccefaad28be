"""What all tests share: one thread a process, and what the fork server imports once."""

from __future__ import annotations

import os

from harness import forked

# Read when torch and numpy are first imported, which no plugin does before this file.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

pytest_plugins = ["tests.portable.flips"]

forked.context(
    "harness.execution.processes.rounds",
    "harness.execution.processes.sequence_command",
    "harness.execution.processes.shards",
    "harness.execution.processes.worker",
    "harness.execution.jobs.grid",
    "reproductions.reproduce",
)
