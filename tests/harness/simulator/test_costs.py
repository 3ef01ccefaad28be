"""Durations against the sums that a cluster file implies, without any simulation."""

from dataclasses import replace

import numpy as np

from harness.simulator.cluster import Cluster, Device, Host, Link, Server, WorkerGroup, Workload
from harness.simulator.costs import (
    compute_seconds,
    copy_seconds,
    costs_of,
    fold_seconds,
    lognormal,
    purpose_key,
)

JOB = Workload(minibatch_frames=4, flops_per_frame=25.0, parameter_bytes=1000.0)
CLUSTER = Cluster(
    name="by hand",
    devices={"card": Device(achieved_flops_per_s=50.0), "old": Device(achieved_flops_per_s=10.0)},
    workers=(WorkerGroup(2, "card"), WorkerGroup(1, "card", speed=0.5), WorkerGroup(2, "old")),
    link=Link(latency_s=0.25, bandwidth_bytes_per_s=100.0),
    host=Host(staging="pageable", staging_bytes_per_s=50.0, memory_bytes_per_s=500.0),
    server=Server(fold_s=0.5, fold_traffic=3.0),
)


def test_a_copy_of_pageable_memory_pays_for_its_staging_and_of_pinned_memory_not():
    assert copy_seconds(CLUSTER, 1000.0) == 1000.0 / 100.0 + 1000.0 / 50.0
    pinned = replace(CLUSTER, host=replace(CLUSTER.host, staging="pinned"))
    assert copy_seconds(pinned, 1000.0) == 1000.0 / 100.0
    endless = replace(CLUSTER, link=Link())
    assert copy_seconds(endless, 1000.0) == 1000.0 / 50.0


def test_a_fold_takes_its_fixed_time_and_its_traffic_through_host_memory():
    assert fold_seconds(CLUSTER, JOB) == 0.5 + 3.0 * 1000.0 / 500.0


def test_each_worker_computes_at_the_rate_of_its_device_and_at_its_groups_speed():
    seconds = [2.0, 2.0, 4.0, 10.0, 10.0]
    assert [compute_seconds(CLUSTER, JOB, worker) for worker in range(5)] == seconds
    assert costs_of(CLUSTER, JOB, 5, seed=0).compute_s.tolist() == seconds
    assert costs_of(CLUSTER, JOB, 3, seed=0).compute_s.tolist() == seconds[:3]


def test_a_worker_of_twice_the_lasting_speed_takes_half_the_time():
    mixed = replace(CLUSTER, heterogeneity_cv=0.4)
    found = costs_of(mixed, JOB, 5, seed=6).compute_s
    speeds = np.array([lognormal(purpose_key(6, "speed"), w, 0, 0.4) for w in range(5)])
    np.testing.assert_allclose(found * speeds, [2.0, 2.0, 4.0, 10.0, 10.0], rtol=1e-12)
