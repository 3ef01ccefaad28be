"""PyTorch's own random numbers, from a seed, without a trace on the user's."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def generators_kept() -> Generator[None]:
    """PyTorch's generators are afterwards what they were before."""
    with torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType]
        yield


def seed_generators(seed: int) -> None:
    """What is drawn next depends on ``seed``, of 63 bits, alone."""
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]


def state_of_generator(device: torch.device) -> Tensor:
    """Of the generator that a module on this device draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
