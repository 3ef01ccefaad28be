"""Measured time of a user's step, converted to operations of the cluster's devices.

A cluster file gives a device's FLOP rate in large products. So a step of ``s`` seconds on a machine
that reaches ``r`` operations a second in large products is charged as ``s r`` operations; a device
with rate ``q`` takes ``s r / q`` seconds for them. Example: 10 ms at 100 GFLOP/s are 1 GFLOP, which
take 0.5 ms at 2 TFLOP/s.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from harness.base.errors import UserError
from harness.modules.network import preserve_generators, trainable_parameters
from harness.modules.problem import Problem
from harness.simulator import Cluster, Device, Workload
from harness.store import Run, RunWriter, Store
from harness.tasks.contract import Configuration, Watch

FORMAT = 1
"""Version of the measurement: incremented when the same step is measured differently."""

WARM, LEAST, LONGEST_S = 3, 10, 1.0
"""Warm-up steps; smallest number of timed steps; timed seconds after which timing ends."""

SIDE = 1024
"""Rows and columns of the matrices in the product that measures this machine's FLOP rate."""


@dataclass(frozen=True)
class StepConfig(Configuration):
    """Configuration of a step-time measurement, made once for each machine and store.

    Args:
        problem: the module, loss and data of the step.
        minibatch: examples in the step.
        device: ``"cpu"`` or ``"cuda"``.
    """

    problem: Problem
    minibatch: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values for the identity, including the processor's name."""
        step = {key: self.problem.to_identity()[key] for key in ("model", "loss")}
        size = {"minibatch": self.minibatch, "device": self.device, "format": FORMAT}
        return {"is": "StepConfig", **step, **size, "machine": machine(self.device)}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return measure_step(self, store, watch)


def measure_step(config: StepConfig, store: Store, watch: Watch) -> Run:
    """Measure median seconds of a step, the FLOP rate of a large product, and their product."""
    del watch  # it takes seconds

    def execute(writer: RunWriter) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with preserve_generators():
                step_s = _measure_seconds(_step(config), config.device)
                product_s = _measure_seconds(_product(config.device), config.device)
        finally:
            torch.set_num_threads(threads)
        found = {"step_s": step_s, "flops_per_s": 2.0 * SIDE**3 / product_s}
        writer.finish("done", {**found, "worth_flops": step_s * found["flops_per_s"]})

    return store.obtain(config.to_dict(), execute)


@dataclass(frozen=True)
class Charge:
    """Settings for the simulated cost of a minibatch: operations, and bytes of a copy.

    Args:
        charge_for: a module that replaces the trained one for timing, and takes the same examples;
            a `Workload`; or ``"cluster"`` for the cluster file's. None is the trained module.
        parameter_bytes: bytes of a copy of the parameters; None for the module's own.
        flops_per_example: operations of a step for each example, in place of ``step_seconds``.
        step_seconds: seconds of a step on every device; or ``"count"`` for the operations that
            PyTorch counts, or ``"measure"`` for a step's measured time, converted to operations.
    """

    charge_for: Any = None
    parameter_bytes: float | None = None
    flops_per_example: float | None = None
    step_seconds: float | str = "count"

    def apply(
        self,
        problem: Problem,
        size: int,
        machine: Cluster,
        work: Workload | None = None,
        measure: Callable[[Problem], float] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> tuple[Cluster, Workload]:
        """The cluster to simulate, and its workload.

        Args:
            problem: the trained problem.
            size: examples in a minibatch.
            machine: the user's cluster.
            work: the workload for ``"cluster"``; None for that of ``machine``.
            measure: returns the operations of a measured step, for ``"measure"``.
            say: receives a line if no device of the cluster has a FLOP rate.

        Raises:
            UserError: a value that is not allowed.
        """
        asked, charged = self.step_seconds, self.charge_for
        if isinstance(charged, str):
            charged = work or machine.workload
            if charged is None:
                told = f"{machine.name!r} has no [workload]"
                raise UserError(f"charge_for: cluster {told}; allowed: a module or a Workload")
        if isinstance(charged, Workload):
            return machine, charged
        if charged is not None:
            problem = Problem(charged, problem.loss, problem.train, problem.dev, None, {})
        travels = self.parameter_bytes
        if travels is None:
            travels = 4.0 * problem.parameters().count
        if (flops := self.flops_per_example) is not None:
            return machine, Workload(size, float(flops), float(travels))
        if isinstance(asked, int | float):
            if not (asked >= 0.0 and math.isfinite(asked)):
                raise UserError(f"step_seconds: {asked}; allowed: 'measure', 'count' or seconds")
            same = {name: Device(launch_s=float(asked)) for name in machine.devices}
            return replace(machine, devices=same), Workload(size, 0.0, travels)
        if asked not in ("measure", "count"):
            raise UserError(f"step_seconds: {asked!r}; allowed: 'measure', 'count' or seconds")
        if all(d.achieved_flops_per_s is None for d in machine.devices.values()):
            told = f"cluster {machine.name!r}: devices without a rate; a step takes launch_s"
            say(told)
            return machine, Workload(size, 0.0, travels)
        if asked == "count" or measure is None:
            flops = count_flops(problem, size)
        else:
            flops = measure(problem)
        return machine, Workload(size, flops / size, travels)


def check_charge(asked: Any, given: Mapping[str, Any], machine: Cluster) -> None:
    """Reject charges that the cluster cannot have, and contradictory ones.

    Args:
        asked: all settings, see `check_settings`.
        given: the settings that the user gave.
        machine: the cluster.

    Raises:
        UserError: a value that is not allowed.
    """
    charged = asked.charge_for
    if charged == "cluster" and machine.workload is None:
        told = f"cluster {machine.name!r} has no [workload]"
        raise UserError(f"charge_for: 'cluster'; {told}; allowed: a module or a Workload")
    if not isinstance(charged, nn.Module | Workload | None) and charged != "cluster":
        told = "allowed: a torch.nn.Module, a Workload, or 'cluster'"
        raise UserError(f"charge_for: {charged!r}; {told}")
    for name in ("parameter_bytes", "flops_per_example", "step_seconds"):
        if given.get(name) is not None and isinstance(charged, Workload | str):
            told = "allowed: without charge_for, which says it already"
            raise UserError(f"{name}: {given[name]!r}; {told}")
    for name in ("parameter_bytes", "flops_per_example"):
        value = getattr(asked, name)
        if value is not None and not (is_finite(value) and value >= 0.0):
            raise UserError(f"{name}: {value!r}; allowed: a number from 0")
    if asked.flops_per_example is None:
        return
    if "step_seconds" in given:
        raise UserError(f"step_seconds: {asked.step_seconds!r}; allowed: without flops_per_example")
    if all(device.achieved_flops_per_s is None for device in machine.devices.values()):
        told = f"no device of cluster {machine.name!r} has achieved_flops_per_s"
        raise UserError(f"flops_per_example: {told}; allowed: step_seconds")


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number, and not a bool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def count_flops(problem: Problem, minibatch: int) -> float:
    """Operations of the matrix products in one step, as counted by PyTorch."""
    step = _step(StepConfig(problem, minibatch, "cpu"))
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def machine(device: str) -> str:
    """Model name of the GPU or processor."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _step(config: StepConfig) -> Callable[[], object]:
    """A function that does one plain step: forward, backward, SGD update."""
    problem, size = config.problem, config.minibatch
    network = problem.network(0, size, config.device)
    model = problem.initial(0).to(config.device)
    module = network.bind_parameters(model)
    some = problem.train[:size].to(config.device, model.dtype)
    optimizer = torch.optim.SGD(trainable_parameters(module).values(), 1e-6)

    def step() -> None:
        optimizer.zero_grad()
        network.loss_of(module, some.x, some.y).backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]

    return step


def _product(device: str) -> Callable[[], object]:
    a, b = (torch.randn(SIDE, SIDE, device=device) for _ in range(2))
    return lambda: a @ b


def _measure_seconds(work: Callable[[], object], device: str) -> float:
    """Median seconds of some work."""
    # CPU time of this process, which the load by other programs affects least.
    clock = time.process_time if device == "cpu" else time.perf_counter
    for _ in range(WARM):
        work()
    seconds: list[float] = []
    while len(seconds) < LEAST or sum(seconds) < LONGEST_S:
        begun = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - begun)
    return median(seconds)
