"""A protocol of an installed package (pip install ./turns), by its name and in training."""

from own_data import pictures
from torch import nn
from turns import Turns

import lagbench

print(lagbench.simulate("k20m-server", protocol="turns", workers=4))
for protocol in (Turns(turn=10), lagbench.ParameterServer()):
    result = lagbench.train(
        *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(1000, 0)),
        cluster="k20m-server",
        algorithm=(lagbench.AsyncSgd(), protocol),
        workers=4,
        rate=0.05,
        seeds=2,
        step_seconds=0.001,
    )
    print(f"{type(protocol).__name__}\n{result}\n")
