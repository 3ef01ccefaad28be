from __future__ import annotations

from dataclasses import replace

import pytest

from harness.algorithms.catalogue import AsyncSgd, ModelAveraging
from harness.errors import UserError
from harness.execution.jobs.tolerance import KNOBS, knob_of
from harness.simulator import (
    Cluster,
    Device,
    Jitter,
    Level,
    Link,
    Network,
    ParameterServer,
    Simulation,
    WorkerGroup,
    Workload,
)

CLUSTER = Cluster("c", {"d": Device(launch_s=1.0)}, (WorkerGroup(2, "d"),), link=Link(0.5))


def test_a_delay_and_losses_are_put_into_the_cluster():
    assert KNOBS["delay"].turned(CLUSTER, 2.0).link.latency_s == 2.5
    (fault,) = KNOBS["loss"].turned(CLUSTER, 0.25).faults
    assert (fault.kind, fault.probability, fault.retry_s) == ("message", 0.25, 1.0)
    assert KNOBS["loss"].turned(CLUSTER, 0.0) == KNOBS["workers"].turned(CLUSTER, 7) == CLUSTER


def test_a_delay_is_one_of_the_networks_highest_level_too():
    levels = Level(latency_s=0.1), Level(4, latency_s=0.2)
    there = KNOBS["delay"].turned(replace(CLUSTER, network=Network(levels)), 1.0)
    assert [level.latency_s for level in there.network.levels] == [0.1, 1.2]


@pytest.mark.parametrize("value", [0, 1, 7])
def test_staleness_is_exact_once_every_worker_has_read_a_model_in_its_turn(value):
    varied = replace(CLUSTER, jitter=Jitter("lognormal", 0.5), heterogeneity_cv=0.3)
    cluster, workers = KNOBS["staleness"].at(varied, 2, value)
    timeline = Simulation(cluster, ParameterServer(), Workload(8, 0.0, 4.0), workers).advance(
        folds=100
    )
    assert set(timeline.staleness()[value:]) == {value}
    assert [*timeline.staleness()[:value]] == [*range(value)]


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match=r"tolerate: unknown 'dealy' \(did you mean 'delay'"):
        knob_of("dealy")
    KNOBS["staleness"].check(AsyncSgd())
    with pytest.raises(UserError, match="staleness: ModelAveraging folds in rounds"):
        KNOBS["staleness"].check(ModelAveraging())
