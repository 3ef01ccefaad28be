"""Small problems without solutions, and configurations of a tiny policy that learns them."""

from dataclasses import dataclass, replace

from harness.algorithms.schedules import Constant
from harness.algorithms.stale import ServerDescent
from harness.base.registry import cluster_file
from harness.base.settings import Spec
from harness.experiment.contract import Progress
from harness.experiment.experiment import Experiment
from harness.rollouts.problems import Problem, Problems
from harness.rollouts.protocol import Rollouts
from harness.rollouts.rollout_config import WarmStart
from harness.rollouts.sources import SmallTransformer
from harness.rollouts.task import Policy
from harness.simulator.cluster import load_cluster

VOCABULARY, CONTEXT = 5, 14


@dataclass(frozen=True)
class Ones(Spec, Problems):
    """An answer's reward is its share of the token that the prompt begins with."""

    @property
    def vocabulary(self):
        return VOCABULARY

    @property
    def context(self):
        return CONTEXT

    def train(self, number, seed):
        first = 1 + (number * 7 + seed) % (VOCABULARY - 1)
        return Problem((first, 1 + number % 3), difficulty=first)

    def held_out(self, count):
        return [self.train(number, 3) for number in range(count)]

    def reward(self, problem, answer):
        return sum(token == problem.prompt[0] for token in answer) / len(answer)


PROTOCOL = Rollouts(slots=8, group=4, batch=4, decode_s=0.01, train_s=0.2, sync_s=0.05)


def configure(**changes):
    """A run of 12 updates with a policy of 1,500 parameters."""
    config = Experiment(
        task=Policy(
            policy=SmallTransformer(12, 1, 2), problems=Ones(), updates=12, held_out=20,
            start=WarmStart(steps=0),
        ),
        cluster=load_cluster(cluster_file("h100-node", None)), seed=1, workers=1,
        protocol=PROTOCOL, algorithm=ServerDescent(), schedule=Constant(0.01), evaluations=2,
    )  # fmt: skip
    return config.vary(**changes)


def protocol(**changes):
    """The protocol with other settings."""
    return replace(PROTOCOL, **changes)


def ignore(progress: Progress) -> None:
    """Receive progress."""
