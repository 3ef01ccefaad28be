"""``p2.scaling``: word error of 16 GPUs over one, against averages in all of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.experiment.experiment import Experiment
from harness.speech.task import Frames
from harness.store import Run
from reproductions.paper import Scaling, SizePlan, Subject
from reproductions.paper2_ng_averaging.errors import LABELS, paper_error_rate
from reproductions.paper2_ng_averaging.experiments import build_averaging, number_of
from reproductions.paper2_ng_averaging.prediction import FOLDER
from reproductions.run_metrics import errors_of_utterances, lengths_of_utterances

ARMS = "ng_16", "ng_1"


def configs(subject: Subject, seed: int, size: SizePlan) -> Mapping[str, Experiment[Frames]]:
    """Both arms at a size's minibatch, which is charged as the paper's 1,024, and at its rates."""
    runs: dict[str, Experiment[Frames]] = {}
    for arm, rate in zip(ARMS, size.settings["rates"], strict=True):
        config = build_averaging(subject, seed, number_of(arm)).with_rate(float(rate))
        (stage,) = config.stages
        stages = (replace(stage, minibatch=int(size.settings["minibatch"])),)
        runs[arm] = config.vary(stages=stages)
    return runs


def error_rate(run: Run, arm: str, label: str) -> float:
    """Word error rate on all test sets together, of the last model."""
    del arm, label
    stage = run.summary["passes"] - 1
    errors = sum(int(errors_of_utterances([run], f"{t}/iterate/{stage}").sum()) for t in LABELS)
    return errors / sum(int(lengths_of_utterances([run], t).sum()) for t in LABELS)


def _paper_ratio() -> float:
    """The paper's own ratio, of its rates on all sets together."""
    parallel, alone = (sum(paper_error_rate(arm, t) or 0.0 for t in LABELS) for arm in ARMS)
    return round(parallel / alone, 3)


SCALING = Scaling(
    id="p2.scaling",
    title="Word error of 16 GPUs over one, by averages in all of training",
    registered=FOLDER / "registered.toml",
    configs=configs,
    ratios={"all sets": (*ARMS, _paper_ratio())},
    rate=error_rate,
)
