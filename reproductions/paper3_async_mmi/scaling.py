"""``p3.scaling``: word error of ten and fifty replicas over one, by utterances in flight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.experiment.experiment import Experiment
from harness.speech.sequence_task import Sequences
from harness.store import Run
from reproductions.paper import Scaling, SizePlan, Subject
from reproductions.paper3_async_mmi.experiments import REPLICAS, sequence
from reproductions.run_metrics import errors_of_utterances, lengths_of_utterances

TEST = "test"


def configs(subject: Subject, seed: int, size: SizePlan) -> Mapping[str, Experiment[Sequences]]:
    """One replica, ten and fifty, each at its registered rate, with a common decay."""
    del size
    rates = SCALING.entries["rates"]
    return {
        name: sequence(subject, seed, n).with_rate(float(rates[name]))
        for n, name in REPLICAS.items()
    }


def error_rate(run: Run, arm: str, label: str) -> float:
    """Word error rate of the last model."""
    del arm, label
    errors = errors_of_utterances([run], f"{TEST}/iterate/{run.config['passes']}")
    return float(errors.sum() / lengths_of_utterances([run], TEST).sum())


SCALING = Scaling(
    id="p3.scaling",
    title="Word error of ten and of fifty replicas over one, by utterances of the corpus for one "
    "that fifty replicas have in flight",
    registered=Path(__file__).with_name("registered.toml"),
    configs=configs,
    ratios={"ten replicas": ("ten", "one", None), "fifty replicas": ("fifty", "one", None)},
    rate=error_rate,
)
