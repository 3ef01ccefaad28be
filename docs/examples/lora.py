"""Low-rank adapters of a frozen base: the adapters alone are trained, sent and charged."""

from own_data import pictures
from torch import nn

import lagbench


class Adapted(nn.Module):
    """A frozen layer and a trained product of rank 4."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base.requires_grad_(False), nn.Linear(base.in_features, 4, False)
        self.up = nn.Linear(4, base.out_features, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        """Base plus adapter."""
        return self.base(x) + self.up(self.down(x))


base = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
task = {"loss": nn.functional.cross_entropy, "cluster": "wide-area-10", "seeds": 1}
base = lagbench.train(base, data=pictures(1500, seed=0), rate=0.3, **task).model()
adapted = nn.Sequential(Adapted(base[0]), base[1], Adapted(base[2])).train()
x, y = pictures(600, seed=2)
print(lagbench.train(adapted, data=(x.flip(1), y), workers=4, passes=10, rate=0.05, **task))
print(sum(p.numel() for p in adapted.parameters() if p.requires_grad), "numbers trained")
