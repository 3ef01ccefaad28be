"""What a real run's timeline says, beside what the simulator predicts for its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import (  # pyright: ignore[reportMissingTypeStubs]
    ks_2samp,  # pyright: ignore[reportUnknownVariableType]
)

from harness.base.errors import UserError
from harness.fidelity.replay import config_of, load_finished_run
from harness.processes.recorder import PAUSE
from harness.runs.config import SEARCH
from harness.simulator import Cluster, Spans, Timeline
from harness.simulator.timeline import Lag
from harness.simulator.timeline_file import load_timeline
from harness.store.schema import TIMELINE
from harness.tasks.contract import EXECUTED, Reads

LEAST_FOLDS = 50

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Behaviour:
    """How a cluster behaved, without the pauses of its server and those for searches.

    Attributes:
        throughput_per_s: folds a second while all workers were at work.
        lags: staleness and lag from each read, by its name: ``inner`` while all were at work, the
            others of the whole run.
    """

    throughput_per_s: float
    lags: Mapping[str, Lag]


@dataclass(frozen=True)
class Comparison:
    """A recorded run beside its prediction.

    Attributes:
        recorded, predicted: how the run went, and how it should have.
        unpaced: whether real processes took the time that they needed, whatever the cluster says.
    """

    recorded: Behaviour
    predicted: Behaviour
    unpaced: bool = False

    @property
    def throughput_error(self) -> float:
        """Of the prediction, relative to what was recorded."""
        return _difference(self.recorded.throughput_per_s, self.predicted.throughput_per_s)

    @property
    def staleness_error(self) -> float:
        """Of the mean since the inner read, relative; infinite if 0 was recorded, and is not."""
        there, ours = (b.lags["inner"].staleness for b in (self.recorded, self.predicted))
        return _difference(float(there.mean()), float(ours.mean()))

    def staleness_distance(self, name: str = "inner") -> float:
        """Kolmogorov and Smirnov's: the largest difference of the two distributions."""
        there, ours = (b.lags[name].staleness for b in (self.recorded, self.predicted))
        found: Any = ks_2samp(there, ours, method="asymp")  # scipy says no types
        return float(found.statistic)


def compare_to_prediction(
    folder: Path, cluster: Cluster | None = None, say: Callable[[str], None] = lambda line: None
) -> Comparison:
    """A stored run beside a simulated one.

    Args:
        folder: of the run.
        cluster: predicts; None for the run's own.
        say: told when the corpus is made.

    Raises:
        UserError: no such run, its record is too short, or of a kind that is not simulated.
    """
    run = load_finished_run(folder)
    config = config_of(run)
    application = config.application
    pieces = application.pieces(config, application.load(config, say))
    timeline = load_timeline(run.path(TIMELINE))
    predicted = application.time_again(config.with_cluster(cluster), pieces, run, timeline)
    there, ours = (behaviour(each, config.reads()) for each in (timeline, predicted))
    return Comparison(there, ours, run.config.get(EXECUTED, {}).get("paced") is False)


def behaviour(timeline: Timeline, reads: Reads) -> Behaviour:
    """How a cluster behaved.

    All workers are at work but for the first and last folds, three a worker. Of the inner lag,
    whatever was under way during a pause is left out too.

    Raises:
        UserError: too few folds are left.
    """
    rows, folds = timeline.folded(), len(timeline.folds)
    edge = 3 * len(np.unique(rows.worker))
    if folds < 2 * edge + LEAST_FOLDS:
        raise UserError(f"timeline: {folds} folds; needed: {2 * edge + LEAST_FOLDS}")
    paused_s = _cumulative_pause_s(timeline)
    steady = paused_s(rows.read_time_s) == paused_s(timeline.folds.time_s[rows.fold])
    steady &= (rows.fold >= edge) & (rows.fold < folds - edge)
    at_work = remove_pauses(timeline)
    times = at_work.folds.time_s
    rate = (folds - 2 * edge) / (times[-edge - 1] - times[edge - 1])
    lags = {name: read(at_work) for name, read in reads.items()}
    staleness, lag_s = lags["inner"]
    return Behaviour(float(rate), {**lags, "inner": Lag(staleness[steady], lag_s[steady])})


def remove_pauses(timeline: Timeline) -> Timeline:
    """A timeline without its pauses: what came after one comes so much earlier."""
    paused_s = _cumulative_pause_s(timeline)

    def shift_rows(rows: Any) -> Any:  # one table of the timeline, of its own class
        times = {name: at for name, at in rows.columns().items() if name.endswith("_s")}
        return replace(rows, **{name: at - paused_s(at) for name, at in times.items()})

    busy = replace(timeline, spans=timeline.spans.where(~_is_pause(timeline)))
    return replace(busy, **{name: shift_rows(rows) for name, rows in busy.tables().items()})


def _cumulative_pause_s(timeline: Timeline) -> Callable[[np.ndarray], np.ndarray]:
    """For instants, how long the server had paused before each."""
    pauses: Spans = timeline.spans.where(_is_pause(timeline))

    def pause_before_s(time_s: np.ndarray) -> np.ndarray:
        return (np.clip(time_s[:, None], pauses.start_s, pauses.end_s) - pauses.start_s).sum(1)

    return pause_before_s


def _is_pause(timeline: Timeline) -> np.ndarray:
    return np.isin(np.array(timeline.kinds)[timeline.spans.kind], (PAUSE, SEARCH))


def format_comparison(found: Comparison) -> Iterator[str]:
    """Lines of a table: recorded, predicted and how they differ."""
    there, ours = found.recorded, found.predicted
    if found.unpaced:
        yield "not paced: recorded is this machine's speed, predicted the cluster's"
        yield "(--paced waits for the cluster; lagbench calibrate describes this machine)"
    yield f"{'':24}{'recorded':>12}{'predicted':>12}{'difference':>12}"
    yield _row("folds a second", there.throughput_per_s, ours.throughput_per_s)
    for name in there.lags:
        figures, predicted = (_figures(name, b.lags[name]) for b in (there, ours))
        yield from (_row(label, figures[label], predicted[label]) for label in figures)
        label = "staleness" if name == "inner" else name
        distance = found.staleness_distance(name)
        yield f"{label + ', KS distance':24}{'':24}{distance:12.3f}"


def _figures(name: str, lag: Lag) -> dict[str, float]:
    staleness = float(lag.staleness.mean())
    if name != "inner":
        return {f"mean {name} staleness": staleness, f"mean {name} lag, s": float(lag.lag_s.mean())}
    quantiles = {f"lag, {q:.0%} quantile, s": float(np.quantile(lag.lag_s, q)) for q in QUANTILES}
    return {"mean staleness": staleness, **quantiles}


def _row(label: str, recorded: float, predicted: float) -> str:
    difference = f"{_difference(recorded, predicted):+.1%}" if recorded else "-"
    return f"{label:24}{recorded:12.4g}{predicted:12.4g}{difference:>12}"


def _difference(recorded: float, predicted: float) -> float:
    """Relative to what was recorded; infinite where that is 0 and the other is not."""
    if recorded == 0.0:
        return 0.0 if predicted == 0.0 else float("inf")
    return predicted / recorded - 1.0
