"""Own work and clusters are made of what `lagbench` has."""

from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest

import lagbench
from harness.algorithms import catalogue
from harness.base.settings import Spec
from lagbench import cluster

LINKED = {"step_s": 1.0, "link": lagbench.Link(sharing="fair"), "jitter": lagbench.Jitter()}


def test_every_class_of_the_catalogue_and_every_base_is_there():
    ours = [name for name, kind in vars(catalogue).items() if isinstance(kind, type)]
    names = [*ours, "Gradients", "PlainFolds", "Schedule", "TimingProtocol"]
    assert [name for name in names if not hasattr(lagbench, name)] == []


def test_every_class_that_a_cluster_is_made_of_is_in_one_place():
    waiting, found = [lagbench.Cluster], set()
    while waiting:
        kind = waiting.pop()
        if kind in found:
            continue
        found.add(kind)
        for entry in fields(kind):
            hint = get_type_hints(kind)[entry.name]
            parts = {hint, *get_args(hint), *(p for each in get_args(hint) for p in get_args(each))}
            waiting += [p for p in parts if is_dataclass(p) and issubclass(p, Spec)]
    assert found >= {cluster.Device, cluster.Server, cluster.Network, cluster.Level}
    names = {kind.__name__ for kind in found}
    assert names - {"Server", "Network"} <= set(dir(lagbench))
    assert names <= set(vars(cluster))
    assert all(getattr(cluster, kind.__name__) is kind for kind in found)


def test_a_cluster_of_equal_workers_takes_the_time_of_its_steps():
    made = lagbench.Cluster.of(4, step_s=0.5, latency_s=0.25)
    work = lagbench.Workload(8, 0.0, 0.0)
    timeline = lagbench.simulate(made, work, workers=1, folds=3)
    assert timeline.folds.time_s.tolist() == pytest.approx([1.0, 2.0, 3.0])
    wide = lagbench.Cluster.of(4, step_s=0.5, bandwidth_bytes_per_s=8.0)
    slow = lagbench.simulate(wide, lagbench.Workload(8, 0.0, 4.0), workers=1, folds=1)
    assert slow.folds.time_s.tolist() == pytest.approx([1.5])
    assert lagbench.Cluster.of(2, device="V100").devices["V100"].achieved_flops_per_s
    assert lagbench.Cluster.of(2, step_s=0.5, step_cv=0.1).jitter.law == "lognormal"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "Cluster.of: step_s, device; allowed: one of them"),
        ({"step_s": 1.0, "device": "V100"}, "Cluster.of: step_s, device; allowed: one of them"),
        ({"step_s": -1.0}, "Device.launch_s: -1.0"),
        (LINKED | {"latency_s": 0.1}, "Cluster.of: link beside bandwidth_bytes_per_s or late"),
        (LINKED | {"bandwidth_bytes_per_s": 8.0}, "link beside bandwidth_bytes_per_s or lat"),
        (LINKED | {"step_cv": 0.1}, "jitter beside step_cv; allowed: jitter alone"),
        ({"device": "V10"}, "device: unknown 'V10' .did you mean 'V100'"),
    ],
)
def test_a_wrong_cluster_is_one_line(given, told):
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.Cluster.of(2, **given)
