"""A DataLoader with random augmentation, trained by eight workers.

python dataloader.py
"""

import torch
from own_data import pictures
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lagbench


class Noisy(Dataset):
    """Pictures with new noise each time that they are asked for."""

    def __init__(self, count: int) -> None:
        self.x, self.y = pictures(count, 0)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        return self.x[i] + torch.randn(64), self.y[i]


made, loss = lambda: nn.Linear(64, 10), nn.functional.cross_entropy
loader = DataLoader(Noisy(1000), batch_size=32, shuffle=True)
choices = {"algorithm": "async", "workers": 8, "rate": 0.05, "step_seconds": 0.001}
print(lagbench.train(made, loss, loader, cluster="h100-node", seeds=2, **choices))
