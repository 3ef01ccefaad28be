"""Training anybody's module: what such a run computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from harness.base.errors import UserError
from harness.execution.data.arrays import Arrays, DrawingMinibatches
from harness.execution.data.minibatches import Examples, Minibatches
from harness.execution.data.partition import Laid, Unbroken
from harness.execution.runs.problem import Problem
from harness.execution.runs.training import Pieces, TrainingConfig
from harness.modules.digests import digest_of_code, from_outside
from harness.modules.network import ModuleNetwork
from harness.simulator import Workload

FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""
SUMMED = "summed over examples"
"""Said in an identity of a loss that is no mean: what is measured of it is one."""
UNBROKEN = "over the end of a pass"
"""Said in an identity of rounds, which once ended with each pass and left examples out."""


@dataclass(frozen=True, kw_only=True)
class ModuleConfig(TrainingConfig[Problem]):
    """One training of a module, on a simulated cluster.

    Args:
        problem: module, loss, data and metrics; its digests are part of the identity.
        work: what the cluster is charged for a minibatch.

    Raises:
        UserError: settings that do not go together.
    """

    unit: ClassVar[str] = "examples"
    cut_by: ClassVar[str] = "minibatch"
    counts_examples: ClassVar[bool] = True

    problem: Problem
    work: Workload
    format: int = FORMAT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule.searches and self.problem.inspected(self._size, self.device).draws:
            raise UserError("schedule: no search for the rate of a module that draws at random")

    @property
    def _size(self) -> int:
        return self.stage(0).minibatch

    def to_dict(self) -> dict[str, Any]:
        """See `TrainingConfig`; of what is from outside its code, and what the loss sums over."""
        parts = {"algorithm": self.algorithm, "protocol": self.protocol, "schedule": self.schedule}
        summed = self.problem.inspected(self._size, self.device).reduction == "sum"
        outside = {name: part for name, part in parts.items() if from_outside(part)}
        code = {name: digest_of_code(part, name) for name, part in outside.items()}
        further = {"code": code} if code else {}
        further |= {"loss": SUMMED} if summed else {}
        return super().to_dict() | further | ({"rounds": UNBROKEN} if self.rounds else {})

    def network(self, data: Problem) -> ModuleNetwork:
        """What is trained."""
        return data.network(self.seed, self._size, self.device)

    def pieces(self, data: Problem) -> Arrays:
        """The training examples."""
        return data.train

    def order(self, stage: int, train: Pieces) -> Laid:
        """See `TrainingConfig`; rounds leave nothing out."""
        found = self.lay_out(stage, train)
        if not self.rounds:
            return found
        _, own, a_fold, *_ = self.handing
        cut = stage, self.passes, self.workers, own, a_fold
        return Unbroken(lambda number: self.lay_out(number, train), *cut)

    def minibatches(self, data: Problem, examples: Examples) -> Minibatches:
        """See `TrainingConfig`; a module that draws is told what from."""
        if not data.inspected(self._size, self.device).draws:
            return super().minibatches(data, examples)
        found = DrawingMinibatches(lambda stage: self.order(stage, data.train), examples)
        found.seed = self.seed
        return found

    def workload(self, number: int) -> Workload:
        """What the cluster is charged for in a stage."""
        del number
        return self.work

    @property
    def judged(self) -> str:
        """The first metric on the development set; without one, the loss."""
        return f"dev_{next(iter(self.problem.metrics), 'loss')}"

    def stage_name(self, fold: int) -> str:
        """Its algorithm, or before the first fold what it starts from."""
        return type(self.algorithm).__name__ if fold > 0 else "its initial parameters"
