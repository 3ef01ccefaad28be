"""Time of one minibatch of asynchronous training in the harness and in plain torch.

The harness runs paper 1's setting: averaged SGD of four workers in the order of a simulated server,
on frames from the whole training speech on the device, spliced as they are gathered. The bare step
in torch is forward, backward and one step of plain SGD, on minibatches spliced beforehand.

`measure` runs the benchmarks in a process of their own, and reads their measurements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.algorithms.async_sgd import AveragedSgd
from harness.bench.comparison import Measurement, read
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, Precision, products_in, random_parameters
from harness.replay.block_replay import BlockReplay
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Simulation, Workload, load_cluster
from harness.speech.frames import Frames
from harness.tasks.order import Order

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"

WORKERS, RATE = 4, 1e-5

CONTEXT, UTTERANCE = 5, 500

READY = 4
"""Number of minibatches that are spliced beforehand for the bare step."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Setting:
    """Network, data and device of a measurement.

    Args:
        layers: units of each layer; the first has the features of eleven frames.
        minibatch: frames in a minibatch.
        speech: frames of training speech on the device.
        device: ``"cpu"`` or ``"cuda"``.
        precision: precision of the matrix products.
    """

    layers: tuple[int, ...]
    minibatch: int
    speech: int
    device: str
    precision: Precision = "float32"

    @property
    def flops(self) -> float:
        """FLOP of a minibatch's gradient: 6 a weight and frame, less 2 for the first layer."""
        weights = [m * n for m, n in pairwise(self.layers)]
        return self.minibatch * (6.0 * sum(weights) - 2.0 * weights[0])


def utterances(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """First row and length of each utterance, all equal except the last."""
    start = np.arange(0, setting.speech, UTTERANCE)
    return start, np.minimum(setting.speech - start, UTTERANCE)


def speech_for(setting: Setting) -> Frames:
    """Random features and targets in utterances of equal length, on the device."""
    draw = np.random.default_rng(0)
    dim = setting.layers[0] // (2 * CONTEXT + 1)
    features = draw.standard_normal((setting.speech, dim), np.float32)
    targets = draw.integers(setting.layers[-1], size=setting.speech)
    return Frames.from_arrays(features, targets, *utterances(setting), CONTEXT, setting.device)


class SimulatedSteps:
    """A simulated run in progress, to be timed in parts.

    Args:
        setting: network, data and device.
        speech: frames on the device.
        in_blocks: whether the device launches folds in blocks.
    """

    def __init__(self, setting: Setting, speech: Frames, in_blocks: bool = False) -> None:
        self._frames = speech
        self._order = Order(0, 0, *utterances(setting), setting.minibatch)
        workload = Workload.of_network(setting.layers, setting.minibatch)
        cluster = load_cluster(CLUSTER)
        self._simulation = Simulation(cluster, "parameter_server", workload, WORKERS, seed=0)
        layout, algorithm = Layout(setting.layers), AveragedSgd()
        model = initial(layout).to(setting.device)
        parts = algorithm, Dnn(layout, precision=setting.precision), algorithm.start(model)
        self.replay = (
            BlockReplay(*parts, self.minibatch_of)
            if in_blocks
            else StaleReplay(*parts, self.minibatch_of, WORKERS)
        )

    def minibatch_of(self, keys: Sequence[tuple[int, int]]) -> Minibatch:
        """Spliced frames of minibatches in the order of a run, pass after pass."""
        steps = [(worker, step % self._order.steps) for worker, step in keys]
        return self._frames.gather(torch.as_tensor(self._order.rows_of(steps)))

    def run(self, folds: int) -> None:
        """Execute the next ``folds`` folds, one minibatch each."""
        self.replay.run(self._simulation.advance(folds=folds), RATE)


class BareSteps:
    """The same network and minibatches trained by plain torch: autograd and `torch.optim.SGD`.

    Args:
        setting: network, data and device.
        minibatches: spliced minibatches on the device.
    """

    def __init__(self, setting: Setting, minibatches: Sequence[Minibatch]) -> None:
        self._setting, self._minibatches = setting, cycle(minibatches)
        layout = Layout(setting.layers)
        levels = [torch.nn.Linear(m, n) for m, n in pairwise(setting.layers)]
        with torch.no_grad():
            for linear, layer in zip(levels, layout.views(initial(layout)[None]), strict=True):
                linear.weight.copy_(layer.weight[0])
                linear.bias.copy_(layer.bias[0])
        between = [each for linear in levels[:-1] for each in (linear, torch.nn.Sigmoid())]
        self.net = torch.nn.Sequential(*between, levels[-1]).to(setting.device)
        self._descent = torch.optim.SGD(self.net.parameters(), lr=RATE)

    def run(self, steps: int) -> None:
        """Execute the next ``steps`` steps."""
        kind, narrow = self._setting.device, self._setting.precision == "bf16"
        with products_in(self._setting.precision):
            for _ in range(steps):
                x, targets = next(self._minibatches)
                self._descent.zero_grad(set_to_none=False)
                with torch.autocast(kind, torch.bfloat16) if narrow else nullcontext():
                    logits = self.net(x[0])
                loss = cross_entropy(logits.float(), targets[0], reduction="sum")
                loss.backward()  # pyright: ignore[reportUnknownMemberType]
                self._descent.step()  # pyright: ignore[reportUnknownMemberType]


def initial(layout: Layout) -> Tensor:
    """Initial parameters ``[P]``, the same for both."""
    return random_parameters(layout, torch.Generator().manual_seed(0))[0]


def pair(setting: Setting) -> tuple[SimulatedSteps, BareSteps]:
    """The simulated and the bare steps, on the same frames."""
    ours = SimulatedSteps(setting, speech_for(setting))
    return ours, BareSteps(setting, [ours.minibatch_of([(0, step)]) for step in range(READY)])


def time_work(work: Callable[[], object], device: str, clock: Clock = time.perf_counter) -> float:
    """Seconds of some work, including all that it launches on the device."""
    _wait_for(device)
    began = clock()
    work()
    _wait_for(device)
    return clock() - began


def time_in_turns(
    works: Sequence[Callable[[], object]],
    device: str,
    rounds: int,
    clock: Clock = time.perf_counter,
) -> list[list[float]]:
    """Seconds of each work ``[works][rounds]``, in turns, so that all have the same load."""
    for work in works:
        time_work(work, device, clock)
    turns = [[time_work(work, device, clock) for work in works] for _ in range(rounds)]
    return [list(column) for column in zip(*turns, strict=True)]


def median_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Median over rounds of the time of the first over that of the second."""
    return median(a / b for a, b in zip(one, other, strict=True))


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


BENCHMARKS = Path("tests") / "benchmarks"

OPTIONS = (
    "--benchmark-enable",
    "--benchmark-only",
    "--benchmark-max-time=0.3",
    "--benchmark-min-rounds=3",
    "--benchmark-quiet",
    "--quiet",
    "--no-header",
    "-rfE",
)


class BenchmarkError(Exception):
    """A benchmark failed its own checks, or could not be collected."""


@dataclass(frozen=True)
class Run:
    """Result of one run of the benchmarks.

    Args:
        measured: measurements by benchmark.
        skipped: benchmarks that were skipped because they cannot run here.
        seconds: median time of each benchmark, which is not compared.
    """

    measured: dict[str, Measurement]
    skipped: tuple[str, ...]
    seconds: dict[str, float]


def measure(root: Path, names: Sequence[str] = (), extra: Sequence[str] = ()) -> Run:
    """Run all benchmarks of a source tree, or those named, in one thread.

    Args:
        root: the source tree.
        names: pytest names, relative to ``root``; none for all.
        extra: further options for pytest.

    Raises:
        BenchmarkError: with pytest's exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        told, ended = Path(folder) / "told.json", Path(folder) / "ended.xml"
        files = (f"--benchmark-json={told}", f"--junitxml={ended}")
        command = [sys.executable, "-m", "pytest", *(names or [str(BENCHMARKS)]), *OPTIONS]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # Inside a worker of pytest-xdist, pytest-benchmark would disable itself.
        here = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
        done = subprocess.run(
            [*command, *files, *extra], cwd=root, env={**here, **threads}, check=False
        )
        if done.returncode != 0:
            raise BenchmarkError(f"pytest ended with {done.returncode}")
        # If all benchmarks were skipped, the JSON file is missing or empty.
        text = told.read_text(encoding="utf-8") if told.is_file() else ""
        each: list[dict[str, Any]] = json.loads(text)["benchmarks"] if text.strip() else []
        measured = {str(one["fullname"]): read(one["extra_info"]) for one in each}
        seconds = {str(one["fullname"]): float(one["stats"]["median"]) for one in each}
        return Run(measured, tuple(find_skipped(ended.read_text(encoding="utf-8"))), seconds)


def find_skipped(junit: str) -> Iterable[str]:
    """The pytest names of the tests that were skipped, from a report in JUnit's format."""
    for case in ElementTree.fromstring(junit).iter("testcase"):
        if case.find("skipped") is not None:
            file = case.attrib["classname"].replace(".", "/")
            yield f"{file}.py::{case.attrib['name']}"
