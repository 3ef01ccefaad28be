"""The configurations of a training by rollouts and of its supervised start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.algorithms.descent import AdamW, LocalOptimizer
from harness.base.errors import UserError
from harness.base.settings import Spec, check_order, setting
from harness.experiment.contract import TaskConfig
from harness.experiment.experiment import plain
from harness.rollouts.losses import Decoupled, Loss
from harness.rollouts.problems import Addition, Problems
from harness.rollouts.protocol import Rollouts
from harness.rollouts.sources import PolicySource, SmallTransformer
from harness.simulator import Cluster, Simulation, Workload

__all__ = ["RolloutConfig", "WarmStart"]


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


@dataclass(frozen=True)
class RolloutConfig(TaskConfig):
    """One training of a policy by rollouts, on a simulated cluster of generators and a trainer.

    Args:
        cluster: the simulated cluster; its workers are generators.
        seed: seed of problems, sampling and timing.
        device: ``"cpu"`` or ``"cuda"``; part of the identity, since results differ in their last
            bits.
        protocol: generators, buffer and trainer, with groups, batch and optimizer steps.
        policy: the policy that is trained.
        problems: the problems, which reward its answers.
        loss: the policy-gradient loss.
        optimizer: the trainer's optimizer.
        rate: learning rate.
        workers: number of generators.
        updates: steps of the trainer.
        temperature: of sampling, and of the probabilities that are learnt.
        even: whether groups that are all right or all wrong are trained on; their advantages are
            zero, but their tokens count in the mean.
        clip: largest norm of a gradient; a larger one is scaled to it. Without it none is.
        evaluations: evaluations on held-out problems, besides the one before training.
        held_out: number of held-out problems.
        start: the supervised training that it starts from.

    Raises:
        UserError: settings that do not go together.
    """

    cluster: Cluster
    seed: int
    device: str
    protocol: Rollouts = field(default_factory=Rollouts)
    policy: PolicySource = field(default_factory=SmallTransformer)
    problems: Problems = field(default_factory=Addition)
    loss: Loss = field(default_factory=Decoupled)
    optimizer: LocalOptimizer = field(default_factory=AdamW)
    rate: float = setting(2e-4, above=0.0, at_most=1e3)
    workers: int = setting(1, at_least=1)
    updates: int = setting(100, at_least=0, at_most=10_000_000)
    temperature: float = setting(1.0, at_least=1e-3, at_most=1e3)
    even: bool = False
    clip: float | None = setting(None, above=0.0)
    evaluations: int = setting(4, at_least=1, at_most=1_000_000)
    held_out: int = setting(500, at_least=1, at_most=1_000_000)
    start: WarmStart = field(default_factory=WarmStart)

    def __post_init__(self) -> None:
        if self.protocol.group < 2:
            allowed = "at least 2, since a rollout is compared with others of its group"
            raise UserError(
                f"protocol.group: {self.protocol.group} is not allowed; allowed: {allowed}"
            )

    @property
    def passes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One: progress is a share of the updates."""
        return 1

    @property
    def effort(self) -> float:
        """See `Configuration`."""
        return float(self.updates * self.protocol.batch * self.protocol.group)

    @property
    def kind(self) -> str:
        """See `TaskConfig`."""
        return "rollouts"

    @property
    def timed(self) -> Rollouts:
        """The protocol."""
        return self.protocol

    def simulation(self) -> Simulation:
        """The simulation at time 0, which asks for the lengths of rollouts."""
        asking = self.protocol.asking()
        return Simulation(self.cluster, asking, self.workload(), self.workers, self.seed)

    def workload(self, number: int = 0) -> Workload:
        """The cluster's, or else that of nothing: the protocol charges all but copies."""
        return self.cluster.workload or Workload(1, 0.0, 0.0)

    @property
    def judged(self) -> str:
        """The share of held-out problems that are answered wrongly."""
        return "dev_error"

    @property
    def example_weight(self) -> float:
        """See `TaskConfig`."""
        return 1.0 / self.held_out

    @property
    def start_config(self) -> StartConfig:
        """The run of the supervised start."""
        return StartConfig(self.policy, self.problems, self.start, self.device)

    def to_dict(self) -> dict[str, Any]:
        """Canonical plain JSON values, which the run's identity hashes."""
        return plain(self)
