"""Calibration: measure this machine, and fit the costs of a cluster file.

Three kinds of work of a real run are timed repeatedly: minibatches of several sizes with two
networks, folds, and copies of several sizes between two processes. The time of each is a sum of few
terms, t = Σ p_k x_k with prices p_k ≥ 0 and known multiples x_k, fitted by least squares of the
relative error. The intervals come from refits to resampled repetitions.
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
from harness.base.seeds import stream
from harness.networks.feedforward import Dnn, Layout, denormals_flushed, random_parameters
from harness.processes.group import SERVER_RANK, Group
from harness.processes.transport import Header, Hub, Kind, Link, fill
from harness.simulator import Workload

RESAMPLES = 300
"""Refits for an interval."""


@dataclass(frozen=True)
class CostEstimate:
    """A fitted cost, and the interval of 95% of the refits to resampled repetitions."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """The costs of this machine, in the units of a cluster file.

    Args:
        launch_s, seconds_per_flop, half_rate_frames: costs of computing; see `Device`.
        latency_s, seconds_per_byte: costs of copies between processes.
        fold_s, fold_seconds_per_byte: costs of folds.
        cv: variation from one computation to the next (standard deviation over mean).
    """

    launch_s: CostEstimate
    seconds_per_flop: CostEstimate
    half_rate_frames: CostEstimate
    latency_s: CostEstimate
    seconds_per_byte: CostEstimate
    fold_s: CostEstimate
    fold_seconds_per_byte: CostEstimate
    cv: float


def calibrate(say: Callable[[str], None]) -> Calibration:
    """Measure and fit; takes less than a minute.

    Args:
        say: prints the kind of work that is measured next.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with denormals_flushed():
            say("computing: 2 networks, minibatches of 1 to 256 frames")
            computing = list(time_computing())
            say("folds")
            folding = list(time_folding())
        say("copies between two processes")
        copying = time_copying()
    finally:
        torch.set_num_threads(threads)
    launch, small, flop = fit_costs(computing)
    latency, byte = fit_costs(copying)
    fold, fold_byte = fit_costs(folding)
    half = CostEstimate(*(_ratio(a, flop.value) for a in (small.value, small.low, small.high)))
    # From the largest minibatch, in which timer and launch matter least.
    largest = computing[-1].seconds
    cv = float(largest.std(ddof=1) / largest.mean())
    return Calibration(launch, flop, half, latency, byte, fold, fold_byte, cv)


def fit_costs(measured: Sequence[Measurement]) -> list[CostEstimate]:
    """Fit the price of each term, ≥ 0, to the medians of the repetitions."""
    terms = np.array([point.terms for point in measured])
    best = _fit(terms, np.array([np.median(point.seconds) for point in measured]))
    draws = stream(0, "calibration")
    refits = [
        _fit(
            terms, np.array([np.median(draws.choice(p.seconds, len(p.seconds))) for p in measured])
        )
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(refits, (2.5, 97.5), axis=0)
    return [CostEstimate(*map(float, figures)) for figures in zip(best, low, high, strict=True)]


def _fit(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative prices that minimise ``‖terms @ prices / seconds − 1‖``."""
    relative = terms / seconds[:, None]
    scale = relative.max(0)  # terms differ by orders of magnitude: equal scales keep it accurate
    ones = np.ones(len(seconds))
    return cast(Any, optimize).nnls(relative / scale, ones)[0] / scale  # scipy says no types


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0.0 else 0.0


CLUSTER = """\
name = "{name}"

[[workers]]
count = {workers}
device = "this"

[devices.this]
{flops}
{half_rate}
{launch}
source = "lagbench calibrate"

[link]
{bandwidth}
{latency}
sharing = "fifo"

[server]
{fold}
fold_traffic = 3.0

[host]
{memory}

[network]
[[network.levels]]
{bandwidth}
{latency}

[jitter]
law = "lognormal"
cv = {cv:.3g}

# The network {network}; --network times another.
[workload]
minibatch_frames = {job.minibatch_frames}
flops_per_frame = {job.flops_per_frame}
parameter_bytes = {job.parameter_bytes}
"""
"""A cluster file. A message of an all-reduce costs as much as one between a worker and the server.
"""


def cluster_text(costs: Calibration, workers: int, name: str) -> str:
    """Text of a cluster file of workers like this machine, with the intervals as comments."""
    return CLUSTER.format(
        name=name,
        workers=workers,
        flops=_line("achieved_flops_per_s", costs.seconds_per_flop, inverse=True),
        half_rate=_line("half_rate_frames", costs.half_rate_frames),
        launch=_line("launch_s", costs.launch_s),
        bandwidth=_line("bandwidth_bytes_per_s", costs.seconds_per_byte, inverse=True),
        latency=_line("latency_s", costs.latency_s),
        fold=_line("fold_s", costs.fold_s),
        memory=_line("memory_bytes_per_s", costs.fold_seconds_per_byte, inverse=True, times=3.0),
        cv=costs.cv,
        network="-".join(map(str, LARGE)),
        job=Workload.of_network(LARGE, 256),
    )


def _line(key: str, price: CostEstimate, *, inverse: bool = False, times: float = 1.0) -> str:
    """Line ``key = value`` with the interval as a comment; a rate without a limit is left out."""
    if not inverse:
        return f"{key} = {price.value:.4g}  # {price.low:.4g} to {price.high:.4g}"
    if price.value <= 0.0:
        return f"# {key}: too fast to be seen"
    high = f"{times / price.low:.4g}" if price.low > 0.0 else "beyond measure"
    return f"{key} = {times / price.value:.4g}  # {times / price.high:.4g} to {high}"


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
