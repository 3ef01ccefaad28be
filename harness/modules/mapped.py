"""Arrays that are mapped from a file: nothing is copied but minibatches and development data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from harness.modules.problem import Arrays, digest_of
from harness.modules.trees import Value
from harness.networks.contract import Minibatch
from harness.runs.digests import digest_of_rows


@dataclass(frozen=True, eq=False)
class MemmapRows(Arrays):
    """Some rows of arrays that are mapped from files.

    Args:
        x, y: the whole arrays, in host memory.
        rows: the row of each example.
        floats: precision of floating-point tensors; None as they are.
        place: device of what is taken.
    """

    rows: np.ndarray
    floats: torch.dtype | None = None
    place: str = "cpu"

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> MemmapRows:
        """All examples of arrays."""
        return cls(arrays.x, arrays.y, np.arange(len(arrays.x)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: slice) -> Arrays:
        """Some of the examples, as a copy."""
        return self._copy(self.rows[some])

    @property
    def device(self) -> torch.device:
        """The device of what is taken."""
        return torch.device(self.place)

    @property
    def targets(self) -> Value:
        """Targets of the examples, as a copy."""
        return Arrays(self.y, self.y).take(self.rows).y

    @cached_property
    def sha256(self) -> str:
        """Digest of the examples, equal to that of a copy; read a piece at a time."""
        parts = (
            digest_of(part, lambda t: digest_of_rows(t, self.rows)) for part in (self.x, self.y)
        )
        return "".join(each[:32] for each in parts)

    def to(self, device: str, floats: torch.dtype) -> MemmapRows:
        """The same, of which minibatches are taken to a device, with floats in one precision."""
        return replace(self, floats=floats, place=device)

    def take(self, rows: np.ndarray) -> MemmapRows:
        """The examples of ``rows``, in that order."""
        return replace(self, rows=self.rows[rows])

    def split(self, share: float, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Split at random; the second part is a copy."""
        train, dev = super().split(share, seed)
        return train, dev[:]

    def gather(self, rows: Tensor) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` of ``rows [W, B]``; see `Arrays`."""
        flat = rows.flatten().cpu()
        return self._copy(self.rows[flat.numpy()]).gather(torch.arange(len(flat)).view(rows.shape))

    def copy(self) -> Arrays:
        """The examples in memory."""
        return self[:]

    def _copy(self, rows: np.ndarray) -> Arrays:
        found = Arrays(self.x, self.y).take(rows)
        floats = self.floats

        def place(tensor: Tensor) -> Tensor:
            is_float = tensor.is_floating_point() and floats is not None
            return (tensor.to(floats) if is_float else tensor).to(self.place)

        return found.map(place)

    def __reduce__(self) -> tuple[type[Arrays], tuple[Value, Value], dict[str, str]]:
        found = self.copy()
        return Arrays, (found.x, found.y), {"sha256": self.sha256}
