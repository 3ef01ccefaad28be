"""Calibration: measure this machine, and fit the costs of a cluster file.

Three kinds of work of a real run are timed repeatedly: minibatches of several sizes with two
networks, folds, and copies of several sizes between two processes. The time of each is a sum of few
terms, t = Σ p_k x_k with prices p_k ≥ 0 and known multiples x_k, fitted by least squares of the
relative error of the medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Fold
from harness.base import forks
from harness.experiment.task import one_thread
from harness.networks.feedforward import Dnn, Layout, denormals_flushed, random_parameters
from harness.processes.group import SERVER_RANK, Group
from harness.processes.transport import Header, Hub, Kind, Link, fill
from harness.simulator.cluster import Workload


@dataclass(frozen=True)
class Calibration:
    """The costs of this machine, in the units of a cluster file.

    Args:
        launch_s, seconds_per_flop, half_rate_frames: costs of computing; see `Device`.
        latency_s, seconds_per_byte: costs of copies between processes.
        fold_s, fold_seconds_per_byte: costs of folds.
        cv: variation from one computation to the next (standard deviation over mean).
    """

    launch_s: float
    seconds_per_flop: float
    half_rate_frames: float
    latency_s: float
    seconds_per_byte: float
    fold_s: float
    fold_seconds_per_byte: float
    cv: float


def calibrate(say: Callable[[str], None]) -> Calibration:
    """Measure and fit; takes less than a minute.

    Args:
        say: prints the kind of work that is measured next.
    """
    with one_thread():
        with denormals_flushed():
            say("computing: 2 networks, minibatches of 1 to 256 frames")
            computing = list(time_computing())
            say("folds")
            folding = list(time_folding())
        say("copies between two processes")
        copying = time_copying()
    launch, small, flop = fit_costs(computing)
    latency, byte = fit_costs(copying)
    fold, fold_byte = fit_costs(folding)
    half = small / flop if flop > 0.0 else 0.0
    # From the largest minibatch, in which timer and launch matter least.
    largest = computing[-1].seconds
    cv = float(largest.std(ddof=1) / largest.mean())
    return Calibration(launch, flop, half, latency, byte, fold, fold_byte, cv)


def fit_costs(measured: Sequence[Measurement]) -> list[float]:
    """Prices of the terms, none negative, with the least ``‖terms @ prices / seconds − 1‖``."""
    seconds = np.array([np.median(point.seconds) for point in measured])
    relative = np.array([point.terms for point in measured]) / seconds[:, None]
    scale = relative.max(0)  # terms differ by orders of magnitude: equal scales keep it accurate
    prices: Any = cast(Any, optimize).nnls(relative / scale, np.ones(len(seconds)))[0] / scale
    return [float(price) for price in prices]  # scipy says no types


CLUSTER = """\
name = "{name}"

[[workers]]
count = {workers}
device = "this"

[devices.this]
{flops}
half_rate_frames = {costs.half_rate_frames:.4g}
launch_s = {costs.launch_s:.4g}
source = "lagbench calibrate"

[link]
{bandwidth}
latency_s = {costs.latency_s:.4g}
sharing = "fifo"

[server]
fold_s = {costs.fold_s:.4g}
fold_traffic = 3.0

[host]
{memory}

[network]
[[network.levels]]
{bandwidth}
latency_s = {costs.latency_s:.4g}

[jitter]
law = "lognormal"
cv = {costs.cv:.3g}

# The network {network}; --network times another.
[workload]
minibatch_frames = {job.minibatch_frames}
flops_per_frame = {job.flops_per_frame}
parameter_bytes = {job.parameter_bytes}
"""
"""A cluster file. A message of an all-reduce costs as much as one between a worker and the server.
"""


def cluster_text(costs: Calibration, workers: int, name: str) -> str:
    """Text of a cluster file of workers like this machine."""
    return CLUSTER.format(
        name=name,
        workers=workers,
        costs=costs,
        flops=_rate("achieved_flops_per_s", costs.seconds_per_flop),
        bandwidth=_rate("bandwidth_bytes_per_s", costs.seconds_per_byte),
        memory=_rate("memory_bytes_per_s", costs.fold_seconds_per_byte / 3.0),
        network="-".join(map(str, LARGE)),
        job=Workload.of_network(LARGE, 256),
    )


def _rate(key: str, price: float) -> str:
    """Line ``key = value`` of one over a price; a rate without a limit is left out."""
    return f"{key} = {1.0 / price:.4g}" if price > 0.0 else f"# {key}: too fast to be seen"


SMALL, LARGE = (440, 256, 256, 500), (440, 512, 512, 512, 1000)
"""Layer sizes of the timed networks: two, so that the cost of a launch can be separated from the
lower rate of small minibatches."""

MINIBATCHES = (1, 4, 16, 64, 256)

BYTES = (4_000, 64_000, 1_000_000, 4_000_000, 16_000_000)

REPEATS, WARM = 15, 3


@dataclass(frozen=True)
class Measurement:
    """Repeated timings of the same work.

    Args:
        terms: multiples x_k of the prices in its time, ``[terms]``.
        seconds: measured times, ``[repeats]``.
    """

    terms: tuple[float, ...]
    seconds: np.ndarray


def time_computing() -> Iterator[Measurement]:
    """Time minibatches: t = launch + f·h/R + f·b/R, terms 1, f and f·b.

    f is FLOP per frame, b frames, R the rate in FLOP/s, h the frames at which half of R is reached.
    """
    generator = torch.Generator().manual_seed(1)
    for sizes in (SMALL, LARGE):
        net, flops = Dnn(Layout(sizes)), Workload.of_network(sizes, 1).flops_per_frame
        stack = random_parameters(net.layout, generator, 4.0)
        out = torch.empty_like(stack)
        for frames in MINIBATCHES:
            x = torch.randn(1, frames, sizes[0], generator=generator)
            targets = torch.randint(sizes[-1], (1, frames), generator=generator)
            seconds = _time_repeats(partial(net.gradient, stack, x, targets, out), REPEATS)
            yield Measurement((1.0, flops, flops * frames), seconds)


def time_folding() -> Iterator[Measurement]:
    """Time folds: a constant and a price per byte, terms 1 and bytes."""
    algorithm = AsyncSgd()
    for size in BYTES:
        server = algorithm.start(torch.zeros(size // 4))
        contribution = torch.ones(1, size // 4)
        fold = partial(algorithm.fold, server, Fold(contribution, [0], 0.0))
        yield Measurement((1.0, size), _time_repeats(fold, REPEATS))


def time_copying() -> list[Measurement]:
    """Time copies between two processes, as half of a round trip: terms 1 and bytes."""
    with closing(Hub(Group(SERVER_RANK, 2, "127.0.0.1", 0))) as hub:
        group = Group(1, 2, "127.0.0.1", hub.port)
        process = forks.context(__name__).Process(
            target=_return_messages, args=(group, BYTES, REPEATS), daemon=True
        )
        process.start()
        try:
            hub.meet()
            seconds = {
                size: _time_repeats(partial(_exchange, hub, size), REPEATS) for size in BYTES
            }
        finally:
            forks.end([process], 30.0)
    return [Measurement((1.0, size), times / 2.0) for size, times in seconds.items()]


def _exchange(hub: Hub, size: int) -> None:
    """Send a message to the worker, as those of a run, and receive it again."""
    message = torch.empty(size // 4)
    hub.send(0, Header(Kind.WORK), message)
    answer = hub.receive()
    assert answer is not None
    assert answer.header is not None
    fill(message, answer.header, answer.body)


def _return_messages(group: Group, sizes: Sequence[int], repeats: int) -> None:
    """Send every message of the server back."""
    torch.set_num_threads(1)
    with closing(Link(group)) as link:
        for size in sizes:
            message = torch.empty(size // 4)
            for _ in range(WARM + repeats):
                fill(message, *link.receive())
                link.send(Header(Kind.DONE), message)


def _time_repeats(work: Callable[[], object], repeats: int) -> np.ndarray:
    seconds = np.empty(repeats)
    for _ in range(WARM):  # untimed: allocations and caches
        work()
    for i in range(repeats):
        began = time.perf_counter()
        work()
        seconds[i] = time.perf_counter() - began
    return seconds
