"""Sequence training as paper 3 has it: decoders and trainers side by side, utterance by utterance.

Time and training advance together. How long an utterance stays in its slot depends on how many of
its frames are kept, and that on the parameters it is decoded with. So the utterances in decoders,
whose parameters are known, are decoded and their counts told; then the simulation moves to the
first end of a decoding whose count is unknown, and every fold up to there is executed.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from harness.execution.data.decoding import Seen
from harness.execution.data.slots import Batcher, KeptFrames
from harness.execution.replay import state as resume
from harness.execution.replay.sequence import SequenceReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.executor import Step
from harness.execution.training.setup import Setup
from harness.execution.training.simulated import OnSimulation

WITHOUT_LIMIT = 10**9


class Streams(OnSimulation[SequenceReplay]):
    """Shuffling none or on the fly, simulated; see `SequenceExecutor`.

    Args:
        config: what is run.
        setup: its parts.
    """

    record = None

    def __init__(self, config: SequenceConfig, setup: Setup) -> None:
        self._config, self._setup = config, setup
        self.simulation = config.simulation(setup.train)
        self.batcher = Batcher(config.slots, config.shuffling == "on the fly")
        self.replay = SequenceReplay(
            config.algorithm,
            setup.loss,
            config.algorithm.start(setup.part),
            self.batcher.minibatch,
            slots=config.replicas,
        )
        self._orders = config.orders(setup.train)
        self._decoded = 0

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, as the decoders count."""
        return self._decoded / len(self._setup.train)

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: to the end of the decodings that the decoders are at."""
        del until
        seen = self._decode()
        if any(each.trouble == "not finite" for each in seen):
            return Step([], seen, ended=False)
        self._decoded += len(seen)
        segment = self.simulation.advance(folds=WITHOUT_LIMIT)
        begun = self.simulation.untold()
        self.batcher.follow(segment)
        self.replay.follow(segment, rate, begun)
        return Step([segment], seen, ended=not len(begun.worker))

    def _decode(self) -> list[Seen]:
        """Decode what is in decoders, and tell how much is kept."""
        begun = self.simulation.untold()
        models = [self.replay.decoders[worker] for worker in begun.worker.tolist()]
        utterances = self._orders[begun.worker, begun.number].tolist()
        decoded = self._setup.decoder.decode(models, utterances)
        for utterance, each in zip(begun.utterance.tolist(), decoded, strict=True):
            self.batcher.add(KeptFrames(utterance, each.x, each.outer))
        self.simulation.tell(begun.worker, np.array([len(each.x) for each in decoded], np.int64))
        return [each.seen for each in decoded]

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        replay, replay_facts = self.replay.capture()
        batcher, batcher_facts = self.batcher.capture()
        arrays = {
            **resume.prefixed(self.simulation.state(), "simulation/"),
            **resume.prefixed(replay, "replay/"),
            **resume.prefixed(batcher, "batcher/"),
            "decoders": self.replay.decoders.cpu().numpy(),
        }
        versions = self.replay.decoder_versions
        facts = {"replay": replay_facts, "batcher": batcher_facts, "versions": versions}
        return arrays, {**facts, "decoded": self._decoded}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.simulation = self.simulation.restored(resume.part(arrays, "simulation/"))
        self.simulation.give(self._config.lengths(self._setup.train))
        self.replay.reinstate(resume.part(arrays, "replay/"), facts["replay"])
        batcher = resume.part(arrays, "batcher/")
        self.batcher.reinstate(batcher, facts["batcher"], self._config.device)
        self.replay.decoders.copy_(torch.as_tensor(arrays["decoders"]))
        self.replay.decoder_versions = facts["versions"]
        self._decoded = facts["decoded"]
