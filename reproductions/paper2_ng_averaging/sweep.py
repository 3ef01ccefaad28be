"""Search for the learning rate of every compared setting, on development data alone.

    python -m reproductions.paper2_ng_averaging.sweep [--scale laptop] [--only NAME,...] [--jobs N]

A setting's rate is doubled or halved from its value in ``rates.toml`` until the lowest
development frame error lies between two higher ones, so that no best rate is at the edge of the
tried ones, and until a rate below it is clearly worse: where ``max_change`` binds, rates are
nearly alike, and chance decides which is lowest. For many workers, the best rate of one times
their number is tried too, which is the paper's own rule. The runs are in the store of that scale's
report, which shows each rate with its half and its double; a stopped search finds them there and
resumes. The outcome is written to ``rates.toml``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_synth import load_corpus
from harness import argument_types
from harness.base.errors import name_error
from harness.grid.display import execute_named
from harness.speech.frames import RunConfig
from harness.store import Run
from harness.store.files import write_bytes
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper2_ng_averaging.experiments import (
    MANY,
    RATES,
    SEARCHED,
    SEARCHED_CELLS,
    SWEPT_AT,
    build_configs,
    load_rates,
    with_rate,
)

CORPUS = "conversational"
MOST_ROUNDS = 16
CLEARLY = 0.01
"""An error larger by this share ends the way down: half a point at 50%. A choice, not a test."""
FRAME_ERROR = "dev_frame_error/iterate"
NEWBOB, AS_LONG = f"newbob_{MANY}", ("exponential_1", f"exponential_{MANY}")

Errors = dict[str, dict[float, float]]
"""Frame error by rate, of each setting; infinite where a run diverged."""
Measure = Callable[[Sequence[tuple[str, float]]], list[float]]


def next_to_try(
    known: Mapping[float, float], first: float, ruled: float | None = None
) -> list[float]:
    """The rates still to try: three to begin with, then further ones from the best edge.

    Downwards until one is clearly worse than the best. Not so upwards: where ``max_change``
    binds, all larger rates are alike, and the search would not end.

    Args:
        known: frame error by rate.
        first: first rate.
        ruled: rate by the paper's rule, if known: a search that ends on a plateau far above it
            has not tried the better rates that may lie below.
    """
    if not known:
        return [first / 2.0, first, first * 2.0]
    if ruled is not None and _find_error(known, ruled) is None:
        return [ruled]
    best = best_rate(known)
    below = best / 2.0
    while (error := _find_error(known, below)) is not None and error <= (1.0 + CLEARLY) * known[
        best
    ]:
        below /= 2.0
    return [rate for rate in (below, best * 2.0) if _find_error(known, rate) is None]


def _find_error(known: Mapping[float, float], rate: float) -> float | None:
    """The error at a rate, if it has been tried."""
    return next((error for each, error in known.items() if math.isclose(each, rate)), None)


def best_rate(known: Mapping[float, float]) -> float:
    """The rate of the lowest error."""
    return min(known, key=lambda rate: known[rate])


def search(
    measure: Measure, names: Sequence[str], first: Mapping[str, float], workers: Mapping[str, int]
) -> Errors:
    """Settings' errors by rate, each with its lowest between two higher ones.

    Args:
        measure: the frame errors of settings at rates, all at once.
        names: the settings.
        first: first rate of each; the known rate of settings that are not searched for.
        workers: number of workers of each.
    """
    errors: Errors = {name: {} for name in names}

    def rate_by_rule(name: str) -> float | None:
        one = single_worker_setting(name)
        if workers[name] == 1:
            return None
        if one not in errors:
            return workers[name] * first[one]
        settled = errors[one] and not next_to_try(errors[one], first[one])
        return workers[name] * best_rate(errors[one]) if settled else None

    for _ in range(MOST_ROUNDS):
        wanted = [
            (name, rate)
            for name, known in errors.items()
            for rate in next_to_try(known, first[name], rate_by_rule(name))
        ]
        if not wanted:
            break
        for (name, rate), error in zip(wanted, measure(wanted), strict=True):
            errors[name][rate] = error
    return errors


def single_worker_setting(name: str) -> str:
    """The setting of one worker that is trained as this one of many.

    Example:
        >>> settings = "random_32", "every_20", "gradients", "bmuf_many_quarter"
        >>> tuple(map(single_worker_setting, settings))
        ('random_1', 'ng_1', 'sgd_1', 'serial_quarter')
    """
    if name in SEARCHED_CELLS:
        return SEARCHED_CELLS[0]
    same = f"{name.split('_')[0]}_1"
    return same if same in SEARCHED else {"gradients": "sgd_1"}.get(name, "ng_1")


def format_rates(scales: Mapping[str, Mapping[str, Any]]) -> str:
    """Passes of newbob and rates by setting, of every scale, as TOML."""
    lines = [
        "# First rates of the mean gradient: each has the lowest development frame error of",
        "# itself, its half and its double. Made by",
        "# python -m reproductions.paper2_ng_averaging.sweep; exhibit p2.rates shows the runs.",
    ]
    for scale, own in scales.items():
        lines += ["", f"[{scale}]", f"newbob_passes = {own['newbob_passes']}"]
        if own.get("unsearched"):
            lines += ["# Rates where their search begins, and nothing has been run:"]
            lines += [f"unsearched = {json.dumps(own['unsearched'])}"]
        lines += [f"[{scale}.rates]"]
        lines += [f"{name} = {rate:g}" for name, rate in own["rates"].items()]
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="sweep", description="Find the rates on development data.")
    p.add_argument("--scale", default="laptop", choices=sorted(set(SWEPT_AT.values())))
    p.add_argument("--only", default="", help="settings, with commas; all if not given")
    p.add_argument("--out", type=Path, help="the report's folder, reports/out/paper2/SCALE")
    p.add_argument("--jobs", type=argument_types.count, default=os.cpu_count() or 1)
    return p


def main() -> int:
    """Run the command; returns its exit code."""
    asked = parser().parse_args()
    store = (asked.out or Path("reports/out/paper2") / asked.scale) / "runs"
    corpus = load_corpus(CORPUS, scale=asked.scale, seed=DEVELOPMENT)
    subject = Subject(asked.scale, corpus, DEVELOPMENT, "cpu")
    only = [name for name in asked.only.split(",") if name] or list(SEARCHED)
    for name in only:
        if name not in SEARCHED:
            raise name_error("--only", name, SEARCHED)
    for names in group_by_dependency(only):
        settings = build_configs(subject, DEVELOPMENT)  # with what the searches before have found
        tried = RateTrials(settings, store, asked.jobs)
        first = {name: each.schedule.rate for name, each in settings.items()}
        workers = {name: each.workers for name, each in settings.items()}
        errors = search(tried.errors, names, first, workers)
        keep(asked.scale, tried, {name: best_rate(known) for name, known in errors.items()})
    return 0


@dataclass
class RateTrials:
    """Runs of settings at rates, and their store."""

    settings: Mapping[str, RunConfig]
    store: Path
    jobs: int
    runs: dict[tuple[str, float], Run] = field(default_factory=dict[tuple[str, float], Run])

    def errors(self, wanted: Sequence[tuple[str, float]]) -> list[float]:
        """The development frame errors of settings at rates."""
        configs = {
            each: replace(with_rate(self.settings[each[0]], each[1]), tested="never")
            for each in wanted
        }
        self.runs |= execute_named(
            configs, lambda e: f"{e[0]} from {e[1]:g}", self.store, self.jobs
        )
        return [frame_error(self.runs[each]) for each in wanted]


def group_by_dependency(names: Sequence[str]) -> list[list[str]]:
    """Settings that may be searched at once: the exponential schedule waits for newbob's passes."""
    groups = [name for name in names if name not in AS_LONG], [n for n in names if n in AS_LONG]
    return [group for group in groups if group]


def keep(scale: str, tried: RateTrials, best: Mapping[str, float]) -> None:
    """Write the rates found; those of other settings and scales stay in the file."""
    known = tomllib.loads(RATES.read_text(encoding="utf-8"))
    own = known.setdefault(scale, {"newbob_passes": 0, "rates": {}})
    own["rates"] |= best
    own["unsearched"] = [name for name in own.get("unsearched", []) if name not in best]
    if NEWBOB in best:
        own["newbob_passes"] = tried.runs[NEWBOB, best[NEWBOB]].summary["passes"]
    write_bytes(RATES, format_rates(known).encode())
    load_rates.cache_clear()


def frame_error(run: Run) -> float:
    """The last development frame error; infinite if the run diverged."""
    return float(run.summary[FRAME_ERROR]) if run.status == "done" else math.inf


if __name__ == "__main__":
    sys.exit(main())
