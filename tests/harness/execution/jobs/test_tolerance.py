from __future__ import annotations

import math

import pytest

from harness.errors import UserError
from harness.execution.jobs.tolerance import KNOBS, bracketed, knob_of
from harness.simulator import Cluster, Device, Link, WorkerGroup

CLUSTER = Cluster("c", {"d": Device(launch_s=1.0)}, (WorkerGroup(2, "d"),), link=Link(0.5))


@pytest.mark.parametrize("edge", [1, 2, 11, 63])
def test_a_whole_number_is_found_exactly_and_in_few_tries(edge):
    asked: list[float] = []

    def breaks(value: float) -> bool:
        asked.append(value)
        return value > edge

    assert bracketed(KNOBS["workers"], 1, 64, 20, breaks) == (edge, edge + 1)
    assert len(asked) == len(set(asked)) <= 9


def test_any_other_number_is_found_within_a_factor():
    low, high = bracketed(KNOBS["delay"], 0.01, 10.24, 6, lambda value: value > 0.3)
    assert low <= 0.3 < high
    assert high / low == pytest.approx(1024.0 ** (1 / 64))
    low, high = bracketed(KNOBS["delay"], 0.0, 1.0, 3, lambda value: value > 0.3)
    assert (low, high) == (0.25, pytest.approx(0.5 * 0.5**0.5))


def test_what_never_breaks_is_tried_once():
    assert bracketed(KNOBS["workers"], 1, 64, 6, lambda value: False) == (64, math.inf)


def test_a_delay_and_losses_are_put_into_the_cluster():
    assert KNOBS["delay"].turned(CLUSTER, 2.0).link.latency_s == 2.5
    (fault,) = KNOBS["loss"].turned(CLUSTER, 0.25).faults
    assert (fault.kind, fault.probability, fault.retry_s) == ("message", 0.25, 1.0)
    assert KNOBS["loss"].turned(CLUSTER, 0.0) == KNOBS["workers"].turned(CLUSTER, 7) == CLUSTER


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match=r"tolerate: unknown 'dealy' \(did you mean 'delay'"):
        knob_of("dealy")
    with pytest.raises(UserError, match="from 8 to 4; allowed: from less to more"):
        bracketed(KNOBS["workers"], 8, 4, 6, lambda value: True)
