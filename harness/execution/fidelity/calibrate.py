"""Measure this machine, and fit the costs of a cluster file to what was measured.

Four costs are timed as a real run has them (see `measure`). Each is a sum of few terms, so the
terms are fitted by least squares of the relative error, none below zero; the intervals come from
fitting again to resampled repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

from harness.base.seeds import stream
from harness.execution.fidelity import measure
from harness.execution.fidelity.measure import Measured
from harness.networks.feedforward import denormals_flushed
from harness.simulator import Workload

RESAMPLES = 300


@dataclass(frozen=True)
class Fitted:
    """A figure and the interval that 95% of the refits to resampled repetitions lie in."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """The costs of this machine, in the units of a cluster file.

    Args:
        launch_s, seconds_per_flop, half_rate_frames: of computing; see `Device`.
        latency_s, seconds_per_byte: of copies between processes.
        fold_s, fold_seconds_per_byte: of folds.
        message_s, message_seconds_per_byte: of the messages of an all-reduce, which gloo makes
            as a ring; adding up what was received is not in it.
        cv: variation from one computation to the next (standard deviation over mean).
    """

    launch_s: Fitted
    seconds_per_flop: Fitted
    half_rate_frames: Fitted
    latency_s: Fitted
    seconds_per_byte: Fitted
    fold_s: Fitted
    fold_seconds_per_byte: Fitted
    message_s: Fitted
    message_seconds_per_byte: Fitted
    cv: float


def calibrate(say: Callable[[str], None]) -> Calibration:
    """Measure and fit; about a minute.

    Args:
        say: told what is being measured.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with denormals_flushed():
            say("computing: 2 networks, minibatches of 1 to 256 frames")
            computing = list(measure.computing())
            say("folds")
            folding = list(measure.folding())
        say("copies between two processes")
        copying = measure.copying()
        say(f"all-reduces among {measure.RANKS[0]} to {measure.RANKS[-1]} processes")
        reducing = measure.reducing()
    finally:
        torch.set_num_threads(threads)
    launch, small, flop = fitted(computing)
    latency, byte = fitted(copying)
    fold, fold_byte = fitted(folding)
    message, message_byte = fitted([_messages_of(point, fold_byte.value) for point in reducing])
    half = Fitted(*(_ratio(a, flop.value) for a in (small.value, small.low, small.high)))
    largest = computing[-1].seconds
    cv = float(largest.std(ddof=1) / largest.mean())
    return Calibration(
        launch, flop, half, latency, byte, fold, fold_byte, message, message_byte, cv
    )


def fitted(measured: Sequence[Measured]) -> list[Fitted]:
    """The price of each term, from the medians of the repetitions, each ≥ 0."""
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
    return [Fitted(*map(float, figures)) for figures in zip(best, low, high, strict=True)]


def _fit(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Non-negative prices that make ``terms @ prices / seconds`` as near 1 as can be."""
    relative = terms / seconds[:, None]
    scale = relative.max(0)
    ones = np.ones(len(seconds))
    return cast(Any, optimize).nnls(relative / scale, ones)[0] / scale  # scipy says no types


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0.0 else 0.0


def _messages_of(point: Measured, add_s_per_byte: float) -> Measured:
    """An all-reduce without its additions, which the simulator charges apart.

    Half of the messages of a ring are added up. At least a tenth is left: an addition from the
    cache may be quicker than a fold.
    """
    adding = point.terms[1] / 2.0 * add_s_per_byte
    return Measured(point.terms, np.maximum(point.seconds - adding, point.seconds / 10.0))


def cluster_text(found: Calibration, workers: int, name: str) -> str:
    """A cluster file of so many workers like this machine, with the intervals as comments."""
    lines = [f'name = "{name}"', "", "[[workers]]", f"count = {workers}", 'device = "this"', ""]
    lines += [
        "[devices.this]",
        _line("achieved_flops_per_s", found.seconds_per_flop, inverse=True),
        _line("half_rate_frames", found.half_rate_frames),
        _line("launch_s", found.launch_s),
        'source = "lagbench calibrate"',
        "",
        "[link]",
        _line("bandwidth_bytes_per_s", found.seconds_per_byte, inverse=True),
        _line("latency_s", found.latency_s),
        'sharing = "fifo"',
        "",
        "[server]",
        _line("fold_s", found.fold_s),
        "fold_traffic = 3.0",
        "",
        "[host]",
        _line("memory_bytes_per_s", found.fold_seconds_per_byte, inverse=True, times=3.0),
        "",
        "[network]",
        "[[network.levels]]",
        _line("bandwidth_bytes_per_s", found.message_seconds_per_byte, inverse=True),
        _line("latency_s", found.message_s),
        "",
        "[jitter]",
        'law = "lognormal"',
        f"cv = {found.cv:.3g}",
        "",
    ]
    job = Workload.of_network(measure.LARGE, 256)
    lines += [
        f"# The network {'-'.join(map(str, measure.LARGE))}; --network times another.",
        "[workload]",
        f"minibatch_frames = {job.minibatch_frames}",
        f"flops_per_frame = {job.flops_per_frame}",
        f"parameter_bytes = {job.parameter_bytes}",
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, price: Fitted, *, inverse: bool = False, times: float = 1.0) -> str:
    """``key = value``, with the interval behind it; a price of zero for a rate leaves it out."""
    if not inverse:
        return f"{key} = {price.value:.4g}  # {price.low:.4g} to {price.high:.4g}"
    if price.value <= 0.0:
        return f"# {key}: too fast to be seen"
    high = f"{times / price.low:.4g}" if price.low > 0.0 else "beyond measure"
    return f"{key} = {times / price.value:.4g}  # {times / price.high:.4g} to {high}"
