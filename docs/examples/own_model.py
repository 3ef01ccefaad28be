"""A perceptron of one's own with LayerNorm, and what parallel training does to it.

python own_model.py
"""

from own_data import pictures
from torch import nn

import lagbench


def perceptron() -> nn.Module:
    """64 inputs, ten classes."""
    return nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 10))


result = lagbench.compare(
    *(perceptron, nn.functional.cross_entropy, pictures(1500, seed=0)),
    test=pictures(500, seed=1),
    cluster="k20m-server",
    algorithms=["async", "averaging:10", "sync"],
    workers=[1, 4],
    rates={"async": 0.1, "averaging:10": 0.1, "sync": 0.2},
    passes=2,
)
result.report("out/")
print(result)
