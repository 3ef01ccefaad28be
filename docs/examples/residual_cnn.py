"""A residual network with BatchNorm; each worker has running statistics of its own."""

import torch
from own_data import pictures
from torch import nn

import lagbench


class Residual(nn.Module):
    """Two convolutions, the second around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.inner, self.after = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.out = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of pictures."""
        x = self.norm(self.first(x.unflatten(1, (1, 8, 8)))).relu()
        return self.out((x + self.after(self.inner(x))).relu().flatten(1))


result = lagbench.compare(
    *(Residual, nn.functional.cross_entropy, pictures(1200, seed=0)),
    **{"cluster": "k20m-server", "algorithms": ["async", "averaging:5"], "workers": [4]},
    **{"rates": 0.1, "passes": 3, "seeds": 2, "step_seconds": 0.01},
)
print(result, result.model().norm.running_mean, sep="\n")
