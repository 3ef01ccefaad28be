"""Bytes that operations move through memory, by the sizes of their operands.

Every operation reads what it takes and writes what it gives, each element once; a cache that spares
some of that is not asked. It works on tensors of the device ``meta`` as well, which have a size and
no content: so a network of any size is counted in no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PICKING = ("aten.index_select", "aten.index", "aten.gather")
"""They read as much of their first operand as they give."""
OVERWRITING = ("aten.copy_", "aten.zero_", "aten.fill_")
"""They do not read their first operand."""
FOLDING = "lagbench.step_and_draw"
"""It gives nothing, and writes its last two operands, of which it reads one."""


class Traffic(TorchDispatchMode):
    """Adds up what is moved while it is in force.

    Attributes:
        moved: bytes, by operation.
        operations: dispatched ones that are no views: launches, on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved = Counter[str]()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = func(*args, **kwargs)
        found, name = given, f"{func.namespace}.{func._opname}"
        if func.is_view or name in ("aten.detach", "aten.empty_like", "aten.new_empty"):
            return given
        self.operations += 1
        kwargs.pop("out", None)
        read = list(_tensors((args, kwargs)))
        if name in PICKING:
            read = [*_tensors(found), *read[1:]]
        elif name in OVERWRITING:
            read = read[1:]
        elif name == FOLDING:
            *read, model, average = read
            read, found = [*read, average], (model, average)
        self.moved[name] += sum(map(size, read)) + sum(map(size, _tensors(found)))
        return given

    @property
    def bytes(self) -> int:
        """Read and written in all."""
        return sum(self.moved.values())


def size(tensor: Tensor) -> int:
    """Bytes of the elements that lie in memory: what is expanded lies there once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride else 1
    return elements * tensor.element_size()


def floor(sizes: Sequence[int], frames: int) -> int:
    """Bytes that one fold of averaged SGD cannot do without, in float32.

    Weights are read forwards and (but for the first layer) backwards, and gradients written;
    a fold that is one operation with its average reads gradient, model and average, and writes
    model and average. Levels and derivatives are written once, and read once by every product
    and slope; frames that are gathered and the loss's derivatives likewise.
    """
    layers = list(pairwise(sizes))
    weights = [m * n + n for m, n in layers]
    parameters = 2 * sum(weights) + sum(weights[1:]) + 5 * sum(weights)
    forwards = sum(m + n for m, n in layers)
    gradients = sum(m + n for m, n in layers)
    backwards = sum(n + 2 * m for m, n in layers[1:])
    ends = 2 * sizes[0] + 2 * sizes[-1]
    return 4 * (parameters + frames * (forwards + gradients + backwards + ends))


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
