"""How long a user's own step takes here, and how many operations that is worth.

A device of a cluster file is known by the rate it reaches in large products. So a step of ``s``
seconds on a machine that reaches ``r`` operations a second in large products is charged as
``s r`` operations: another device takes them at its own rate.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.modules.network import generators_kept, trained
from harness.modules.problem import Arrays, Problem
from harness.runs.executed import Watch, executed
from harness.store import Run, RunWriter, Store

FORMAT = 1
"""Grows when the same step would be measured otherwise."""

WARM, LEAST, LONGEST_S = 3, 10, 1.0
"""Steps before timing, steps timed at least, and how long timing goes on."""

SIDE = 1024
"""Of the square matrices whose product says what this machine reaches."""


@dataclass(frozen=True)
class StepConfig:
    """A measurement of one machine, made once for each store.

    Args:
        problem: whose step.
        minibatch: examples in it.
        device: ``"cpu"`` or ``"cuda"``.
    """

    problem: Problem
    minibatch: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the identity hashes, the kind of processor among them."""
        step = {key: self.problem.identified()[key] for key in ("model", "loss")}
        size = {"minibatch": self.minibatch, "device": self.device, "format": FORMAT}
        return {"is": "StepConfig", **step, **size, "machine": machine(self.device)}


@executed.register
def timed_step(config: StepConfig, store: Store, watch: Watch) -> Run:
    """The measurement: median seconds of a step and of a large product, operations of both."""
    del watch  # it takes seconds

    def execute(writer: RunWriter) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with generators_kept():
                step_s = _timed(_step(config), config.device)
                product_s = _timed(_product(config.device), config.device)
        finally:
            torch.set_num_threads(threads)
        found = {"step_s": step_s, "flops_per_s": 2.0 * SIDE**3 / product_s}
        writer.finish("done", {**found, "worth_flops": step_s * found["flops_per_s"]})

    return store.obtain(config.to_dict(), execute)


def counted_flops(problem: Problem, minibatch: int) -> float:
    """Operations of the products in one step, as PyTorch counts them."""
    step = _step(StepConfig(problem, minibatch, "cpu"))
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def machine(device: str) -> str:
    """What kind of processor this is."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _step(config: StepConfig) -> Callable[[], object]:
    """One plain step: forward, backward, and the parameters moved."""
    problem, size = config.problem, config.minibatch
    network = problem.network(0, size, config.device)
    model = problem.initial(0).to(config.device)
    module = network.at(model)
    some = Arrays(problem.train.x[:size], problem.train.y[:size]).to(config.device, model.dtype)
    optimizer = torch.optim.SGD(trained(module).values(), 1e-6)

    def step() -> None:
        optimizer.zero_grad()
        problem.loss(module(some.x), some.y).backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]

    return step


def _product(device: str) -> Callable[[], object]:
    a, b = (torch.randn(SIDE, SIDE, device=device) for _ in range(2))
    return lambda: a @ b


def _timed(work: Callable[[], object], device: str) -> float:
    """Median seconds; on a processor its own time, which other programs do not lengthen."""
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
