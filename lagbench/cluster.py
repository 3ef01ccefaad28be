"""All classes that a `Cluster` is made of; two of them have the names of other things in lagbench.

``lagbench.cluster.Server`` is the time that a server takes for a fold, and ``lagbench.Server`` the
state of a training server; ``lagbench.cluster.Network`` are links, and ``lagbench.Network`` is what
is trained.
"""

from __future__ import annotations

from harness.simulator.cluster import (
    Checkpoints,
    Cluster,
    Compression,
    Device,
    Host,
    Jitter,
    Job,
    Link,
    Parallel,
    Server,
    Stragglers,
    WorkerGroup,
    Workload,
    catalogue,
    load_cluster,
)
from harness.simulator.faults import Fault
from harness.simulator.network import Level, Network
from harness.simulator.shaping import Shaping

__all__ = [
    "Checkpoints",
    "Cluster",
    "Compression",
    "Device",
    "Fault",
    "Host",
    "Jitter",
    "Job",
    "Level",
    "Link",
    "Network",
    "Parallel",
    "Server",
    "Shaping",
    "Stragglers",
    "WorkerGroup",
    "Workload",
    "catalogue",
    "load_cluster",
]
