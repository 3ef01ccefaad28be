"""Data for the examples: noisy pictures of ten kinds, 8 x 8, and their kinds."""

import torch


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn by a seed."""
    kinds = torch.randn(10, 64, generator=torch.Generator().manual_seed(7))
    drawn = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (count,), generator=drawn)
    return kinds[y] + 2.0 * torch.randn(count, 64, generator=drawn), y
