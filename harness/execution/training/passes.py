"""Sequence training with fully shuffled frames, which paper 3 compares its shuffling with.

As a pass begins, all utterances are decoded with the same parameters, each replica its part. Then
the frames that were kept are shuffled and trained on asynchronously, as in frame training; outer
gradients stay as they are until the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Minibatch
from harness.execution.data.decoding import Decoded
from harness.execution.data.minibatches import Key
from harness.execution.data.slots import Arrays, Facts
from harness.execution.data.utterances import parts
from harness.execution.replay import state as resume
from harness.execution.replay.stale import StaleReplay
from harness.execution.training.sequence_loop import SequenceTraining
from harness.seeds import stream
from harness.simulator import Simulation, compute_seconds, copy_seconds


@dataclass
class Passes(SequenceTraining[Simulation]):
    """Shuffling full."""

    def _simulation(self) -> Simulation:
        return self.config.simulation(self.train)

    def _restore(self, state: Arrays) -> None:
        self.simulation = self.simulation.restored(state)

    def _prepare(self) -> None:
        algorithm = AsyncSgd()
        self.replay = StaleReplay(
            algorithm,
            self.loss,
            algorithm.start(self.part),
            self._minibatch,
            slots=self.config.replicas,
        )
        self.decoded_with = self.part.clone()
        self.x = self.outer = self.part.new_zeros(0, 0)
        self.shuffled = np.zeros(0, np.int64)

    @property
    def model(self) -> Tensor:
        """The server's parameters [P'] of the trained half."""
        return self.replay.server.model

    @property
    def steps(self) -> int:
        """Minibatches of this pass; the last one may have fewer frames."""
        return -(-len(self.shuffled) // self.config.slots)

    @property
    def epoch(self) -> float:
        """Passes over the frames that were kept."""
        return self.position.stage + self.position.step / max(1, self.steps)

    def _advance(self) -> bool:
        position = self.position
        if position.stage == self.config.passes:
            return False
        if not len(self.shuffled):
            self._begin_pass()
        boundary = self._boundary()
        segment = self.simulation.advance(
            folds=boundary - position.step,
            drain=boundary == self.steps,
            handing_out=None if boundary == self.steps else self.steps - position.step,
        )
        self.replay.run(segment, self.rate)
        self.segments.append(segment)
        position.step = boundary
        if boundary == self.steps:
            position.steps_before += self.steps
            position.stage, position.step = position.stage + 1, 0
            self.shuffled = self.shuffled[:0]
        self._evaluate_when_due()
        return True

    def _boundary(self) -> int:
        """The next step after which the model is measured."""
        share = (len(self.position.measured) - self.position.stage * self.config.evaluations) / (
            self.config.evaluations
        )
        return min(self.steps, max(self.position.step, int(np.ceil(share * self.steps))))

    def _begin_pass(self) -> None:
        """Decode everything, which takes as long as the replica that has most to decode."""
        self.decoded_with = self.model.clone()
        self._count([each.seen for each in self._decode()])
        config = self.config
        if config.decode_cost:
            dealt = parts(config.seed, len(self.train), config.replicas)
            most = max(int(self.train.frames[part].sum()) for part in dealt)
            frame_s = compute_seconds(config.cluster, self.workload) / config.slots
            seconds = copy_seconds(config.cluster, self.workload.parameter_bytes)
            seconds += most * config.decode_cost * frame_s
            if seconds:
                self.segments.append(self.simulation.pause(seconds, "decode"))

    def _decode(self) -> list[Decoded]:
        """Fill in the frames of this pass from the parameters it began with."""
        every = range(len(self.train))
        decoded = self.decoder.decode([self.decoded_with] * len(every), every)
        self.x = torch.cat([each.x for each in decoded])
        self.outer = torch.cat([each.outer for each in decoded])
        drawn = stream(self.config.seed, "sequence frames", self.position.stage)
        self.shuffled = drawn.permutation(len(self.x))
        return decoded

    def _minibatch(self, keys: Sequence[Key]) -> Minibatch:
        size, before = self.config.slots, self.position.steps_before
        index = np.full((len(keys), size), -1)
        for row, (_, step) in enumerate(keys):
            frames = self.shuffled[(step - before) * size :][:size]
            index[row, : len(frames)] = frames
        at = torch.from_numpy(index).to(self.x.device)
        return Minibatch(self.x[at], self.outer[at] * (at >= 0).unsqueeze(2))

    def _capture(self) -> tuple[Arrays, Facts]:
        replay, facts = self.replay.capture()
        arrays = resume.prefixed(replay, "replay/")
        return {**arrays, "decoded_with": self.decoded_with.cpu().numpy()}, {
            "replay": facts,
            "open": len(self.shuffled) > 0,
        }

    def _reinstate(self, arrays: Arrays, facts: Facts) -> None:
        self.replay.reinstate(resume.part(arrays, "replay/"), facts["replay"])
        self.decoded_with.copy_(torch.from_numpy(arrays["decoded_with"]))
        if facts["open"]:
            self._decode()
