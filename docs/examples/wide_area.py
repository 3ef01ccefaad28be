"""Ten sites with slow links: an outer loop that averages rarely against one that averages always.

python wide_area.py
"""

from own_data import pictures
from torch import nn

import lagbench

result = lagbench.compare(
    *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(4000, 0)),
    cluster="wide-area-10",
    algorithms=["sync", "averaging:20", "diloco:20"],
    workers=[5],
    rates={"sync": 0.2, "averaging:20": 0.1, "diloco:20": 0.1},
    minibatch=16,
    passes=4,
    seeds=2,
    step_seconds=0.1,
)
result.report("out/")
print(result)
