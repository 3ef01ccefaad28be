from dataclasses import replace

import numpy as np
import pytest

from harness.simulator import Jitter, Link, Simulation, load_cluster
from harness.simulator.steady import long_run

K20M = "reproductions/clusters/k20m-server.toml"


@pytest.mark.parametrize("duplex", ["half", "full"])
def test_rounding_grows_on_a_fair_link_and_leaves_distributions_alone(duplex):
    cluster = load_cluster(K20M)
    link = Link(cluster.link.latency_s, cluster.link.bandwidth_bytes_per_s, "fair", duplex)
    cluster = replace(cluster, link=link, jitter=Jitter("lognormal", 0.05))
    job = cluster.workload
    jobs = [job, replace(job, flops_per_frame=job.flops_per_frame * (1.0 + 2e-14))]
    one, two = (Simulation(cluster, "parameter_server", job) for job in jobs)
    apart_s = np.abs(one.advance(folds=1500).folds.time_s - two.advance(folds=1500).folds.time_s)
    assert apart_s[10] < 1e-12
    assert apart_s[-500:].max() > 1e-3
    found = [
        long_run(Simulation(cluster, "parameter_server", job, spans=False), 1 << 18) for job in jobs
    ]
    first, second = (each.throughput_per_s for each in found)
    half = [(each.high - each.low) / 2.0 for each in (first, second)]
    assert abs(first.value - second.value) <= np.hypot(*half)
    stale = [each.single[0] for each in found]
    shares = [np.bincount(each, minlength=30)[:30] / len(each) for each in stale]
    assert np.abs(np.subtract(*shares)).max() < 0.02
