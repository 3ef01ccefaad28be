"""Operations that are the same every time: recorded once as a CUDA graph, then played.

On a processor there is nothing to record, and the operations are executed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Work = Callable[[], None]


def recorded(work: Work, device: torch.device) -> Work:
    """The same work, for a device to be told of it in one launch.

    The first call executes it, because libraries allocate at their first use, which cannot be
    recorded; the second records it. Whatever it reads and writes has to stay where it is.
    """
    return work if device.type != "cuda" else _Recorded(work)


class _Recorded:
    """Work on a GPU, at its first call, at its second and from then on."""

    def __init__(self, work: Work) -> None:
        self._work, self._graph = work, None
        self._called = False

    def __call__(self) -> None:
        if not self._called:
            self._called = True
            self._once()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._work()
        self._graph.replay()

    def _once(self) -> None:
        """On a stream of its own, as what is recorded will be."""
        side, present = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(present)
        with torch.cuda.stream(side):
            self._work()
        present.wait_stream(side)
