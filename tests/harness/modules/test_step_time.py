"""Costs of a step: its counts and a device's seconds by hand, and what is said of them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from harness.base.registry import cluster_file
from harness.modules.inspection import Counts, StepCounter
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.settings import ModuleTable
from harness.modules.task import charge, count_step
from harness.simulator import Cluster, Device, WorkerGroup, Workload, load_cluster
from harness.simulator.cluster import OPERATOR_S, catalogue
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation, describe_doubts


def problem(*layers: int) -> ModuleParts:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for below, above in pairwise(layers):
        parts += [nn.Linear(below, above), nn.ReLU()]
    arrays = Arrays(torch.randn(16, layers[0]), torch.randint(layers[-1], (16,)))
    return ModuleParts(nn.Sequential(*parts[:-1]), cross_entropy, arrays, arrays, None, {})


def table(**given: Any) -> ModuleTable:
    return ModuleTable(model=None, loss=None, data=None, minibatch=8, **given)


def doubts_of(machine: Cluster, work: Workload) -> list[str]:
    return describe_doubts(machine, ParameterServer(), work, 1)


def cluster_of(**device: Any) -> Cluster:
    return Cluster("one", {"card": Device(**device)}, (WorkerGroup(1, "card"),))


def test_operators_and_bytes_of_a_line_are_those_by_hand():
    x, w, y = torch.ones(8, 3), torch.ones(3, 5, requires_grad=True), torch.zeros(8, 5)
    with StepCounter() as counter:
        mse_loss(x @ w, y).backward()
    # mm, mse_loss; ones_like, mse_loss_backward, mm. Transposes are views.
    out, weight = 4 * 8 * 5, 4 * 3 * 5
    read = [4 * 8 * 3 + weight, 2 * out, 4 + 2 * out, 4 * 8 * 3 + out]
    written = [out, 4, 4, out, weight]
    flops = 2 * 8 * 3 * 5 + 2 * 3 * 8 * 5
    assert counter.counts == Counts(5, sum(read + written), flops)


@pytest.mark.parametrize(
    ("work", "moved"),
    [
        (lambda x: x.view(2, 8).t(), None),
        (lambda x: torch.empty_like(x), None),
        (lambda x: x.add_(1.0), 2 * 64),
        (lambda x: x.zero_(), 64),
        (lambda x: torch.add(x, x, out=x.clone()), 2 * 64 + 3 * 64),
        (lambda x: x.new_zeros(1).expand(1000) + 1.0, 4 + 4 + 4000),
        (lambda x: x[torch.tensor([0])], 2 * 16 + 8),
        (lambda x: torch._foreach_add_([x, x], [x, x]), 6 * 64),
    ],
)
def test_views_launch_nothing_and_operators_move_their_operands(work, moved):
    with StepCounter() as counter:
        work(torch.ones(4, 4))
    ones = 64  # the operand's own making
    assert counter.counts.moved_bytes == ones + (moved or 0)
    assert (counter.counts.operators > 1) == (moved is not None)


def test_products_are_counted_as_pytorch_counts_them_and_attention_on_cpus_too():
    layers = problem(6, 12, 12, 3)
    counts = count_step(layers, 8)
    weights = 6 * 12 + 12 * 12 + 12 * 3
    assert counts.flops == 8 * (6 * weights - 2 * 72)
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    with StepCounter() as counter, FlopCounterMode(display=False) as pytorch:
        scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert pytorch.get_total_flops() == 0
    assert counter.counts.flops == 2 * product + 5 * product


def test_a_device_takes_launches_and_memory_and_arithmetic():
    work = Workload(10, 1e6, 4.0, operators=20, moved_bytes=3e6)
    device = Device(1e9, memory_bytes_per_s=1e9, operator_s=1e-5)
    assert device.minibatch_s(work) == pytest.approx(20e-5 + 3e-3 + 1e-2)
    assert replace(device, launch_s=1e-3).minibatch_s(work) == pytest.approx(1e-3 + 13e-3)
    assert Device(1e9).minibatch_s(work) == pytest.approx(20 * OPERATOR_S + 1e-2)
    bare = Workload(10, 1e6, 4.0)
    assert replace(device, launch_s=1e-3).minibatch_s(bare) == 1e-3 + 1e7 / 1e9
    quick = replace(work, operators=1.0, flops_per_frame=0.0)
    machine = Cluster("one", {"card": device}, (WorkerGroup(1, "card"),))
    assert not doubts_of(machine, quick)


def test_a_quicker_card_does_not_launch_more_quickly():
    small = count_step(problem(6, 12, 3), 8)
    work = small.workload(8, 4.0)
    times = {name: device.minibatch_s(work) for name, device in catalogue().items()}
    assert min(times.values()) >= small.operators * OPERATOR_S
    machine = load_cluster(cluster_file("k20m-server"))
    _, charged = charge(table(), problem(6, 12, 3), machine)
    seconds = machine.devices["K20m"].minibatch_s(charged)
    assert seconds >= small.operators * OPERATOR_S > 50e-6


def test_devices_without_rates_are_not_counted_for():
    told: list[str] = []
    given, machine = problem(6, 12, 3), cluster_of(launch_s=0.02)
    _, work = charge(table(), given, machine, say=told.append)
    assert work == Workload(8, 0.0, 4.0 * given.parameters().count)
    (line,) = told
    assert line == "a step takes 20 ms on 'one' whatever the model: no achieved_flops_per_s"


@pytest.mark.parametrize(
    ("given", "device", "told"),
    [
        ({}, {"achieved_flops_per_s": 1e9}, "devices.card: moving data in memory takes no time"),
        ({"step_seconds": 1e-6}, {}, "a step takes 1 µs; its launches take 3 µs for a"),
    ],
)
def test_a_doubtful_cost_is_said(given, device, told):
    charged = charge(table(**given), problem(6, 12, 3), cluster_of(**device))
    assert told in "\n".join(doubts_of(*charged))
    known = {"achieved_flops_per_s": 1e9, "memory_bytes_per_s": 1e9}
    charged = charge(table(), problem(6, 12, 3), cluster_of(**known))
    assert not doubts_of(*charged)


def test_microbatches_are_steps_of_their_own():
    machine, given = cluster_of(achieved_flops_per_s=1e9), problem(6, 12, 3)
    _, whole = charge(table(), given, machine)
    _, parts = charge(table(), given, machine, accumulate=4)
    assert parts.operators == 4 * whole.operators
    assert (parts.minibatch_frames, parts.flops_per_frame) == (8, whole.flops_per_frame)
    assert parts.moved_bytes == 4 * count_step(given, 2).moved_bytes > whole.moved_bytes


def test_a_simulation_of_counted_steps_goes_on_as_if_never_interrupted():
    machine = cluster_of(achieved_flops_per_s=1e9, memory_bytes_per_s=1e9)
    for work in (Workload(8, 1e3, 4.0, 30.0, 1e5), Workload(8, 1e3, 4.0)):
        whole = Simulation(machine, "parameter_server", work, 2)
        saved = whole.state()
        assert len(saved["workload"]) == 5
        again = Simulation.restore(machine, "parameter_server", saved, 2)
        first, second = (each.advance(folds=5).folds.time_s for each in (whole, again))
        np.testing.assert_array_equal(first, second)
        assert first[0] >= machine.devices["card"].minibatch_s(work)
