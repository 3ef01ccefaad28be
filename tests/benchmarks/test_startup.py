"""How soon the command answers: beside an import of torch, which help must not need."""

from __future__ import annotations

import subprocess
import sys
import time

HELP = ("-m", "harness", "--help")
TORCH = ("-c", "import torch")


def seconds(arguments: tuple[str, ...]) -> float:
    """How long a fresh interpreter takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def test_help_over_an_import_of_torch(benchmark):
    rounds = 5 if benchmark.enabled else 1
    times = [(seconds(HELP), seconds(TORCH)) for _ in range(rounds)]
    benchmark.extra_info["ratio"] = min(h for h, _ in times) / min(t for _, t in times)
    benchmark.pedantic(seconds, (HELP,), rounds=1)
    told = subprocess.run([sys.executable, *HELP], check=True, capture_output=True, text=True)
    assert "simulate" in told.stdout
