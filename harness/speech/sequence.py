"""What sequence training is built from: its schedule, simulation, networks, losses and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.mmi import InnerLoss, Outer, SequenceCriterion
from harness.algorithms.schedules import Schedule
from harness.base.settings import setting
from harness.experiment.experiment import AnyExperiment
from harness.networks.feedforward import Dnn
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline
from harness.speech.decoding import Decoder, Halves, orders, references_of
from harness.speech.evaluation import log_prior
from harness.speech.frames import frames_of
from harness.speech.protocol import Sequence
from harness.tasks.order import Examples


@dataclass(frozen=True)
class Plateau(Schedule):
    """Learning rate schedule: the rate falls when the held-out criterion flattens.

    Paper 3, section 4.2: "decays by a factor of 10 after the convergence curve flattens".

    Args:
        rate: the initial learning rate.
        patience: number of evaluations in a row that gain too little.
        least_gain: least gain of the best of them over the best before, as a share of the
            total gain until then.
        factor: factor of the rate at each fall.
        most: largest number of falls.
        at: evaluations, counted from 1, after which the rate falls, whatever the criterion does;
            without them the criterion decides. Runs that are compared then fall alike.
    """

    of_folds: ClassVar[bool] = False

    rate: float = setting(above=0.0)
    patience: int = 3
    least_gain: float = 0.02
    factor: float = 0.1
    most: int = 2
    at: tuple[int, ...] = setting((), at_least=1)

    def rate_after(self, values: list[float]) -> float:
        """The learning rate after evaluations of the criterion, oldest first.

        Args:
            values: the criterion, larger is better; the first value is that of the start.
        """
        if self.at:
            return self.rate * self.factor ** sum(number < len(values) for number in self.at)
        rate, fallen, since = self.rate, 0, 1
        for reading in range(1, len(values)):
            if fallen < self.most and reading - since >= self.patience:
                before, recent = values[: reading - self.patience + 1], values[: reading + 1]
                gained = max(before) - values[0]
                if max(recent) - max(before) <= self.least_gain * gained:
                    rate, fallen, since = rate * self.factor, fallen + 1, reading
        return rate


def orders_of(config: AnyExperiment, train: Utterances) -> np.ndarray:
    """Utterances of each replica in order of decoding: int64 [replicas, most], then -1."""
    return orders(config.seed, len(train), config.workers, max(1, config.passes))


def simulation_of(config: AnyExperiment, train: Utterances) -> Simulation:
    """The simulation of a run at time 0, with the lengths of the utterances to decode."""
    order = orders_of(config, train)
    lengths = np.where(order < 0, 0, train.frames[order])
    return config.new_simulation(cast(Sequence, config.timed).give(lengths))


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of one sequence training.

    Attributes:
        protocol: decoders and minibatches.
        net: the whole network.
        halves: its trained and its fixed layers.
        part: the trained half's initial parameters [P'].
        loss: loss of the trainers.
        frames: the corpus on its device.
        train: its training utterances.
        criterion: computes outer gradients.
        decoder: decodes training utterances.
    """

    protocol: Sequence
    net: Dnn
    halves: Halves
    part: Tensor
    loss: InnerLoss
    frames: Examples
    train: Utterances
    criterion: SequenceCriterion
    decoder: Decoder

    @classmethod
    def from_config(cls, config: AnyExperiment, corpus: Corpus, initial: Tensor) -> Setup:
        """Build the parts of a training with initial parameters ``initial [P]``."""
        task = config.task
        net: Dnn = task.start.task.network(corpus)
        halves, part = Halves.split(net, initial.to(config.device), task.layers)
        frames, train = frames_of(corpus, config.device), corpus.split("train")
        criterion = SequenceCriterion(task.criterion, references_of(corpus), log_prior(corpus))
        every = task.frames == "all"
        decoder = Decoder(every, halves, frames, train, criterion)
        frozen = () if task.update_silence else tuple(dict.fromkeys(corpus.silence))
        loss = InnerLoss(halves.net, task.criterion.mass == 0.0, frozen)
        protocol = cast(Sequence, config.protocol)
        return cls(protocol, net, halves, part, loss, frames, train, criterion, decoder)


class Step(NamedTuple):
    """Result of one advance of an executor of sequence training.

    Attributes:
        happened: successive segments of the timeline.
        seen: outer gradients with their statistics, in the order of the reports.
        ended: whether training is complete.
    """

    happened: list[Timeline]
    seen: list[Outer]
    ended: bool
