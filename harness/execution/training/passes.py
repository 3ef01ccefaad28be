"""Sequence training with fully shuffled frames, which paper 3 compares its shuffling with.

As a pass begins, all utterances are decoded with the same parameters, each replica its part. Then
the frames that were kept are shuffled and trained on asynchronously, as in frame training; outer
gradients stay as they are until the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np
import torch

from harness.base.seeds import stream
from harness.execution.data.decoding import Seen
from harness.execution.data.minibatches import Key
from harness.execution.data.utterances import parts
from harness.execution.replay import state as resume
from harness.execution.replay.stale import StaleReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.executor import Step
from harness.execution.training.setup import Setup
from harness.execution.training.simulated import OnSimulation
from harness.networks.contract import Minibatch
from harness.simulator import Timeline, compute_seconds, copy_seconds


class Passes(OnSimulation[StaleReplay]):
    """Shuffling full, simulated; see `SequenceExecutor`.

    Args:
        config: what is run.
        setup: its parts.
    """

    record = None

    def __init__(self, config: SequenceConfig, setup: Setup) -> None:
        self._config, self._setup = config, setup
        self.simulation = config.simulation(setup.train)
        self.replay = StaleReplay(
            config.algorithm,
            setup.loss,
            config.algorithm.start(setup.part),
            self._minibatch,
            slots=config.replicas,
        )
        self._pass = self._step = self._steps_before = 0
        self._decoded_with = setup.part.clone()
        self._x = self._outer = setup.part.new_zeros(0, 0)
        self._shuffled = np.zeros(0, np.int64)

    @property
    def epoch(self) -> float:
        """Passes over the frames that were kept."""
        return self._pass + self._step / max(1, self._steps)

    @property
    def _steps(self) -> int:
        """Minibatches of this pass; the last one may have fewer frames."""
        return -(-len(self._shuffled) // self._config.slots)

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: to ``until`` or the end of the pass, and decode at its begin."""
        happened, seen = list[Timeline](), list[Seen]()
        if not len(self._shuffled):
            self._decoded_with = self.server.model.clone()
            seen = self._decode()
            if any(each.trouble == "not finite" for each in seen):
                return Step(happened, seen, ended=False)
            happened += self._pause()
        boundary = max(self._step, ceil(float(until - self._pass) * self._steps))
        boundary, last = min(self._steps, boundary), boundary >= self._steps
        segment = self.simulation.advance(
            folds=boundary - self._step,
            drain=last,
            handing_out=None if last else self._steps - self._step,
        )
        self.replay.run(segment, rate)
        self._step = boundary
        if last:
            self._end_pass()
        return Step([*happened, segment], seen, ended=self._pass == self._config.passes)

    def _end_pass(self) -> None:
        self._steps_before += self._steps
        self._pass, self._step = self._pass + 1, 0
        self._shuffled = self._shuffled[:0]

    def _pause(self) -> list[Timeline]:
        """Decoding everything takes as long as the replica that has most to decode."""
        config, train = self._config, self._setup.train
        if not config.decode_cost:
            return []
        dealt = parts(config.seed, len(train), config.replicas)
        most = max(int(train.frames[part].sum()) for part in dealt)
        frame_s = compute_seconds(config.cluster, config.workload) / config.slots
        seconds = copy_seconds(config.cluster, config.workload.parameter_bytes)
        seconds += most * config.decode_cost * frame_s
        return [self.simulation.pause(seconds, "decode")] if seconds else []

    def _decode(self) -> list[Seen]:
        """Fill in the frames of this pass from the parameters it began with."""
        every = range(len(self._setup.train))
        decoded = self._setup.decoder.decode([self._decoded_with] * len(every), every)
        self._x = torch.cat([each.x for each in decoded])
        self._outer = torch.cat([each.outer for each in decoded])
        drawn = stream(self._config.seed, "sequence frames", self._pass)
        self._shuffled = drawn.permutation(len(self._x))
        return [each.seen for each in decoded]

    def _minibatch(self, keys: Sequence[Key]) -> Minibatch:
        size = self._config.slots
        index = np.full((len(keys), size), -1)
        for row, (_, step) in enumerate(keys):
            frames = self._shuffled[(step - self._steps_before) * size :][:size]
            index[row, : len(frames)] = frames
        at = torch.as_tensor(index).to(self._x.device)
        return Minibatch(self._x[at], self._outer[at] * (at >= 0).unsqueeze(2))

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; the frames are decoded again from the parameters they came from."""
        replay, facts = self.replay.capture()
        arrays = {
            **resume.prefixed(self.simulation.state(), "simulation/"),
            **resume.prefixed(replay, "replay/"),
            "decoded_with": self._decoded_with.cpu().numpy(),
        }
        place = {"pass": self._pass, "step": self._step, "steps_before": self._steps_before}
        return arrays, {"replay": facts, "open": len(self._shuffled) > 0, **place}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self._pass, self._step = facts["pass"], facts["step"]
        self._steps_before = facts["steps_before"]
        self.simulation = self.simulation.restored(resume.part(arrays, "simulation/"))
        self.replay.reinstate(resume.part(arrays, "replay/"), facts["replay"])
        self._decoded_with.copy_(torch.as_tensor(arrays["decoded_with"]))
        if facts["open"]:
            self._decode()
