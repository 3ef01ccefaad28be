"""The configuration of sequence training, and the networks, losses and decoder built from it.

Every process that takes part builds some of them: the one process of a simulated run, or the
server, the trainers and the decoders of a real one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.mmi import Criterion, InnerLoss, SequenceCriterion
from harness.algorithms.async_sgd import AsyncSgd, Gradients
from harness.base.errors import UserError, name_error
from harness.base.settings import setting
from harness.experiment.contract import Reads, TaskConfig
from harness.experiment.experiment import Experiment, plain
from harness.experiment.loop import Executor
from harness.networks.feedforward import Dnn
from harness.simulator import Cluster, ParameterServer, Simulation, Timeline, Workload
from harness.simulator.timeline import inner_lag, outer_lag, pass_lag, push_lag
from harness.speech.decoding import Decoder, DecodeStats, Halves, orders, references_of
from harness.speech.evaluation import log_prior
from harness.speech.frames import frames_of
from harness.speech.protocol import Sequence
from harness.speech.task import Frames
from harness.tasks.order import Examples

SHUFFLINGS = ("none", "on the fly", "full")

LAYERS = ("all", "last")

FRAMES = ("kept", "all")


@dataclass(frozen=True)
class Plateau:
    """Learning rate schedule: the rate falls when the held-out criterion flattens.

    Paper 3, section 4.2: "decays by a factor of 10 after the convergence curve flattens".

    Args:
        patience: number of evaluations in a row that gain too little.
        least_gain: least gain of the best of them over the best before, as a share of the
            total gain until then.
        factor: factor of the rate at each fall.
        most: largest number of falls.
        at: evaluations, counted from 1, after which the rate falls, whatever the criterion does;
            without them the criterion decides. Runs that are compared then fall alike.
    """

    patience: int = 3
    least_gain: float = 0.02
    factor: float = 0.1
    most: int = 2
    at: tuple[int, ...] = setting((), at_least=1)

    def rate(self, first: float, values: list[float]) -> float:
        """The learning rate after evaluations of the criterion, oldest first.

        Args:
            first: the initial rate.
            values: the criterion, larger is better; the first value is that of the start.
        """
        if self.at:
            return first * self.factor ** sum(number < len(values) for number in self.at)
        rate, fallen, since = first, 0, 1
        for reading in range(1, len(values)):
            if fallen < self.most and reading - since >= self.patience:
                before, recent = values[: reading - self.patience + 1], values[: reading + 1]
                gained = max(before) - values[0]
                if max(recent) - max(before) <= self.least_gain * gained:
                    rate, fallen, since = rate * self.factor, fallen + 1, reading
        return rate


@dataclass(frozen=True)
class SequenceConfig(TaskConfig):
    """One asynchronous sequence training on a simulated cluster.

    Args:
        corpus: name of a corpus, or folder of a saved one (docs/corpora.md).
        scale: size of a generated corpus: smoke, laptop, overnight, gpu or paper.
        corpus_seed: seed of a generated corpus.
        fingerprint: SHA-256 of the corpus's content.
        start: the cross-entropy training whose final model is the initial model.
        criterion: the sequence criterion, from which decoders compute outer gradients.
        cluster: the simulated cluster.
        timed_layers: units of every layer of the network whose time and bytes the cluster is
            charged for; inputs and outputs included.
        seed: seed of the timing and the data order; ``start`` has a seed of its own.
        device: ``"cpu"`` or ``"cuda"``; part of the identity, since results differ in their last
            bits.
        replicas: number of workers; each has a decoder, a trainer and a part of the utterances.
        slots: number of frames in a minibatch; with ``shuffling`` ``"on the fly"``, one frame of
            each of as many utterances.
        rate: learning rate, which multiplies gradients summed over a minibatch.
        plateau: learning-rate schedule; without it the rate is constant.
        passes: number of passes over the utterances; 0 only evaluates the initial model.
        shuffling: ``"none"`` trains on one utterance after another, ``"on the fly"`` on a
            frame of each slot's utterance (paper 3, section 3.1), ``"full"`` on frames of all
            utterances, which are decoded together at the start of a pass.
        fetch_s: interval between parameter fetches of a decoder, in virtual seconds; the decoder
            fetches at its first utterance after each multiple. Without it, a decoder fetches at
            the start of each utterance.
        layers: layers that are updated: ``"all"``, or only the ``"last"``.
        update_silence: whether the outputs for silence are updated.
        frames: frames in minibatches: those ``"kept"`` by rejection and cancellation, or
            ``"all"``, of which the others have an outer gradient of zero.
        evaluations: number of evaluations in each pass.
        held_out: number of development utterances for evaluations, evenly spaced.
        order: order of the n-gram language model for decoding the test sets.
        test: whether words are recognised: on held-out speech at each evaluation, and on the test
            sets at the end.
        decode_cost: time of decoding a frame, as a multiple of the time of training on it.
        waiting: largest number of decoded utterances in a replica's queue.
        shards: number of parts of the server, for timing; a fold is complete with its last piece.
        algorithm: the server's fold rule: `AsyncSgd`, or another class derived from `Gradients`.
            The staleness that it receives is that of inner gradients.

    Raises:
        UserError: settings that are not allowed, or do not go together.
    """

    corpus: str
    scale: str
    corpus_seed: int
    fingerprint: str
    start: Experiment[Frames]
    criterion: Criterion
    cluster: Cluster
    timed_layers: tuple[int, ...]
    seed: int
    device: str
    replicas: int = 1
    slots: int = 32
    rate: float = 0.001
    plateau: Plateau | None = None
    passes: int = 1
    shuffling: Literal["none", "on the fly", "full"] = "on the fly"
    fetch_s: float | None = None
    layers: Literal["all", "last"] = "all"
    update_silence: bool = True
    frames: Literal["kept", "all"] = "kept"
    evaluations: int = 4
    held_out: int = 200
    order: int = 3
    test: bool = True
    decode_cost: float = 1.875
    waiting: int = 1
    shards: int = 1
    algorithm: AsyncSgd | Gradients = setting(AsyncSgd())

    def __post_init__(self) -> None:
        allowed = {"shuffling": SHUFFLINGS, "layers": LAYERS, "frames": FRAMES}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise name_error(name, getattr(self, name), values)
        least = {"passes": 0, "decode_cost": 0}
        from_one = ("replicas", "slots", "evaluations", "held_out", "order", "waiting", "shards")
        for name, low in {**dict.fromkeys(from_one, 1), **least}.items():
            if getattr(self, name) < low:
                raise UserError(f"{name}: {getattr(self, name)}; allowed: at least {low}")
        if not self.rate > 0.0:
            raise UserError(f"rate: {self.rate}; allowed: above 0")
        _check_algorithm(self.algorithm, self.shards)

    @property
    def kind(self) -> str:
        """See `TaskConfig`."""
        return "sequence"

    @property
    def count(self) -> int:
        """See `TaskConfig`."""
        return self.replicas

    def with_cluster(self, cluster: Cluster | None = None, count: int | None = None) -> Self:
        """See `TaskConfig`."""
        return replace(self, cluster=cluster or self.cluster, replicas=count or self.replicas)

    @property
    def judged(self) -> str:
        """Name of the metric: share of wrong frames on the development set."""
        return "dev_frame_error"

    def reads(self) -> Reads:
        """See `TaskConfig`.

        ``push`` is the end of computing; ``outer`` is the decoder's read, frame by frame, or
        minibatch by minibatch if everything is decoded at the start of a pass.
        """
        outer: Reads = {}
        if self.shuffling != "full":
            slots = None if self.shuffling == "on the fly" else self.slots
            outer = {"outer": partial(outer_lag, slots=slots)}
        elif self.decode_cost or self.passes == 1:  # else no pause in the timeline marks a pass
            outer = {"outer": pass_lag}
        return {"inner": inner_lag, **outer, "push": push_lag}

    def workload(self, number: int = 0) -> Workload:
        """See `TaskConfig`."""
        del number
        return Workload.of_network(self.timed_layers, self.slots)

    @property
    def effort(self) -> float:
        """See `Configuration`; its network is that of the training that it starts from."""
        return float(self.passes * self.start.task.size)

    @property
    def timed(self) -> Sequence | ParameterServer:
        """The simulated protocol; frames shuffled over whole passes need no decoders in it."""
        if self.shuffling == "full":
            return ParameterServer()
        return Sequence(
            slots=self.slots,
            decode_cost=self.decode_cost,
            fetch_s=self.fetch_s,
            waiting=self.waiting,
            shards=self.shards,
            shuffled=self.shuffling == "on the fly",
        )

    def orders(self, train: Utterances) -> np.ndarray:
        """Utterances of each replica in order of decoding: int64 [replicas, most], then -1."""
        return orders(self.seed, len(train), self.replicas, max(1, self.passes))

    def simulation(self, train: Utterances, cluster: Cluster | None = None) -> Simulation:
        """Build the simulation at time 0, with the lengths of the utterances to decode.

        Args:
            train: the training utterances.
            cluster: cluster in place of the run's own.
        """
        machine, protocol = cluster or self.cluster, self.timed
        if isinstance(protocol, Sequence):
            protocol = protocol.give(self.lengths(train))
        return Simulation(machine, protocol, self.workload(), self.replicas, self.seed)

    def lengths(self, train: Utterances) -> np.ndarray:
        """Frames of the utterances in ``orders``, 0 where it has -1."""
        order = self.orders(train)
        return np.where(order < 0, 0, train.frames[order])

    def to_dict(self) -> dict[str, Any]:
        """Canonical plain JSON values, which the run's identity hashes."""
        return plain(self)


def _check_algorithm(algorithm: object, shards: int) -> None:
    """Reject an algorithm that sequence training cannot fold with.

    Raises:
        UserError: its contributions are not gradients, or its server cannot be in shards.
    """
    name = type(algorithm).__name__
    if not isinstance(algorithm, AsyncSgd | Gradients) or algorithm.remembers:
        allowed = "AsyncSgd, or what derives from Gradients and remembers nothing"
        raise UserError(f"algorithm: {name} is not allowed; allowed: {allowed}")
    if shards > 1 and not algorithm.in_shards:
        raise UserError(f"shards: {shards} is not allowed with {name}; allowed: 1")


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of one sequence training.

    Attributes:
        net: the whole network.
        halves: its trained and its fixed layers.
        part: the trained half's initial parameters [P'].
        loss: loss of the trainers.
        frames: the corpus on its device.
        train: its training utterances.
        criterion: computes outer gradients.
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
    def from_config(cls, config: SequenceConfig, corpus: Corpus, initial: Tensor) -> Setup:
        """Build the parts of a training with initial parameters ``initial [P]``."""
        net = config.start.task.network(corpus)
        halves, part = Halves.split(net, initial.to(config.device), config.layers)
        frames, train = frames_of(corpus, config.device), corpus.split("train")
        criterion = SequenceCriterion(config.criterion, references_of(corpus), log_prior(corpus))
        every = config.frames == "all"
        decoder = Decoder(every, halves, frames, train, criterion)
        frozen = () if config.update_silence else tuple(dict.fromkeys(corpus.silence))
        loss = InnerLoss(halves.net, config.criterion.mass == 0.0, frozen)
        return cls(net, halves, part, loss, frames, train, criterion, decoder)


class Step(NamedTuple):
    """Result of one advance of an executor of sequence training.

    Attributes:
        happened: successive segments of the timeline.
        seen: decoding statistics, in the order of the reports.
        ended: whether training is complete.
    """

    happened: list[Timeline]
    seen: list[DecodeStats]
    ended: bool


class SequenceExecutor(Executor, Protocol):
    """Executor of sequence training; its boundaries are shares of a pass of the decoders."""

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far."""
        ...

    def advance(self, rate: float, until: Fraction) -> Step:
        """Advance at one learning rate, by the executor's own step, up to ``until`` passes."""
        ...
