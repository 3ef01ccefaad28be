"""Workers that are preempted and come back: what do cheap machines cost in error and time?

python spot_instances.py
"""

from dataclasses import replace

from own_data import pictures
from torch import nn

import lagbench

steady = lagbench.cluster_of("h100-node")
lost = lagbench.Fault("preemption", mean_s=0.02, down_s=0.01)
for name, cluster in {"steady": steady, "spot": replace(steady, faults=(lost,))}.items():
    result = lagbench.compare(
        *(lambda: nn.Linear(64, 10), nn.functional.cross_entropy, pictures(1000, 0)),
        cluster=cluster,
        algorithms=["async", "averaging:5"],
        workers=[4],
        rates=0.05,
        seeds=2,
        step_seconds=0.001,
    )
    print(f"{name}\n{result}\n")
    result.report(f"out/{name}")
