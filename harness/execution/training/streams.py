"""Sequence training as paper 3 has it: decoders and trainers side by side, utterance by utterance.

Time and training advance together. How long an utterance stays in its slot depends on how many of
its frames are kept, and that on the parameters it is decoded with. So the simulation moves to
the first end of a decoding whose count is unknown; every fold up to there is executed; all the
utterances in decoders, whose parameters are known by then, are decoded; their counts are told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.execution.data.slots import Arrays, Batcher, Facts, Kept
from harness.execution.replay import state as resume
from harness.execution.replay.sequence import SequenceReplay
from harness.execution.training.sequence_loop import SequenceTraining
from harness.simulator import Simulation

WITHOUT_LIMIT = 10**9


@dataclass
class Streams(SequenceTraining[Simulation]):
    """Shuffling none or on the fly."""

    def _simulation(self) -> Simulation:
        return self.config.simulation(self.train)

    def _restore(self, state: Arrays) -> None:
        self.simulation = self.simulation.restored(state)

    def _prepare(self) -> None:
        config = self.config
        algorithm = AsyncSgd()
        self.batcher = Batcher(config.slots, config.shuffling == "on the fly")
        self.replay = SequenceReplay(
            algorithm,
            self.loss,
            algorithm.start(self.part),
            self.batcher.minibatch,
            slots=config.replicas,
        )
        self.orders = config.orders(self.train)

    @property
    def model(self) -> Tensor:
        """The server's parameters [P'] of the trained half."""
        return self.replay.server.model

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, as the decoders count."""
        return self.position.decoded / len(self.train)

    def _advance(self) -> bool:
        if not self.config.passes:
            return False
        segment = self.simulation.advance(folds=WITHOUT_LIMIT)
        begun = self.simulation.untold()
        self.batcher.follow(segment)
        self.replay.follow(segment, self.rate, begun)
        self.segments.append(segment)
        self._evaluate_when_due()
        if not len(begun.worker):
            return False
        models = [self.replay.decoders[worker] for worker in begun.worker.tolist()]
        decoded = self.decoder.decode(models, self.orders[begun.worker, begun.number].tolist())
        self._count([each.seen for each in decoded])
        for utterance, each in zip(begun.utterance.tolist(), decoded, strict=True):
            self.batcher.add(Kept(utterance, each.x, each.outer))
        self.simulation.tell(begun.worker, np.array([len(each.x) for each in decoded]))
        return True

    def _capture(self) -> tuple[Arrays, Facts]:
        replay, replay_facts = self.replay.capture()
        batcher, batcher_facts = self.batcher.capture()
        arrays = {
            **resume.prefixed(replay, "replay/"),
            **resume.prefixed(batcher, "batcher/"),
            "decoders": self.replay.decoders.cpu().numpy(),
        }
        versions = self.replay.decoder_versions
        return arrays, {"replay": replay_facts, "batcher": batcher_facts, "versions": versions}

    def _reinstate(self, arrays: Arrays, facts: Facts) -> None:
        self.replay.reinstate(resume.part(arrays, "replay/"), facts["replay"])
        batcher = resume.part(arrays, "batcher/")
        self.batcher.reinstate(batcher, facts["batcher"], self.config.device)
        self.replay.decoders.copy_(torch.from_numpy(arrays["decoders"]))
        self.replay.decoder_versions = facts["versions"]
        self.simulation.give(self.config.lengths(self.train))
