"""Find the rates: every descent at every number of workers, on development data alone.

    python -m reproductions.paper2_ng_averaging.sweep [--out DIR] [--jobs N] [--scale laptop]

A rate is doubled or halved from a first guess until the lowest development frame error lies
between two higher ones, so that no best rate stands at the edge of what was tried. The outcome
is written to ``rates.toml``, which the experiments read.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_synth import load_corpus
from harness.execution.jobs.named import execute_named
from harness.execution.runs.config import RunConfig
from harness.store import Run
from harness.store.atomic import write_bytes
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.experiments import (
    MANY,
    NODES,
    PRESETS,
    RATES,
    trained,
    with_rate,
)

CORPUS, CORPUS_SEED, SEED = "conversational", 0, 100
MAIN = (("ng", 1), ("ng", MANY), ("sgd", 1), ("sgd", MANY))
SETTINGS = (*MAIN, *(("ng", n) for n in NODES if n not in (1, MANY)))
"""Table 6 first: it is the paper's point."""
SORTED = (*(("ng", n) for n in NODES), ("sgd", 1), ("sgd", MANY))
FIRST = {("ng", 4): 2.0, ("ng", 8): 2.0, ("ng", 16): 4.0, ("ng", 32): 4.0}
"""First guesses of a rate, over the number of workers, where not 1."""
MOST_ROUNDS = 6
NAMES = {"ng": "NG-SGD", "sgd": "SGD"}

Setting = tuple[str, int]
Found = dict[Setting, dict[float, float]]
"""Frame error by rate over workers, of each setting; infinite where a run diverged."""
Measure = Callable[[list[tuple[Setting, float]]], list[float]]


def next_to_try(found: Mapping[float, float], first: float) -> list[float]:
    """The rates still to try: three to begin with, then on from the edge that is best.

    Args:
        found: frame error by rate.
        first: where to begin.
    """
    if not found:
        return [first / 2.0, first, first * 2.0]
    best = min(found, key=lambda rate: found[rate])
    around = (best / 2.0, best * 2.0)
    return [rate for rate in around if not any(math.isclose(rate, r) for r in found)]


def searched(measure: Measure, settings: Sequence[Setting] = SETTINGS) -> Found:
    """Settings' errors by rate, each with its lowest between two higher ones.

    Args:
        measure: the frame errors of settings at rates over workers, all at once.
        settings: what to search for.
    """
    found: Found = {setting: {} for setting in settings}
    for _ in range(MOST_ROUNDS):
        wanted = [
            (setting, rate)
            for setting, known in found.items()
            for rate in next_to_try(known, FIRST.get(setting, 1.0))
        ]
        if not wanted:
            break
        for (setting, rate), error in zip(wanted, measure(wanted), strict=True):
            found[setting][rate] = error
    return found


def written(found: Found, scale: str, fingerprint: str) -> str:
    """The outcome as TOML: every error, and the best rates (times workers) by scale."""
    lines = [
        "# Development frame error by first rate of the mean gradient; the best are used.",
        "# Made by python -m reproductions.paper2_ng_averaging.sweep; not edited by hand.",
        "",
        f'corpus = "{CORPUS}, {scale}"',
        f"corpus_seed = {CORPUS_SEED}",
        f'corpus_sha256 = "{fingerprint}"',
        f"seed = {SEED}",
    ]
    for descent in NAMES:
        lines += ["", f"[rates.{scale}.{descent}]"]
        for (name, workers), errors in found.items():
            if name == descent:
                best = min(errors, key=lambda rate: errors[rate])
                lines.append(f"{workers} = {best * workers:g}")
    for (descent, workers), errors in found.items():
        label = f"{NAMES[descent]}, {workers} GPU{'s' if workers > 1 else ''}"
        for rate in sorted(errors):
            lines += ["", "[[tried]]", f'label = "{label}"', f"rate_a_worker = {rate:g}",
                      f"frame_error = {errors[rate]:.4f}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command; returns its exit code."""
    p = argparse.ArgumentParser(prog="sweep", description="Find the rates on development data.")
    p.add_argument("--scale", default="laptop", choices=tuple(PRESETS))
    p.add_argument("--out", type=Path, default=Path("reports/out/paper2/sweep"))
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = p.parse_args()
    corpus = load_corpus(CORPUS, scale=asked.scale, seed=CORPUS_SEED)
    subject = Subject(asked.scale, corpus, CORPUS_SEED, "cpu")

    def measure(wanted: list[tuple[Setting, float]]) -> list[float]:
        configs = {
            f"{descent} {workers} at {rate:g}": configured(subject, descent, workers, rate)
            for (descent, workers), rate in wanted
        }
        runs = execute_named(configs, str, asked.out, asked.jobs)
        return [frame_error(run) for run in runs.values()]

    main_ones = searched(measure, MAIN)
    print(written(main_ones, asked.scale, corpus.fingerprint), flush=True)
    others = searched(measure, [setting for setting in SETTINGS if setting not in MAIN])
    found = {setting: (main_ones | others)[setting] for setting in SORTED}
    write_bytes(RATES, written(found, asked.scale, corpus.fingerprint).encode())
    return 0


def configured(subject: Subject, descent: str, workers: int, rate: float) -> RunConfig:
    """A run of the sweep: as an experiment's, without tests."""
    config = with_rate(trained(subject, SEED, workers, descent), rate * workers)
    return replace(config, tested="never")


def frame_error(run: Run) -> float:
    """The last development frame error; infinite if the run diverged."""
    if run.status != "done":
        return math.inf
    return float(run.summary["dev_frame_error/iterate"])


if __name__ == "__main__":
    sys.exit(main())
