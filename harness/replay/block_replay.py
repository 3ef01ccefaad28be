"""Replay of a timeline in blocks of folds, each the same sequence of operations on a device.

A ring holds the last versions of the model, as many as the largest staleness needs: version v is
row v mod M. A read selects a row by its number, and a fold writes the next one. The length of a
block is a multiple of the ring's, so every fold of a block writes the same row as in the last
block. The inputs that differ between blocks (versions read, frames, learning rates, weights) are
copied into fixed tensors beforehand. On a GPU a block is therefore recorded once as a CUDA graph
and then launched; on a CPU its operations are executed.

Contributions are computed as late as their folds, and lost ones never.

Shape letters: M rows of the ring, K folds of a block, W contributions of a fold, S local steps,
B frames, Q numbers of a fold, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.contract import LocalWork, Memory, Repeating, Server
from harness.base.errors import UserError
from harness.networks.contract import Minibatch, Network, pin_for_device
from harness.replay.fold_replay import Arrays, Facts, MinibatchOf, capture_server, reinstate_server
from harness.simulator import Timeline

Work = Callable[[], None]


def capture_graph(work: Work, device: torch.device) -> Work:
    """Wrap work so that a GPU executes it by one launch of a CUDA graph.

    The first call executes the work, because libraries allocate at their first use, which cannot be
    recorded; the second call records it. The tensors that it reads and writes must keep their
    addresses.
    """
    return work if device.type != "cuda" else _GraphCapture(work)


class _GraphCapture:
    """Work on a GPU: executed by the first call, recorded by the second, then replayed."""

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
        self._graph.replay()  # also after recording, which executes nothing

    def _once(self) -> None:
        """Execute the work on a side stream, as recording does."""
        side, present = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(present)
        with torch.cuda.stream(side):
            self._work()
        present.wait_stream(side)


BLOCK = 16
"""Folds of a block; the number of rows of the ring if that is larger."""

ALIGNED = 64
"""Rows of the ring begin at multiples of this many numbers, for vectorised memory access."""

Recorder = Callable[[Work, torch.device], Work]


class Inputs(NamedTuple):
    """Inputs of a block of K folds, which differ between blocks.

    Args:
        reads: rows of the ring that are read, ``[K, W]``.
        x: inputs of the minibatches, ``[K, S, W, B, ...]``.
        targets: targets of the minibatches, in the same layout.
        numbers: see `Repeating.numbers`, ``[K, Q]``.
    """

    reads: Tensor
    x: Tensor
    targets: Tensor
    numbers: Tensor


class BlockReplay:
    """Trains by replaying timeline segments in blocks of folds.

    Args:
        algorithm: its `repeats` is true.
        network: the network to train.
        server: changed in place; its model is another row of the ring after each segment.
        minibatch_of: gives the frames of local steps.
        stack: precision of the models that workers read; the server's model keeps its own.
        recorder: wraps the work of a block, see `capture_graph`.

    Attributes:
        loss: loss of all folded contributions, summed over frames, in nats.
    """

    def __init__(
        self,
        algorithm: Repeating,
        network: Network,
        server: Server,
        minibatch_of: MinibatchOf,
        stack: torch.dtype = torch.float32,
        recorder: Recorder = capture_graph,
    ) -> None:
        self._algorithm, self._network, self._minibatch_of = algorithm, network, minibatch_of
        self._stack, self._recorder = stack, recorder
        self.server = server
        self.loss = server.model.new_zeros((), dtype=torch.float64)
        self._lay_out(1)
        self._enter()

    @torch.no_grad()
    def run(self, segment: Timeline, rate: float, restorable: int | None = None) -> None:
        """Execute every fold of a segment, in its order, at one learning rate.

        Raises:
            UserError: the segment's server fails or is in shards.
        """
        if len(segment.pieces) or len(segment.restarts) or restorable is not None:
            raise UserError(
                "timeline: its server fails or is in shards; allowed in blocks: neither"
            )
        reads, keys = _group_by_fold(segment, self.server.version)
        self._hold(_history(segment, self.server.version + len(reads)))
        at = 0
        while at < len(reads):
            # A segment may begin and end within a block; only whole blocks are recorded.
            place = self.server.version % self.block
            until = min(at + self.block - place, len(reads))
            self._advance(place, reads[at:until], keys[at:until], rate)
            at = until

    def begin_pass(self) -> None:
        """Do nothing: the algorithms keep no memory that a new pass would change."""

    def capture(self) -> tuple[Arrays, Facts]:
        """State for `reinstate`: the server and the ring."""
        arrays, facts = capture_server(self.server)
        return arrays | {"ring": self._ring.float().cpu().numpy()}, {
            **facts,
            "loss": self.loss.item(),
        }

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Restore the state of `capture`.

        Raises:
            UserError: the checkpoint is not of folds in blocks.
        """
        if "ring" not in arrays:
            raise UserError("checkpoint: not of folds in blocks, which this run's device takes")
        ring = torch.as_tensor(arrays["ring"])
        self._lay_out(len(ring))
        self._ring.copy_(ring)
        # Its row first: the server's state is copied into the tensors that it has.
        self.server.model = self._models[facts["version"] % len(self._models)]
        reinstate_server(self.server, arrays, facts)
        self.loss.fill_(facts["loss"])

    def _hold(self, versions: int) -> None:
        """Enlarge the ring to at least ``versions`` rows, and keep the versions that it holds."""
        # A power of two, so that the length of a block is a multiple of it.
        size, before, now = 1 << (versions - 1).bit_length(), self._ring, self.server.version
        if size <= len(before):
            return
        self._lay_out(size)
        for version in range(max(0, now + 1 - len(before)), now):
            self._ring[version % size].copy_(before[version % len(before)])
        self._enter()

    def _enter(self) -> None:
        """Copy the server's model to its row of the ring, and make that row the server's model."""
        model, now = self.server.model, self.server.version
        self._ring[now % len(self._ring)].copy_(model)
        self.server.model = self._models[now % len(self._models)]
        self.server.model.copy_(model)

    def _lay_out(self, size: int) -> None:
        """Allocate an empty ring of ``size`` rows; drops all recordings, which use the old one."""
        model = self.server.model
        width = -(-model.numel() // ALIGNED) * ALIGNED
        self._ring = model.new_zeros(size, width, dtype=self._stack)[:, : model.numel()]
        # Rows of the precision that is folded in are the models themselves.
        apart = self._stack != model.dtype
        self._models = model.new_zeros(1, model.numel()) if apart else self._ring
        self.block = max(BLOCK, size)
        self._inputs: Inputs | None = None
        self._recorded: dict[tuple[int, float], Work] = {}

    def _advance(
        self, place: int, reads: np.ndarray, keys: Sequence[np.ndarray], rate: float
    ) -> None:
        """Execute folds from a place of the block on; a whole block by its recording."""
        count, base = len(reads), self.server.version
        steps = keys[0].shape[0]
        numbers = [self._algorithm.numbers(self.server, rate) for _ in reads]
        model, (x, targets) = self.server.model, self._gather_minibatches(keys)
        told = torch.tensor(numbers, dtype=model.dtype).view(count, -1)
        self._fill(Inputs(torch.as_tensor(reads % len(self._ring)), x, targets, told))
        together = _count_independent(reads.max(1) - base, count)
        local = rate if steps > 1 or self._algorithm.rounds else 0.0
        work = partial(self._folds, place, count, together, local)
        if count == self.block:
            # The rate is a constant of the recording: at another one all of them are useless.
            if all(known != local for _, known in self._recorded):
                self._recorded.clear()
            work = self._recorded.setdefault(
                (together, local), self._recorder(work, self.server.model.device)
            )
        work()
        self.server.model = self._models[(place + count) % len(self._models)]

    def _gather_minibatches(self, keys: Sequence[np.ndarray]) -> Minibatch:
        """Minibatches ``[K, S, W, B, ...]`` of the local steps ``[S, W, 2]`` of each fold."""
        whole = np.stack(keys)
        found = self._minibatch_of([(w, s) for w, s in whole.reshape(-1, 2).tolist()])
        return Minibatch(*(t.view(*whole.shape[:-1], *t.shape[1:]) for t in found))

    def _fill(self, values: Inputs) -> None:
        """Copy a block's inputs into the fixed tensors that its operations read."""
        shapes = [(self.block, *value.shape[1:]) for value in values]
        if self._inputs is None or shapes != [tuple(t.shape) for t in self._inputs]:
            device = self.server.model.device
            new = (torch.zeros(s, dtype=t.dtype) for t, s in zip(values, shapes, strict=True))
            self._inputs = Inputs(*(t.to(device) for t in new))
            self._recorded.clear()
        # In the stream's order, so behind the last block, which may still read these tensors.
        for place, value in zip(self._inputs, values, strict=True):
            place[: len(value)].copy_(pin_for_device(value, place.device), non_blocking=True)

    def _folds(self, place: int, count: int, together: int, rate: float) -> None:
        """Execute the operations of ``count`` folds that begin at a place of the block."""
        assert self._inputs is not None
        server, models, size = self.server, self._models, len(self._ring)
        for first in range(0, count, together):
            some = slice(first, min(first + together, count))
            out = self._contributions(Inputs(*(t[some] for t in self._inputs)), rate)
            for i, contributions in enumerate(out):
                at = place + first + i
                # Rows of the ring; or twice the one model beside a ring of lower precision.
                before, server.model = models[at % len(models)], models[(at + 1) % len(models)]
                self._algorithm.fold_from(
                    server, before, contributions, self._inputs.numbers[first + i]
                )
                if models is not self._ring:
                    self._ring[(at + 1) % size].copy_(server.model)

    def _contributions(self, given: Inputs, rate: float) -> Tensor:
        """Contributions of G folds, ``[G, W, P]``, computed as one batch."""
        shape = given.reads.shape
        replicas = self._ring.index_select(0, given.reads.flatten())
        minibatches = [
            Minibatch(given.x[:, step].flatten(0, 1), given.targets[:, step].flatten(0, 1))
            for step in range(given.x.shape[1])
        ]
        out = torch.empty_like(replicas, dtype=self.server.model.dtype)
        losses = self._algorithm.contribute(
            LocalWork(self._network, replicas, minibatches, out, rate, Memory())
        )
        self.loss += losses.sum(dtype=torch.float64)
        return out.view(*shape, -1)


def _count_independent(behind: np.ndarray, count: int) -> int:
    """Number of folds whose contributions are computed as one batch: a power of two.

    A batch computes before its first fold, so none of its contributions may have read a version
    that the batch itself makes. With staleness s everywhere the result is at most s + 1.

    Args:
        behind: newest version read by each fold's contributions, minus the first fold's version.
        count: number of folds.
    """
    most = 1  # only powers of two, so that few different blocks are recorded
    while 2 * most <= min(count, BLOCK):
        begun = np.arange(count) // (2 * most) * (2 * most)
        if (behind > begun).any():
            break
        most *= 2
    return most


def _history(segment: Timeline, end: int) -> int:
    """Number of versions to hold: one more than the largest staleness, also of those in flight."""
    known = segment.in_flight().read_version
    waiting = end - int(known.min()) if len(known) else 0
    return 1 + max(int(segment.staleness().max(initial=0)), waiting)


def _group_by_fold(segment: Timeline, first: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Versions read ``[F, W]``, and (worker, step) of every local step, ``[S, W, 2]`` per fold.

    Raises:
        UserError: folds differ in their number of contributions or of local steps.
        ValueError: the segment does not begin at the version ``first``.
    """
    rows = segment.folded()
    order = np.lexsort((rows.worker, rows.fold))
    folds, counts = np.unique(rows.fold, return_counts=True)
    if len(folds) and folds[0] != first:
        raise ValueError(f"fold {folds[0]} meets version {first}")
    if len(np.unique(counts)) > 1 or len(np.unique(rows.steps)) > 1:
        raise UserError("timeline: folds that take unlike contributions; allowed in blocks: alike")
    width = int(counts[0]) if len(counts) else 1
    steps = int(rows.steps[0]) if len(rows.steps) else 1
    whose, begin = (each[order].reshape(-1, width) for each in (rows.worker, rows.first_step))
    named = begin[:, None] + np.arange(steps)[:, None]
    keys = np.stack([np.broadcast_to(whose[:, None], named.shape), named], 3)
    return rows.read_version[order].reshape(-1, width), list(keys)
