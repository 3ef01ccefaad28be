"""What natural gradient knows, without the basis it is written in.

The sign of a direction, and a turn among directions of equal size, are the processor's choice.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from harness.natural_gradient.estimate import Moment
from harness.natural_gradient.layer import Sides


def invariants(state: Sequence[Sides]) -> Iterator[Tensor]:
    """Both sides of every layer: the second moment, what is taken from rows (``Wᵀ W``), spectra."""
    for sides in state:
        for moment in (sides.inputs, sides.outputs):
            if moment is not None:
                yield from _invariants(moment)


def _invariants(moment: Moment) -> Iterator[Tensor]:
    orthonormal = moment.basis / moment.shrink.sqrt().unsqueeze(2)
    yield orthonormal.mT @ (moment.energy.unsqueeze(2) * orthonormal)
    yield moment.basis.mT @ moment.basis
    yield moment.energy.sort(1)[0]
    yield moment.shrink.sort(1)[0]
    yield moment.floor
