"""What a sequence training's configuration and corpus make: networks, losses, a decoder.

Everybody who takes part needs some of it: the one process of a simulated run, or the server, the
trainers and the decoders of a real one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.inner import InnerLoss
from harness.acoustics.mmi import SequenceCriterion
from harness.execution.data.decoding import Decoder, Halves
from harness.execution.data.made import frames_of
from harness.execution.data.minibatches import Examples
from harness.execution.data.references import references_of
from harness.execution.evaluation.frames import log_prior
from harness.execution.runs.sequence import SequenceConfig
from harness.networks.feedforward import Dnn


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of one sequence training.

    Attributes:
        net: the whole network.
        halves: what is trained of it, and what is not.
        part: the trained half's initial parameters [P'].
        loss: what trainers descend on.
        frames: the corpus on its device.
        train: its training utterances.
        criterion: gives outer gradients.
        decoder: decodes training utterances.
    """

    net: Dnn
    halves: Halves
    part: Tensor
    loss: InnerLoss
    frames: Examples
    train: Utterances
    criterion: SequenceCriterion
    decoder: Decoder

    @classmethod
    def of(cls, config: SequenceConfig, corpus: Corpus, initial: Tensor) -> Setup:
        """The parts of a training that starts from ``initial [P]``."""
        net = config.start.network(corpus)
        halves, part = Halves.of(net, initial.to(config.device), config.layers)
        frames, train = frames_of(corpus, config.device), corpus.split("train")
        criterion = SequenceCriterion(config.criterion, references_of(corpus), log_prior(corpus))
        every = config.frames == "all"
        decoder = Decoder(config.device, every, halves, frames, train, criterion)
        loss = inner_loss(config, corpus, halves)
        return cls(net, halves, part, loss, frames, train, criterion, decoder)


def inner_loss(config: SequenceConfig, corpus: Corpus, halves: Halves) -> InnerLoss:
    """What trainers descend on."""
    frozen = () if config.update_silence else tuple(dict.fromkeys(corpus.silence))
    return InnerLoss(halves.net, config.criterion.mass == 0.0, frozen)
