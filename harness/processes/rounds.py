"""Rounds of model averaging on real processes: all workers contribute, then the server folds.

The server gathers the contribution of every worker, folds them together and sends the model of the
next round. A round needs all workers: when one dies, the run ends, and resumes from its last
checkpoint, which holds what each worker remembers (such as the state of its optimizer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from harness.algorithms.contract import Fold
from harness.experiment.experiment import AnyExperiment
from harness.processes.recorder import Work
from harness.processes.server import NOT_FINITE, NoWorkersLeft, OnProcesses, is_finite
from harness.processes.transport import Header, Kind
from harness.simulator.timeline import Timeline


class Rounds(OnProcesses):
    """An executor of training in rounds: see `OnProcesses`.

    Raises:
        NoWorkersLeft: a worker is missing.
    """

    def __init__(self, config: AnyExperiment, *parts: Any) -> None:
        assert config.handing.own is not None  # each worker has its own part of the data
        self._next, self._every = 0, config.handing.own
        super().__init__(config, *parts)
        self._rows = torch.stack(
            [torch.empty_like(self.server.model, device="cpu")] * self._workers
        )
        for worker in sorted(set(range(self._workers)).difference(self.free)):
            self._lose(worker, "has not connected")

    def _lose(self, worker: int, reason: str) -> Work | None:
        self._peers.drop(worker, reason)
        raise NoWorkersLeft(f"worker {worker} {reason}; a round needs all workers")

    def advance(self, folds: int, *, handing_out: int | None, rate: float) -> Timeline:
        """See `FoldExecutor`; between rounds nothing is in flight.

        Raises:
            NoWorkersLeft: a worker is gone.
        """
        del handing_out
        self.recorder.go_on(self.now_s)
        for _ in range(folds):
            self._train_round(rate)
        self.recorder.leave(self.now_s)
        return self.recorder.segment(())

    def _train_round(self, rate: float) -> None:
        workers, version = range(self._workers), self.server.version
        for worker in workers:
            self._hand_out(worker, self._next, self._every, rate)
        headers = dict[int, Header]()
        while len(headers) < self._workers:
            message = self._receive()
            if message is not None and message.header is not None:
                self._fill(self._rows[message.worker], message)
                headers[message.worker] = message.header
        doubtful = [w for w in workers if not is_finite(headers[w], self._rows[w])]
        if 0 < len(doubtful) < self._workers:  # of all together it is believed: training diverges
            self._lose(doubtful[0], f"{NOT_FINITE}, which those of the others are")
        fold_rate = self._rates.fold_rate(rate, version)
        weights = [float(self._every)] * self._workers
        rows = self._rows.to(self.server.model.device)
        self._algorithm.fold(self.server, Fold(rows, [0] * len(rows), fold_rate, workers, weights))
        works = [self.out.pop(worker) for worker in workers]
        computed = [self._moments(headers[work.worker], work)[1] for work in works]
        self.recorder.record_round(version, works, computed, [self.now_s] * self._workers)
        self.loss += sum(headers[worker].loss for worker in workers)
        self._next += self._every

    def begin_stage(self) -> None:
        """See `FoldExecutor`; workers receive the stage with their next work."""
        self._next = self._minibatches.before

    def state(self) -> dict[str, Any]:
        """See `Executor`.

        Raises:
            NoWorkersLeft: a worker is gone.
        """
        for worker in range(self._workers):
            self._peers.send(worker, Header(Kind.RECALL))
            self._await(worker, Kind.MEMORY)
        memories = dict[int, tuple[int, Tensor]]()
        while len(memories) < self._workers:
            message = self._receive()
            if message is not None and message.header is not None:
                words = torch.frombuffer(bytearray(message.body), dtype=torch.uint8)
                memories[message.worker] = message.header.steps, words
        data = self._minibatches
        return {
            "server": self.server,
            "next": self._next,
            "told": (data.stage, data.before),
            "memories": memories,
            "loss": self.loss,
            "now_s": self.now_s,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Executor`."""
        self.server.restore(state["server"])
        self._next, self.loss = state["next"], state["loss"]
        self._go_on_at(state["now_s"])
        for worker, (new_pass, words) in state["memories"].items():
            header = Header(Kind.MEMORY, 0, new_pass, *state["told"])
            self._peers.send(worker, header, words.cpu())
