"""Workers with different classes: what does skewed data cost an algorithm?

python dirichlet.py
"""

from own_data import pictures
from torch import nn

import lagbench

for alpha in (100.0, 0.1):  # nearly equal shares, then few classes for each worker
    result = lagbench.compare(
        *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(1000, 0)),
        cluster="h100-node",
        algorithms=["async", "averaging:10"],
        workers=[8],
        rates=0.05,
        seeds=2,
        step_seconds=0.001,
        partition=lagbench.dirichlet(alpha),
    )
    print(f"alpha {alpha:g}\n{result}\n")
    print([row.skew["label_skew"] for row in result.rows])
