"""An algorithm of an installed package (pip install ./fading), by its name."""

from own_data import pictures
from torch import nn

import lagbench

print(
    lagbench.compare(
        *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(1000, 0)),
        cluster="k20m-server",
        algorithms=["async", "Fading"],
        workers=[16],
        rates=0.05,
        seeds=2,
        step_seconds=0.001,
    )
)
