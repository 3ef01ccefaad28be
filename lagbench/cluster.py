"""All classes that a `Cluster` is made of; two of them have the names of other things in lagbench.

A `Cluster` has ``workers`` (`WorkerGroup`, each of a `Device`; `catalogue` has some), a `Link` to
the server or a `Network` of `Level` (`Shaping` limits its links), the server's `Host` and `Server`,
and what varies or fails: `Jitter`, `Stragglers`, `Fault`, `Checkpoints`, `Job`; `Compression` and
`Parallel` are costs, a `Workload` is a minibatch. `load_cluster` reads a file.

``lagbench.cluster.Server`` is the time that a server takes for a fold, and ``lagbench.Server`` the
state of a training server; ``lagbench.cluster.Network`` are links, and ``lagbench.Network`` is what
is trained.
"""

from harness.simulator.cluster import Checkpoints as Checkpoints
from harness.simulator.cluster import Cluster as Cluster
from harness.simulator.cluster import Compression as Compression
from harness.simulator.cluster import Device as Device
from harness.simulator.cluster import Fault as Fault
from harness.simulator.cluster import Host as Host
from harness.simulator.cluster import Jitter as Jitter
from harness.simulator.cluster import Job as Job
from harness.simulator.cluster import Link as Link
from harness.simulator.cluster import Parallel as Parallel
from harness.simulator.cluster import Server as Server
from harness.simulator.cluster import Stragglers as Stragglers
from harness.simulator.cluster import WorkerGroup as WorkerGroup
from harness.simulator.cluster import Workload as Workload
from harness.simulator.cluster import catalogue as catalogue
from harness.simulator.cluster import load_cluster as load_cluster
from harness.simulator.network import Level as Level
from harness.simulator.network import Network as Network
from harness.simulator.network import Shaping as Shaping
