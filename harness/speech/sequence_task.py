"""Sequence training of speech as a task: its settings and run files."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast

from data_synth.corpus import Corpus
from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd, Gradients
from harness.algorithms.schedules import Constant
from harness.base.errors import UserError
from harness.base.seeds import SHORT
from harness.base.settings import build, find_changed, setting
from harness.experiment.contract import (
    TASK,
    RunRequest,
    Table,
    Watch,
    ignore,
)
from harness.experiment.experiment import AnyExperiment, Experiment
from harness.experiment.run import run
from harness.experiment.task import Judged, Opened, OwnLoop
from harness.networks.feedforward import denormals_flushed
from harness.simulator.cluster import Workload
from harness.simulator.protocols.contract import TimingProtocol
from harness.speech.frames import corpus_of
from harness.speech.protocol import Sequence
from harness.speech.sequence import Plateau
from harness.speech.sequence_training import SequenceTraining
from harness.speech.task import (
    FOLLOWS,
    Frames,
    final_model,
    load_corpus_with_targets,
    read_corpus,
)
from harness.store import RunWriter, Store
from harness.store.schema import MODEL

SHARED = ("corpus", "scale", "corpus_seed", "cluster", "timed_layers")
"""Fields that a sequence training and its start share."""

ORDERS = ("none", "on the fly")


@dataclass(frozen=True, kw_only=True)
class Sequences(OwnLoop):
    """Asynchronous sequence training of speech, as a task.

    Of its experiment, workers are replicas: each has a decoder, a trainer and a part of the
    utterances. The protocol is `Sequence`, whose ``slots`` are the frames of a minibatch; rates
    multiply gradients summed over it. ``passes`` of 0 only evaluate the initial model. ``tested``
    says whether words are recognised: on held-out speech at each evaluation, and on the test sets
    at the end. The algorithm is `AsyncSgd`, or another with gradients as contributions; the
    staleness that it receives is that of inner gradients. ``shuffling`` ``"none"`` trains on one
    utterance after another, ``"on the fly"`` on a frame of each slot's utterance (paper 3, section
    3.1).

    Args:
        corpus: name of a corpus, or folder of a saved one (docs/corpora.md).
        scale: size of a generated corpus: smoke, laptop, overnight, gpu or paper.
        corpus_seed: seed of a generated corpus.
        fingerprint: SHA-256 of the corpus's content.
        start: the cross-entropy training whose final model is the initial model.
        criterion: the sequence criterion, from which decoders compute outer gradients.
        timed_layers: units of every layer of the network whose time and bytes the cluster is
            charged for; inputs and outputs included.
        layers: layers that are updated: ``"all"``, or only the ``"last"``.
        update_silence: whether the outputs for silence are updated.
        frames: frames in minibatches: those ``"kept"`` by rejection and cancellation, or
            ``"all"``, of which the others have an outer gradient of zero.
        held_out: number of development utterances for evaluations, evenly spaced.
        order: order of the n-gram language model for decoding the test sets.

    Raises:
        UserError: settings that are not allowed, or do not go together.
    """

    kind: ClassVar[str] = "sequence"
    worker: ClassVar[str] = "replica"
    protocol: ClassVar[type[TimingProtocol] | None] = Sequence
    follows: ClassVar[Listed[str]] = FOLLOWS
    usual: ClassVar[Mapping[str, Any]] = {
        "criterion": {},
        "algorithm": {"is": "AsyncSgd"},
        "protocol": {},
        "shuffling": "on the fly",
        "workers": 1,
        "evaluations": 4,
        "tested": "at the end",
    }

    corpus: str
    scale: str
    corpus_seed: int
    fingerprint: str
    start: Experiment[Frames]
    criterion: Criterion
    timed_layers: tuple[int, ...]
    layers: Literal["all", "last"] = "all"
    update_silence: bool = True
    frames: Literal["kept", "all"] = "kept"
    held_out: int = setting(200, at_least=1)
    order: int = setting(3, at_least=1)

    @classmethod
    def read(cls, request: RunRequest, keys: Table) -> tuple[Self, Table]:
        """See `Task`; the table ``start`` omits the keys it shares with the run.

        Raises:
            UserError: ``start`` is missing, or sets a shared or derived key.
        """
        start: object = keys.get("start")
        if not isinstance(start, Mapping):
            lack = "start: missing; needed: a table with the run it starts from"
            raise UserError(request.place + lack)
        part = dict(cast(Mapping[str, Any], start))
        for name in (*FOLLOWS, *SHARED):
            if name in part:
                raise UserError(
                    f"{request.place}start.{name}: not allowed; it follows from the rest"
                )
        settings = read_corpus(request, keys, part.get("hidden"))
        shared = {**request.table, **settings, "device": request.device}
        start = part | {name: shared[name] for name in (*SHARED, "fingerprint", "device")}
        return build(cls, {**settings, "start": start}, str(request.path), TASK), {}

    def check(self, experiment: AnyExperiment) -> None:
        """See `Task`."""
        algorithm, shards = experiment.algorithm, experiment.shards
        name, protocol, schedule = (
            type(algorithm).__name__,
            experiment.protocol,
            experiment.schedule,
        )
        if not isinstance(algorithm, AsyncSgd | Gradients) or algorithm.remembers:
            allowed = "AsyncSgd, or what derives from Gradients and remembers nothing"
            raise UserError(f"algorithm: {name} is not allowed; allowed: {allowed}")
        if shards > 1 and not algorithm.in_shards:
            raise UserError(f"shards: {shards} is not allowed with {name}; allowed: 1")
        if not isinstance(protocol, Sequence):
            raise UserError(f"protocol: {protocol!r} is not allowed; allowed: Sequence")
        ours = ("frames", "frames_cv", "kept", "fetch_every", "shards", "shuffled")
        if changed := find_changed(protocol, *ours):
            reason = "it follows from what is decoded, or from the rest"
            raise UserError(f"protocol.{changed[0]}: not allowed in training; {reason}")
        if not isinstance(schedule, Constant | Plateau):
            kind = type(schedule).__name__
            raise UserError(f"schedule: {kind} is not allowed; allowed: Constant, Plateau")
        if experiment.shuffling not in ORDERS:
            allowed = ", ".join(ORDERS)
            raise UserError(f"shuffling: {experiment.shuffling!r}; allowed: {allowed}")
        if experiment.tested not in ("at the end", "never"):
            raise UserError(f"tested: {experiment.tested!r}; allowed: at the end, never")

    @property
    def size(self) -> int:
        """See `Task`; its network is that of the training that it starts from."""
        return self.start.task.size

    @property
    def judged(self) -> Judged:
        """Share of wrong frames on the development set."""
        return Judged("frame_error", is_share=True)

    def workload(self, experiment: AnyExperiment, stage: int = 0) -> Workload:
        """See `Task`."""
        return Workload.of_network(self.timed_layers, cast(Sequence, experiment.protocol).slots)

    def timed(self, experiment: AnyExperiment) -> TimingProtocol:
        """See `Task`."""
        shuffled = experiment.shuffling == "on the fly"
        protocol = cast(Sequence, experiment.protocol)
        return replace(protocol, shards=experiment.shards, shuffled=shuffled)

    def open(
        self, experiment: AnyExperiment, store: Store | None = None, watch: Watch = ignore
    ) -> SequenceData:
        """See `Task`; without a store the corpus has its own targets."""
        if store is None:
            return SequenceData(corpus_of(self), store)
        return SequenceData(load_corpus_with_targets(self.start, store, watch), store)

    def train(
        self,
        writer: RunWriter,
        experiment: AnyExperiment,
        problem: SequenceData,
        watch: Watch,
    ) -> None:
        """See `OwnLoop`; if the start diverged or failed, the run has the same status."""
        assert problem.store is not None  # it is opened for training
        start = run(self.start, problem.store.needing(MODEL), watch)
        if start.status != "done":
            place = f"in its cross-entropy start, run {start.hash[:SHORT]}"
            ended = "failed" if start.status == "failed" else "diverged"
            writer.finish(ended, {}, f"{place}, {start.note}")
            return
        with denormals_flushed():
            SequenceTraining(writer, experiment, problem.corpus, final_model(start), watch).run()


class SequenceData(Opened):
    """An opened corpus of a sequence training.

    Args:
        corpus: the corpus.
        store: store of the training that it starts from; None if nothing is trained.
    """

    def __init__(self, corpus: Corpus, store: Store | None) -> None:
        self.corpus, self.store = corpus, store
