"""Which frames a minibatch has: the training data of a run, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from harness.execution.data.partition import Laid
from harness.networks.contract import Minibatch

Key = tuple[int, int]
"""A contribution's name: (worker, first_step)."""


class Examples(Protocol):
    """Training data on a device, row by row."""

    @property
    def device(self) -> torch.device:
        """Where they are."""
        ...

    def gather(self, rows: Tensor) -> Minibatch:
        """The minibatches of ``rows [W, B]``, which may be on the host."""
        ...


class Minibatches:
    """The minibatches of one run; all who execute the run make themselves the same.

    Args:
        order_of: the order of each stage, by its number.
        examples: the training data on its device.

    Attributes:
        order: of the present stage.
        stage: its number.
        before: the steps of all stages before it.
    """

    def __init__(self, order_of: Callable[[int], Laid], examples: Examples) -> None:
        self._order_of, self._examples = order_of, examples
        self.begin(0, 0)

    def begin(self, stage: int, before: int) -> None:
        """Lay out a stage that begins after so many steps."""
        self.stage, self.before, self.order = stage, before, self._order_of(stage)

    def of(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of the minibatches named by worker and by step since the run began."""
        rows = self.order.rows_of([(worker, step - self.before) for worker, step in keys])
        return self._examples.gather(torch.as_tensor(rows))
