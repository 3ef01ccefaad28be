"""The configuration of sequence training, and the networks and losses made from it.

The full configuration of a sequence training run.

What a sequence training's configuration and corpus make: networks, losses, a decoder. Everybody
who takes part needs some of it: the one process of a simulated run, or the server, the trainers
and the decoders of a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from torch import Tensor

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.mmi import Criterion, InnerLoss, SequenceCriterion
from harness.algorithms.async_sgd import AsyncSgd, Gradients
from harness.base.errors import UserError, name_error
from harness.base.settings import counts, set_apart, setting
from harness.networks.feedforward import Dnn
from harness.replay.stale import Arrays
from harness.runs.config import plain
from harness.simulator import Cluster, ParameterServer, Simulation, Timeline, Workload
from harness.simulator.timeline import inner_lag, outer_lag, pass_lag, push_lag
from harness.speech.decoding import Decoder, DecodeStats, Halves, orders, references_of
from harness.speech.evaluation import log_prior
from harness.speech.frames import RunConfig, find_idle_of_folder, frames_of
from harness.speech.protocol import Sequence
from harness.tasks.contract import Reads, TaskConfig
from harness.tasks.order import Examples
from harness.training.loop import Executor

FORMAT = 3
"""Grows when the same configuration would no longer give the same bytes."""

SHUFFLINGS = ("none", "on the fly", "full")

LAYERS = ("all", "last")

FRAMES = ("kept", "all")

STEPWISE = ("fetch_s", "waiting", "shards")
"""Settings of decoders that work while frames are trained on."""

OF_THE_WHOLE = ("parallel.epoch_minibatches", "scale", "corpus_seed")
"""Keys that a run and the one it starts from have in common."""


@dataclass(frozen=True)
class Plateau:
    """A rate that falls once the held-out criterion has flattened for a while.

    Paper 3, section 4.2: "decays by a factor of 10 after the convergence curve flattens".

    Args:
        patience: evaluations in a row that gain too little.
        least_gain: what the best of them must add to the best before, as a share of all
            that was gained until then.
        factor: what the rate is multiplied with.
        most: how often, at most.
    """

    patience: int = 3
    least_gain: float = 0.02
    factor: float = 0.1
    most: int = 2

    def rate(self, first: float, values: list[float]) -> float:
        """The rate after evaluations that found the criterion at ``values``, oldest first.

        Args:
            first: the rate at the beginning.
            values: the criterion, larger is better; the first one is of the start.
        """
        rate, fallen, since = first, 0, 1
        for now in range(1, len(values)):
            if fallen < self.most and now - since >= self.patience:
                before, recent = values[: now - self.patience + 1], values[: now + 1]
                gained = max(before) - values[0]
                if max(recent) - max(before) <= self.least_gain * gained:
                    rate, fallen, since = rate * self.factor, fallen + 1, now
        return rate


@dataclass(frozen=True)
class SequenceConfig(TaskConfig):
    """One asynchronous sequence training on a simulated cluster.

    Args:
        corpus: which, by name, or the folder of one (docs/corpora.md).
        scale: how much of it.
        corpus_seed: what it is made with, if it is made.
        fingerprint: the SHA-256 of its content.
        start: the training whose final model this one starts from.
        criterion: what an utterance's outer gradient is the gradient of.
        cluster: the machine.
        timed_layers: sizes of the network it is charged for (units a level).
        seed: of timing and of the data's order; ``start`` has one of its own.
        device: ``"cpu"`` or ``"cuda"``: results differ in their last bits, so it counts.
        replicas: workers, each with a decoder, a trainer and a part of the utterances.
        slots: frames of a minibatch.
        rate: multiplies gradients that are summed over a minibatch.
        plateau: when the rate falls; None is never.
        passes: how often every utterance is decoded; 0 measures the start.
        shuffling: ``"none"`` trains on one utterance after another, ``"on the fly"`` on a
            frame of each slot's utterance (paper 3, section 3.1), ``"full"`` on frames of all
            utterances, which are decoded together when a pass begins.
        fetch_s: interval of the decoders' fetches, the same moments for all, each as its next
            utterance begins; None is at the start of each utterance.
        layers: ``"all"`` are updated, or the ``"last"`` alone.
        update_silence: whether the outputs of silence are updated.
        frames: which enter minibatches: those ``"kept"`` by rejection and cancellation, or
            ``"all"``, the others with an outer gradient of zero.
        evaluations: how often in a pass the model is measured.
        held_out: utterances of the development set it is measured on, evenly chosen.
        order: of the language model that the test sets are decoded with.
        test: whether words are recognised: of held-out speech whenever the model is measured, and
            of the test sets at the end.
        decode_cost: decoding a frame takes as long as training on so many.
        waiting: decoded utterances of a replica that may wait for a slot.
        shards: parts of the server, for timing; a fold is complete with its last piece.
        algorithm: how the server folds gradients: `AsyncSgd`, or what derives from `Gradients`.
            Its staleness is that of inner gradients.

    Raises:
        UserError: settings that are not allowed, or do not go together.
    """

    task: ClassVar[str] = "sequence"
    charge: ClassVar[str] = "time is charged for timed_layers"

    corpus: str
    scale: str
    corpus_seed: int
    fingerprint: str
    start: RunConfig
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
    algorithm: AsyncSgd | Gradients = setting(AsyncSgd(), added=True)
    format: int = FORMAT

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
    def count(self) -> int:
        """See `TaskConfig`."""
        return self.replicas

    def with_cluster(self, cluster: Cluster | None = None, count: int | None = None) -> Self:
        """See `TaskConfig`."""
        return replace(self, cluster=cluster or self.cluster, replicas=count or self.replicas)

    @property
    def judged(self) -> str:
        """Frames wrong on the development set."""
        return "dev_frame_error"

    def reads(self) -> Reads:
        """See `TaskConfig`.

        ``push`` is the end of computing; ``outer`` is the decoder's read, frame by frame, or
        minibatch by minibatch where everything is decoded as a pass begins.
        """
        outer: Reads = {}
        if self.shuffling != "full":
            slots = None if self.shuffling == "on the fly" else self.slots
            outer = {"outer": partial(outer_lag, slots=slots)}
        elif self.decode_cost or self.passes == 1:  # else nothing says where a pass begins
            outer = {"outer": pass_lag}
        return {"inner": inner_lag, **outer, "push": push_lag}

    def idle(self) -> Iterator[tuple[str, str]]:
        """See `TaskConfig`."""
        yield from find_idle_of_folder(self)
        for key, why in self.start.idle():
            if key not in OF_THE_WHOLE:
                yield f"start.{key}", why
        if not self.test:
            yield from ((name, "test is false") for name in set_apart(self, "order"))
        if self.shuffling == "full":
            why = "shuffling is 'full': all is decoded before it is trained on"
            yield from ((name, why) for name in set_apart(self, *STEPWISE))

    def workload(self, number: int = 0) -> Workload:
        """See `TaskConfig`."""
        del number
        return Workload.of_network(self.timed_layers, self.slots)

    @property
    def effort(self) -> float:
        """See `Configuration`; its network is that of the training that it starts from."""
        return float(self.passes * self.start.weights)

    @property
    def timed(self) -> Sequence | ParameterServer:
        """Who waits for whom: frames that are shuffled over whole passes need no decoders."""
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
        """Which utterances each replica decodes, in its order: int64 [replicas, most], then -1."""
        return orders(self.seed, len(train), self.replicas, max(1, self.passes))

    def simulation(self, train: Utterances, cluster: Cluster | None = None) -> Simulation:
        """Its replicas at time 0, with the utterances that they will decode.

        Args:
            train: the training utterances.
            cluster: in place of the run's own.
        """
        machine, protocol = cluster or self.cluster, self.timed
        if isinstance(protocol, Sequence):
            protocol = protocol.give(self.lengths(train))
        return Simulation(machine, protocol, self.workload(), self.replicas, self.seed)

    def lengths(self, train: Utterances) -> np.ndarray:
        """Frames of the utterances in ``orders``, 0 where there is none."""
        order = self.orders(train)
        return np.where(order < 0, 0, train.frames[order])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, canonical: what the run's identity hashes."""
        body = {f.name: plain(getattr(self, f.name)) for f in fields(self) if counts(self, f)}
        return {"is": "SequenceConfig", **body, "start": self.start.to_dict()}


def _check_algorithm(algorithm: object, shards: int) -> None:
    """Refuse one that sequence training cannot fold with.

    Raises:
        UserError: its contributions are no gradients, or its server cannot be in shards.
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
    def from_config(cls, config: SequenceConfig, corpus: Corpus, initial: Tensor) -> Setup:
        """The parts of a training that starts from ``initial [P]``."""
        net = config.start.network(corpus)
        halves, part = Halves.split(net, initial.to(config.device), config.layers)
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


class Step(NamedTuple):
    """What an executor of sequence training did.

    Attributes:
        happened: when, as successive segments.
        seen: what decoders came across, in the order of telling.
        ended: whether nothing is left to do.
    """

    happened: list[Timeline]
    seen: list[DecodeStats]
    ended: bool


class Record(Protocol):
    """What is known of a sequence training that really happened, besides its timeline."""

    lost_frames: int
    """Kept frames that were lost with whoever held them."""
    restarts: list[int]
    """The minibatches with whose number all replicas began anew with empty slots."""

    def arrays(self) -> Arrays:
        """All of it, as columns."""
        ...


class SequenceExecutor(Executor, Protocol):
    """Of sequence training, whose boundaries are shares of a pass as its decoders count."""

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far."""
        ...

    @property
    def record(self) -> Record | None:
        """What a replay needs besides the timeline; None where the configuration says it all."""
        ...

    def advance(self, rate: float, until: Fraction) -> Step:
        """Go on at one rate, as far as suits the executor but not beyond so many passes."""
        ...
