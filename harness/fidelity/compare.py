"""Comparison of a real run's timeline with the simulator's prediction for its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import (  # pyright: ignore[reportMissingTypeStubs]
    ks_2samp,  # pyright: ignore[reportUnknownVariableType]
)

from harness.base.errors import UserError
from harness.experiment.contract import EXECUTED
from harness.experiment.folds import SEARCH
from harness.fidelity.predict import time_passes
from harness.fidelity.replay import (
    config_of,
    load_finished_run,
    named_config,
    refuse_own_loop,
)
from harness.processes.recorder import PAUSE
from harness.simulator.cluster import Cluster
from harness.simulator.timeline import Lag, Spans, Timeline, inner_lag
from harness.simulator.timeline_file import load_timeline
from harness.store.schema import TIMELINE

LEAST_FOLDS = 50
"""Fewest folds in the steady part of a timeline."""

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Behaviour:
    """Throughput and staleness of a cluster, without pauses of its server and for searches.

    Attributes:
        throughput_per_s: folds per second while all workers work.
        lag: staleness and lag while all workers work.
    """

    throughput_per_s: float
    lag: Lag


@dataclass(frozen=True)
class Comparison:
    """A recorded run beside its prediction.

    Attributes:
        recorded, predicted: behaviour of the real and of the simulated cluster.
        unpaced: whether the real processes ran at this machine's speed, not at the cluster's.
    """

    recorded: Behaviour
    predicted: Behaviour
    unpaced: bool = False

    @property
    def throughput_error(self) -> float:
        """Relative error of the predicted throughput, (predicted − recorded) / recorded."""
        return _difference(self.recorded.throughput_per_s, self.predicted.throughput_per_s)

    @property
    def staleness_error(self) -> float:
        """Relative error of the predicted mean staleness.

        Infinite if 0 was recorded and another mean predicted.
        """
        recorded, predicted = self.recorded.lag.staleness, self.predicted.lag.staleness
        return _difference(float(recorded.mean()), float(predicted.mean()))

    @property
    def staleness_distance(self) -> float:
        """Kolmogorov–Smirnov distance of the two distributions of staleness."""
        recorded, predicted = self.recorded.lag.staleness, self.predicted.lag.staleness
        test: Any = ks_2samp(recorded, predicted, method="asymp")  # scipy says no types
        return float(test.statistic)


def compare_to_prediction(
    folder: Path,
    cluster: Cluster | None = None,
    say: Callable[[str], None] = lambda line: None,
    file: Path | None = None,
) -> Comparison:
    """Simulate the cluster of a stored run, and compare the timelines.

    Args:
        folder: folder of the run.
        cluster: cluster to simulate; None for the run's own.
        say: prints a line when the corpus is generated.
        file: run file that it was trained from, for a run with code of a user.

    Raises:
        UserError: no such run, a timeline that is too short, or a kind that is not simulated.
    """
    run = load_finished_run(folder)
    config = refuse_own_loop(run, config_of(run, named_config(file)))
    config, pieces = config.vary(cluster=cluster or config.cluster), config.task.open(config).pieces
    timeline = load_timeline(run.path(TIMELINE))
    predicted = time_passes(config, pieces, len(timeline.folds)).timeline
    recorded, simulated = behaviour(timeline), behaviour(predicted)
    return Comparison(recorded, simulated, run.config.get(EXECUTED, {}).get("paced") is False)


def behaviour(timeline: Timeline) -> Behaviour:
    """Measure the behaviour of a timeline.

    All workers are taken to work except in the first and last folds, three per worker.
    Contributions in flight during a pause are left out of the lag, too.

    Raises:
        UserError: too few folds are left.
    """
    rows, folds = timeline.folded(), len(timeline.folds)
    edge = 3 * len(np.unique(rows.worker))
    if folds < 2 * edge + LEAST_FOLDS:
        raise UserError(f"timeline: {folds} folds; needed: {2 * edge + LEAST_FOLDS}")
    paused_s = _cumulative_pause_s(timeline)
    # No pause between read and fold. Taken from the whole timeline, in which pauses still are.
    steady = paused_s(rows.read_time_s) == paused_s(timeline.folds.time_s[rows.fold])
    steady &= (rows.fold >= edge) & (rows.fold < folds - edge)
    at_work = remove_pauses(timeline)
    times = at_work.folds.time_s
    rate = (folds - 2 * edge) / (times[-edge - 1] - times[edge - 1])
    staleness, lag_s = inner_lag(at_work)
    return Behaviour(float(rate), Lag(staleness[steady], lag_s[steady]))


def remove_pauses(timeline: Timeline) -> Timeline:
    """Remove the pauses of a timeline: times after one are earlier by its duration."""
    paused_s = _cumulative_pause_s(timeline)

    def shift_rows(rows: Any) -> Any:  # one table of the timeline, of its own class
        times = {name: at for name, at in rows.columns().items() if name.endswith("_s")}
        return replace(rows, **{name: at - paused_s(at) for name, at in times.items()})

    busy = replace(timeline, spans=timeline.spans.where(~_is_pause(timeline)))
    return replace(busy, **{name: shift_rows(rows) for name, rows in busy.tables().items()})


def _cumulative_pause_s(timeline: Timeline) -> Callable[[np.ndarray], np.ndarray]:
    """Function from times to the total duration of pauses before each, in seconds."""
    pauses: Spans = timeline.spans.where(_is_pause(timeline))

    def pause_before_s(time_s: np.ndarray) -> np.ndarray:
        return (np.clip(time_s[:, None], pauses.start_s, pauses.end_s) - pauses.start_s).sum(1)

    return pause_before_s


def _is_pause(timeline: Timeline) -> np.ndarray:
    return np.isin(np.array(timeline.kinds)[timeline.spans.kind], (PAUSE, SEARCH))


def format_comparison(comparison: Comparison) -> Iterator[str]:
    """Lines of a table: recorded, predicted and relative difference."""
    recorded, ours = comparison.recorded, comparison.predicted
    if comparison.unpaced:
        yield "not paced: recorded is this machine's speed, predicted the cluster's"
        yield "(--paced waits for the cluster; lagbench calibrate describes this machine)"
    yield f"{'':24}{'recorded':>12}{'predicted':>12}{'difference':>12}"
    yield _row("folds a second", recorded.throughput_per_s, ours.throughput_per_s)
    figures, predicted = _figures(recorded.lag), _figures(ours.lag)
    yield from (_row(label, figures[label], predicted[label]) for label in figures)
    yield f"{'staleness, KS distance':24}{'':24}{comparison.staleness_distance:12.3f}"


def _figures(lag: Lag) -> dict[str, float]:
    quantiles = {f"lag, {q:.0%} quantile, s": float(np.quantile(lag.lag_s, q)) for q in QUANTILES}
    return {"mean staleness": float(lag.staleness.mean()), **quantiles}


def _row(label: str, recorded: float, predicted: float) -> str:
    difference = f"{_difference(recorded, predicted):+.1%}" if recorded else "-"
    return f"{label:24}{recorded:12.4g}{predicted:12.4g}{difference:>12}"


def _difference(recorded: float, predicted: float) -> float:
    """Relative difference, (predicted − recorded) / recorded; infinite if only that is 0."""
    if recorded == 0.0:
        return 0.0 if predicted == 0.0 else float("inf")
    return predicted / recorded - 1.0
