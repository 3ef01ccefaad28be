"""Anybody's module as a task."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from harness.execution.data.arrays import Arrays
from harness.execution.evaluation.modules import ModuleEvaluator, ModuleScores
from harness.execution.runs.executed import Watch, executed
from harness.execution.runs.module import ModuleConfig
from harness.execution.training.frames import FrameTraining
from harness.execution.training.run import carry_out
from harness.execution.training.simulated import Simulated
from harness.execution.training.task import Tested
from harness.modules.draws import generators_kept
from harness.store import Run, RunWriter, Store

HELD_OUT = 2000
"""Examples of the development set, evenly thinned, for schedules that ask often."""


class ModuleTask:
    """See `Task`.

    Args:
        config: what is run.
    """

    unit = "a minibatch"

    def __init__(self, config: ModuleConfig) -> None:
        self.config, self.problem = config, config.problem
        self.network = config.network(self.problem)
        self._start = self.problem.initial(config.seed).to(config.device)
        self._evaluator = ModuleEvaluator(self.network, self.problem)
        self._train, self._dev, self._test = (
            part and part.to(config.device, self._start.dtype)
            for part in (self.problem.train, self.problem.dev, self.problem.test)
        )
        assert self._train is not None
        self.minibatches = config.minibatches(self.problem, self._train)

    def initial(self) -> Tensor:
        """See `Task`."""
        return self._start

    def losses_in(self, minibatch: int) -> int:
        """One: what the user's function says of it."""
        del minibatch
        return 1

    def dev(self, model: Tensor) -> ModuleScores:
        """See `Task`."""
        assert self._dev is not None
        return self._evaluator.scores(model, self._dev)

    def held_out_loss(self, model: Tensor) -> float:
        """See `Task`."""
        assert self._dev is not None
        stride = max(1, len(self._dev) // HELD_OUT)
        some = Arrays(self._dev.x[::stride], self._dev.y[::stride])
        return self._evaluator.scores(model, some).loss

    def tested(self, model: Tensor, name: str) -> Tested:
        """The same scores on the test set, if there is one."""
        if self._test is None:
            return Tested({})
        found = self._evaluator.scores(model, self._test).measured
        return Tested({f"test_{metric}/{name}": value for metric, value in found.items()})


@executed.register
def train_module(config: ModuleConfig, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration: the stored one, or trained now, or resumed.

    Training has one thread: results depend on their number in their last bits.
    """

    def execute(writer: RunWriter) -> None:
        made = partial(Simulated, config, config.problem)
        carry_out(FrameTraining(writer, config, ModuleTask(config), watch, made))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with generators_kept():
            return store.obtain(config.to_dict(), execute)
    finally:
        torch.set_num_threads(threads)
