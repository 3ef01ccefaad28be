"""What this machine takes for the work of a real run, timed again and again.

Minibatches of several sizes with two networks, copies of several sizes between two processes,
all-reduces among two to four, and folds.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist

from harness.algorithms.async_sgd import AsyncSgd
from harness.base import forks
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.lines import Line
from harness.execution.processes.messages import into, receive, send
from harness.execution.processes.sockets import Socket
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.simulator import Workload

SMALL, LARGE = (440, 256, 256, 500), (440, 512, 512, 512, 1000)
"""Networks that are timed; two, so that what a minibatch costs by itself and what it costs by
being small can be told apart."""
MINIBATCHES = (1, 4, 16, 64, 256)
BYTES = (4_000, 64_000, 1_000_000, 4_000_000, 16_000_000)
RANKS = (2, 3, 4)
"""How many processes average."""
REPEATS, WARM = 15, 3


@dataclass(frozen=True)
class Measured:
    """Repeated timings of one thing.

    Args:
        terms: what its cost is a sum of, ``[terms]`` multiples.
        seconds: ``[repeats]``.
    """

    terms: tuple[float, ...]
    seconds: np.ndarray


def computing() -> Iterator[Measured]:
    """A minibatch costs launch + f·h/R + f·b/R: terms 1, f and f·b with f FLOP a frame."""
    generator = torch.Generator().manual_seed(1)
    for sizes in (SMALL, LARGE):
        net, flops = Dnn(Layout(sizes)), Workload.of_network(sizes, 1).flops_per_frame
        stack = random_parameters(net.layout, generator, 4.0)
        out = torch.empty_like(stack)
        for frames in MINIBATCHES:
            x = torch.randn(1, frames, sizes[0], generator=generator)
            targets = torch.randint(sizes[-1], (1, frames), generator=generator)
            seconds = _timed(partial(net.gradient, stack, x, targets, out), REPEATS)
            yield Measured((1.0, flops, flops * frames), seconds)


def folding() -> Iterator[Measured]:
    """A fold costs something and so much a byte: terms 1 and bytes."""
    algorithm = AsyncSgd()
    for size in BYTES:
        server = algorithm.start(torch.zeros(size // 4))
        contribution = torch.ones(1, size // 4)
        fold = partial(algorithm.fold, server, contribution, [0], 0.0)
        yield Measured((1.0, size), _timed(fold, REPEATS))


def copying() -> list[Measured]:
    """One way between two processes, half of there and back: terms 1 and bytes."""
    return _among(2, partial(_copies, BYTES, REPEATS))


def reducing() -> list[Measured]:
    """All-reduces as a ring has them among N: terms 2 (N − 1), and so many bytes over N."""
    return _among(max(RANKS), partial(_reductions, RANKS, BYTES, REPEATS))


def _timed(work: Callable[[], object], repeats: int) -> np.ndarray:
    seconds = np.empty(repeats)
    for _ in range(WARM):
        work()
    for i in range(repeats):
        began = time.perf_counter()
        work()
        seconds[i] = time.perf_counter() - began
    return seconds


# -- among processes -------------------------------------------------------------------------

Work = Callable[[int], list[Measured]]
"""What every process does, told its rank; sizes and repetitions travel with it."""


def _among(ranks: int, work: Work) -> list[Measured]:
    """What rank 0 measures, which is this process; the others are its forks."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        process = partial(forks.context(__name__).Process, target=_as_rank, daemon=True)
        others = [process(args=(work, meeting, rank, ranks)) for rank in range(1, ranks)]
        for other in others:
            other.start()
        try:
            return _as_rank(work, meeting, 0, ranks)
        finally:
            forks.join(others, 30.0)
            forks.end(others)


def _as_rank(work: Work, meeting: str, rank: int, ranks: int) -> list[Measured]:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=ranks,
        init_method=meeting,
        timeout=timedelta(seconds=60.0),
    )
    try:
        return work(rank)
    finally:
        dist.destroy_process_group()


def _copies(sizes: Sequence[int], repeats: int, rank: int) -> list[Measured]:
    messages, line = {size: torch.zeros(size // 4) for size in sizes}, _line(rank)
    return [
        Measured((1.0, size), _timed(partial(_there_and_back, message, rank, line), repeats) / 2.0)
        for size, message in messages.items()
    ]


def _line(rank: int) -> Line:
    """What carries messages between two processes of a run."""
    port = torch.zeros(1, dtype=torch.int64)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port[0] = listening.getsockname()[1]
        dist.broadcast(port, 0)  # pyright: ignore[reportUnknownMemberType]
        if rank == 0:
            return Line(Socket(listening.accept()[0]))
    return Line(Socket(socket.create_connection(("127.0.0.1", int(port)))))


def _there_and_back(message: torch.Tensor, rank: int, line: Line) -> None:
    for sends in (rank == 0, rank == 1):
        if sends:
            send(FrameHeader(Kind.PIECE), line, message)
        else:
            receive(line, FrameHeader, into(message))


def _reductions(
    counts: Sequence[int], sizes: Sequence[int], repeats: int, rank: int
) -> list[Measured]:
    """All all-reduces that a rank is part of."""
    all_reduce = cast(Callable[..., object], dist.all_reduce)  # pyright: ignore[reportUnknownMemberType]
    found: list[Measured] = []
    for count in counts:
        group = dist.new_group(list(range(count)))  # pyright: ignore[reportUnknownMemberType]
        for size in sizes if rank < count else ():
            messages = 2 * (count - 1)
            seconds = _timed(partial(all_reduce, torch.zeros(size // 4), group=group), repeats)
            found.append(Measured((messages, messages * size / count), seconds))
    return found
