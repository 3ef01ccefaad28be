"""Distance of each default run of a paper from divergence, on development seeds.

    python -m reproductions.margins paper3 [--scale smoke] [--factors 1,1.5,2] [--seeds 100,101]

Every run that a verdict or a figure needs is trained at multiples of its learning rate, and so is
the run it starts from. Runs that are needed only for whether they diverge are left out. Seeds
from 100 to 999, each with its corpus, are for development: no verdict uses them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from data_synth import load_corpus
from data_synth.corpus import Corpus
from harness import argument_types
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError, name_error
from harness.base.seeds import identity
from harness.cli import Parser, exit_code
from harness.grid.display import execute_named
from harness.kernels import notice
from harness.rollouts.rollout_config import RolloutConfig
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig
from harness.store import Run
from reproductions.command import PAPERS
from reproductions.paper import DEVELOPMENT, NO_CORPUS, Paper, Subject, corpus_without_speech

SEEDS = (DEVELOPMENT, DEVELOPMENT + 1)
VERDICTS = 1000
"""First seed of verdicts; smaller ones are for development."""
LAST = ("held_out_criterion", "dev_loss/average", "dev_loss/iterate", "score")
"""Metrics of an outcome, of which the first present is used: sequence run, average, SGD, policy."""
Trained = RunConfig | SequenceConfig | RolloutConfig


def default_runs(
    paper: Paper, subject: Subject, seed: int, only: Sequence[str] = ()
) -> dict[str, Trained]:
    """Every default run of one seed and what it starts from, each once, by setting.

    Args:
        paper: the reproduction.
        subject: its corpus and scale.
        seed: of the runs.
        only: settings; all if empty.
    """
    makers = (*(m for m in paper.exhibits if m.smoke or subject.scale != "smoke"), *paper.claims)
    asked = {setting for m in makers if not m.divergence for setting in m.needs}
    found: dict[str, Trained] = {}
    for name, config in paper.experiments(subject, seed).items():
        if name in asked and isinstance(config, RunConfig | RolloutConfig):
            found[name] = config
        elif name in asked and isinstance(config, SequenceConfig):
            found[f"{name} (its start)"] = config.start
            found[name] = config
    # Reversed, so that of several settings with one configuration the first name is kept.
    first = {identity(c.to_dict()): name for name, c in reversed(found.items()) if c.passes}
    kept = [name for name in found if name in first.values()]
    for name in only:
        if name not in kept:
            raise name_error("--only", name, kept)
    return {name: found[name] for name in kept if not only or name in only}


def with_rate_factor(config: Trained, factor: float) -> Trained:
    """The same run with its learning rate times ``factor``, without tests."""
    if isinstance(config, SequenceConfig):
        return replace(config, rate=factor * config.rate, test=False)
    if isinstance(config, RolloutConfig):
        return replace(config, rate=factor * config.rate)
    schedule: Any = config.schedule
    schedule = replace(schedule, rate=factor * schedule.rate)
    return replace(config, schedule=schedule, tested="never")


def outcome(run: Run) -> str:
    """First and last value of a run's metric, or its status if it did not end."""
    if run.status != "done":
        return run.status
    name = next(name for name in LAST if name in run.summary)
    values = run.curve(name)[1]
    return f"{values[0]:.3g} to {values[-1]:.3g}"


def table(
    settings: Iterable[str], factors: Sequence[float], runs: Mapping[tuple[str, float], list[Run]]
) -> str:
    """One line a setting, one column a factor, every seed in a cell."""
    lines = ["| setting | " + " | ".join(f"{f:g} times" for f in factors) + " |"]
    lines.append("| --- " * (len(factors) + 1) + "|")
    for name in settings:
        cells = ("; ".join(map(outcome, runs[name, factor])) for factor in factors)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    if arguments is None:
        notice.announce()
    return exit_code(lambda: _main(_parser().parse_args(arguments)), "the same command resumes")


def _main(asked: argparse.Namespace) -> int:
    for seed in asked.seeds:
        if not DEVELOPMENT <= seed < VERDICTS:
            allowed = f"{DEVELOPMENT} to {VERDICTS - 1}, since reports rest on the others"
            raise UserError(f"--seeds {seed}: allowed: {allowed}")
    paper: Paper = import_module(PAPERS[asked.paper]).PAPER

    def load_for_seed(seed: int) -> Corpus:
        if paper.corpus == NO_CORPUS:
            return corpus_without_speech(NO_CORPUS)
        return load_corpus(paper.corpus, scale=asked.scale, seed=seed)

    first = Subject(
        asked.scale, load_for_seed(asked.seeds[0]), asked.seeds[0], "cpu", load_for_seed
    )
    configs = {
        (name, factor, seed): with_rate_factor(config, factor)
        for seed in asked.seeds
        for name, config in default_runs(paper, first.replicate(seed), seed, asked.only).items()
        for factor in asked.factors
    }
    runs = execute_named(
        configs, lambda key: "{}, {:g} times, seed {}".format(*key), asked.out, asked.jobs
    )
    grouped: dict[tuple[str, float], list[Run]] = {}
    for (name, factor, _), run in runs.items():
        grouped.setdefault((name, factor), []).append(run)
    print(table(dict.fromkeys(name for name, *_ in configs), asked.factors, grouped))
    return EXIT_RUN_FAILED if any(run.status == "failed" for run in runs.values()) else EXIT_DONE


def _parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="reproductions.margins", description="How far default runs are from divergence."
    )
    p.add_argument("paper", choices=PAPERS)
    p.add_argument("--scale", default="smoke")
    p.add_argument("--factors", type=_numbers(float), default=(1.0, 2.0), help="of the rate")
    p.add_argument("--seeds", type=_numbers(int), default=SEEDS, help="for development: 100 to 999")
    p.add_argument("--only", type=lambda text: tuple(text.split(",")), default=(), help="settings")
    p.add_argument("--jobs", type=argument_types.count, default=os.cpu_count() or 1)
    p.add_argument("--out", type=Path, default=Path("reports/out/margins"))
    return p


def _numbers(kind: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    return lambda text: tuple(kind(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
