"""What an array program moves: bytes that its operations read and write, and how many there are."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    """Counts while it is in force; a view moves nothing.

    As if nothing were fused and no cache held anything: an operation reads all elements it is
    given, those that are repeated by broadcasting once, and writes its result.

    Attributes:
        operations: dispatched ones that are no views.
        bytes: read and written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, found)) if isinstance(t, Tensor)]
            self.operations += 1
            self.bytes += sum(map(_moved, tensors))
        return found


def _moved(tensor: Tensor) -> int:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1
    for size, stride in sizes:
        elements *= size if stride else 1
    return elements * tensor.element_size()
