"""``p2.scaling``: word error of 16 GPUs over one, against averages in all of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.experiment.experiment import Experiment
from harness.speech.task import Frames
from harness.store import Run
from reproductions.paper import Scaling, SizePlan, Subject
from reproductions.paper2_ng_averaging.errors import LABELS, paper_error_rate
from reproductions.paper2_ng_averaging.experiments import (
    MANY,
    build_averaging,
    load_rates,
    with_rate,
)
from reproductions.paper2_ng_averaging.prediction import FOLDER
from reproductions.run_metrics import errors_of_utterances, lengths_of_utterances

SEARCHED = "ng_16", "ng_1"
"""The arms, as the search for rates names them at a minibatch of 32 frames."""


def configs(subject: Subject, seed: int, size: SizePlan) -> Mapping[str, Experiment[Frames]]:
    """Both arms at a size's minibatch, which is charged as the paper's 1,024.

    Rates are proportional to the minibatch: the searches at 32 and at 8 frames found a ratio of 4
    on one GPU and on 16.
    """
    minibatch, rates = int(size.settings["minibatch"]), load_rates(subject.scale)["rates"]
    runs: dict[str, Experiment[Frames]] = {}
    for arm, workers in zip(SEARCHED, (MANY, 1), strict=True):
        config = build_averaging(subject, seed, workers)
        (stage,) = config.stages
        rate = float(rates[arm]) * minibatch / stage.minibatch
        stages = (replace(stage, minibatch=minibatch),)
        runs[arm] = with_rate(config, rate).vary(stages=stages)
    return runs


def error_rate(run: Run, arm: str, label: str) -> float:
    """Word error rate on all test sets together, of the last model."""
    del arm, label
    stage = run.summary["passes"] - 1
    errors = sum(int(errors_of_utterances([run], f"{t}/iterate/{stage}").sum()) for t in LABELS)
    return errors / sum(int(lengths_of_utterances([run], t).sum()) for t in LABELS)


def _paper_ratio() -> float:
    """The paper's own ratio, of its rates on all sets together."""
    parallel, alone = (sum(paper_error_rate(arm, t) or 0.0 for t in LABELS) for arm in SEARCHED)
    return round(parallel / alone, 3)


SCALING = Scaling(
    id="p2.scaling",
    title="Word error of 16 GPUs over one, by averages in all of training",
    registered=FOLDER / "registered.toml",
    configs=configs,
    ratios={"all sets": (*SEARCHED, _paper_ratio())},
    rate=error_rate,
)
