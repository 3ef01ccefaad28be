"""An iterable that does not fit into memory: a buffer of 2,000 examples of it is held.

python large_iterable.py
"""

from own_data import pictures
from torch import nn
from torch.utils.data import IterableDataset

import lagbench


class Shards(IterableDataset):
    """Examples of one file after the other, without end; here each file is drawn."""

    def __iter__(self):
        shard = 0
        while True:
            yield from zip(*pictures(1000, shard), strict=True)
            shard = (shard + 1) % 8


sizes = {"examples": 8000, "buffer": 2000, "passes": 2}
choices = {"algorithms": ["async", "sync"], "workers": [8], "rates": 0.05, "step_seconds": 0.001}
parts = lambda: nn.Linear(64, 10), nn.functional.cross_entropy, Shards()
print(lagbench.compare(*parts, cluster="h100-node", seeds=2, **sizes, **choices))
