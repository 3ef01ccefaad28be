"""The supervised start of a training by rollouts, and what its parts read of an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from harness.base.settings import Spec, check_order, setting
from harness.experiment.experiment import AnyExperiment, plain
from harness.rollouts.problems import Problems
from harness.rollouts.protocol import Rollouts
from harness.rollouts.sources import PolicySource


@dataclass(frozen=True)
class WarmStart(Spec):
    """Supervised training on right answers, until a share of sampled answers is right.

    It ends at the first measurement of at least ``least``. All runs of the same settings start
    from the same parameters, whatever their seeds.

    Attributes:
        steps: largest number of steps; 0 for none: the policy starts as it is made.
        least: share of right answers that ends it.
        most: largest share that is accepted.
        rate: learning rate, of AdamW.
        minibatch: problems of a step.
        every: steps from one measurement to the next.
        measured: answers of a measurement, each of another problem.
        seed: seed of initial parameters and problems.
    """

    steps: int = setting(5000, at_least=0, at_most=10_000_000)
    least: float = setting(0.1, at_least=0.0, at_most=1.0)
    most: float = setting(0.4, at_least=0.0, at_most=1.0)
    rate: float = setting(2e-3, above=0.0, at_most=10.0)
    minibatch: int = setting(64, at_least=1, at_most=65_536)
    every: int = setting(20, at_least=1, at_most=1_000_000)
    measured: int = setting(512, at_least=1, at_most=1_000_000)
    seed: int = setting(0, at_least=0)

    def trouble(self) -> tuple[str, str] | None:
        """See `Spec`."""
        return check_order(self, "least", "most")


@dataclass(frozen=True)
class StartConfig:
    """What a supervised start depends on: a run of its own in the store.

    Args:
        policy: the policy.
        problems: the problems.
        start: its settings.
        device: device that computes it.
    """

    policy: PolicySource
    problems: Problems
    start: WarmStart
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the identity hashes."""
        return plain(self)


def rollouts_of(config: AnyExperiment) -> Rollouts:
    """The protocol of a training by rollouts: generators, buffer and trainer."""
    return cast(Rollouts, config.protocol)


def start_of(config: AnyExperiment) -> StartConfig:
    """The run of the supervised start that a training begins with."""
    task = config.task
    return StartConfig(task.policy, task.problems, task.start, config.device)
