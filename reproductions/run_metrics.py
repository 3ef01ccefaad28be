"""Readings of finished runs that exhibits and claims share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from harness.judge.builders import NO_ROWS, unless_missing
from harness.judge.interval import Interval
from harness.judge.results import Row
from harness.judge.statistics import Array, mean_ci
from harness.store import Run
from harness.store.schema import TEST_ERRORS


def format_change(change: float, places: int = 0) -> str:
    """A relative change in percent, for a note; a dash where it is not known."""
    return "–" if math.isnan(change) else f"{change:+.{places}%}"


def exponential(logs: Interval) -> Interval:
    """Interval of values from one of base-2 logarithms; open ends stay open."""
    low = 2.0**logs.low if math.isfinite(logs.low) else -math.inf
    return Interval(2.0**logs.estimate, low, 2.0**logs.high)


@unless_missing(math.nan)
def summary_value(run: Run, key: str) -> float:
    """A number of a run's summary; NaN for a run that did not end."""
    return run.summary[key]


def summary_values(
    runs: Sequence[Run], key: str, figures_of: Callable[[Run], Mapping[str, Any]] | None = None
) -> Array:
    """A number of each run's summary, [S]; NaN for a run that has none or did not end.

    Args:
        runs: one for each seed.
        key: the number's name.
        figures_of: returns the summary with figures that are read from other files of a run.
    """

    @unless_missing(math.nan)
    def number(run: Run) -> float:
        return float((figures_of(run) if figures_of else run.summary).get(key, math.nan))

    return np.array([number(run) for run in runs], np.float64)


def hashes(*groups: Sequence[Run]) -> tuple[str, ...]:
    """The runs' hashes, in order, each once."""
    return tuple(dict.fromkeys(run.hash for group in groups for run in group))


@unless_missing(math.nan)
def value_at_epoch(run: Run, name: str, epoch: float) -> float:
    """A metric at one epoch, interpolated between its two nearest readings.

    NaN past its end, and for a run that did not end.
    """
    epochs, values, _ = run.curve(name)
    if epoch > epochs[-1] + 1e-9:
        return float("nan")
    return float(np.interp(epoch, epochs, values))


@unless_missing(math.nan)
def time_at_epoch(run: Run, name: str, epoch: float) -> float:
    """The virtual time in seconds at which a metric was read at one epoch."""
    epochs, _, time_s = run.curve(name)
    return float(np.interp(epoch, epochs, time_s))


def errors_of_utterances(runs: Sequence[Run], key: str | Callable[[Run], str]) -> np.ndarray:
    """Word errors ``[S, U]`` of S runs on a test set of at most U utterances; 0 for missing ones.

    Args:
        runs: one for each seed.
        key: ``test/candidate/stage``, or a function of the run that returns it.
    """
    return _stack_rows([_counts(run, key if isinstance(key, str) else key(run)) for run in runs])


def lengths_of_utterances(runs: Sequence[Run], test: str) -> np.ndarray:
    """Words said in each utterance of a test set.

    ``[U]`` where all runs were tested on the same corpus, else ``[S, U]``, with 0 for utterances
    that a corpus lacks.
    """
    lengths = [_counts(run, f"{test}/lengths") for run in runs]
    if len({run.config.get("fingerprint") for run in runs}) == 1:
        return lengths[0]
    return _stack_rows(lengths)


def _counts(run: Run, name: str) -> np.ndarray:
    path = run.path(TEST_ERRORS)
    return _load_arrays(path, path.stat().st_mtime_ns)[name]


@lru_cache(maxsize=512)
def _load_arrays(path: Path, written_ns: int) -> Mapping[str, np.ndarray]:
    """A file's arrays, read-only and cached: a jackknife reads them for each seed left out."""
    del written_ns  # a file that is written again is another one
    arrays = load_file(path)
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def _stack_rows(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of one length or several, one below the other."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


@unless_missing(NO_ROWS)
def curve_rows(label: str, runs: Sequence[Run], name: str, passes: float = 1.0) -> tuple[Row, ...]:
    """A share's mean over seeds in percent against epochs, at those that every seed reached.

    The reading before training is left out: it is near 100% for all, and would flatten the
    curves. There are no rows where a run did not end.

    Args:
        label: the series.
        runs: one for each seed.
        name: the metric.
        passes: passes over the training set in one epoch of the figure.
    """
    readings = [dict(zip(*run.curve(name)[:2], strict=True)) for run in runs]
    rows: list[Row] = []
    reached = [set(reading) for reading in readings]
    for epoch in sorted(reached[0].intersection(*reached) - {0.0}):
        mean = mean_ci([100.0 * r[epoch] for r in readings])
        x = round(float(epoch) / passes, 6)
        rows.append(Row.from_interval(label, x, None, mean, hashes(runs)))
    return tuple(rows)
