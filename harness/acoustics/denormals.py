"""Denormal numbers, which are slow and tell nothing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_flushed() -> Generator[None]:
    """Denormal numbers count as zero here: saturated sigmoids make many, and each is slow.

    The processor's mode ends with the block (or, as a decorator, with the call): other code
    of the process may need them.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
