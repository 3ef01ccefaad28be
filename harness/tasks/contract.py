"""What a training by folds trains and measures: frames of speech, or a module of the user's.

`FrameTraining` decides when something is due; a task knows what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from harness.networks.contract import Network
from harness.tasks.order import Minibatches


class Scored(Protocol):
    """What is measured of a model on one set."""

    @property
    def error(self) -> float:
        """What candidates are judged by; less is better."""
        ...

    @property
    def finite(self) -> bool:
        """Whether the model still computes numbers."""
        ...

    @property
    def measured(self) -> Mapping[str, float]:
        """Every measurement by its name."""
        ...


@dataclass(frozen=True)
class Tested:
    """What is measured of a model on the test sets.

    Attributes:
        measured: by the name under which it is logged.
        word_errors: for each test set the errors ``[utterances]`` and, as ``"lengths"``, the
            words that were said; none where nothing is recognised.
    """

    measured: Mapping[str, float]
    word_errors: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict[str, tuple[np.ndarray, np.ndarray]]
    )


class Task(Protocol):
    """A network, its data, and how its models are scored."""

    @property
    def network(self) -> Network:
        """What is trained."""
        ...

    @property
    def minibatches(self) -> Minibatches:
        """On what."""
        ...

    @property
    def unit(self) -> str:
        """Of the loss, in words."""
        ...

    def initial(self) -> Tensor:
        """The parameters ``[P]`` that training starts from."""
        ...

    def losses_in(self, minibatch: int) -> int:
        """How many losses are summed in a minibatch of so many rows."""
        ...

    def dev(self, model: Tensor) -> Scored:
        """Scores of ``model [P]`` on the development set."""
        ...

    def held_out_loss(self, model: Tensor) -> float:
        """Its loss on some of the development set, for schedules that ask often."""
        ...

    def tested(self, model: Tensor, name: str) -> Tested:
        """What a candidate of this name is worth on the test sets."""
        ...
