"""How many asynchronous workers can this training stand?

python tolerance.py
"""

from own_data import pictures
from torch import nn

import lagbench

found = lagbench.tolerate(
    *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(600, 0)),
    cluster="k20m-server",
    what="workers",
    between=(1, 64),
    margin=0.05,
    halvings=3,
    rate=0.3,
)
found.report("out/")
print(found)
