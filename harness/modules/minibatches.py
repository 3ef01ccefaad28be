"""Minibatches of a module that draws random numbers, or of a data set that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from harness.base.seeds import stream_key
from harness.modules.network import Drawing
from harness.modules.redrawn import RandomExamples
from harness.modules.streaming import ExampleStream
from harness.networks.contract import Minibatch
from harness.tasks.order import Examples, Key, Laid, Minibatches


class ModuleMinibatches(Minibatches):
    """Minibatches with seeds for what is drawn at random.

    The draws of a module's layers depend on the run's seed, the worker and the step alone; those of
    a data set (`RandomExamples`) on the run's seed, the pass and the example.

    Args:
        order_of: from the number of a stage to its order.
        examples: the training data on its device.
        seed: the run's seed.
        draws: whether layers draw.
    """

    def __init__(
        self, order_of: Callable[[int], Laid], examples: Examples, seed: int, *, draws: bool
    ) -> None:
        super().__init__(order_of, examples)
        self._seed, self._draws = seed, draws

    def fetch(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        found = super().fetch(keys)
        if not self._draws:
            return found
        drawn = [stream_key(self._seed, "layers", *key) >> 65 for key in keys]
        return Minibatch(cast(Tensor, Drawing(found.x, drawn)), found.targets)

    def gather(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        if isinstance(self._examples, ExampleStream):
            return self._examples.fetch(self.order.rows_of(keys), self._seed)
        if not isinstance(self._examples, RandomExamples):
            return super().gather(keys)
        rows, passes = self.order.rows_of(keys), self.order.passes_of(keys)
        return self._examples.ask(rows, passes, self._seed)
