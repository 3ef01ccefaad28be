"""Frames of a corpus as a task: initial parameters, targets, training, alignment.

The task trains a network on spliced frames and scores it in frames and words.

Initial parameters are drawn, pretrained, or those of another run. RBM pretraining is a run of its
own, shared by all runs of a seed.

A forced alignment gives the targets of transcripts by a trained network. Paper 3 bootstraps its
network "using alignments from a standard HMM-based system", and its control without denominator
continues with alignments by the network itself. Both are computed here by one rule.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from data_synth import load_corpus
from data_synth.corpus import Corpus, frame_edges
from harness.acoustics.mmi import Criterion, SequenceCriterion
from harness.acoustics.rbm import Recipe, WideRandom, pretrain
from harness.base.errors import UserError
from harness.base.seeds import stream_key
from harness.base.settings import build, setting
from harness.experiment.contract import (
    TASK,
    Configuration,
    EvaluationResult,
    RunRequest,
    Table,
    Watch,
    ignore,
)
from harness.experiment.experiment import Experiment, plain
from harness.experiment.run import run
from harness.experiment.task import Judged, Pieces, Problem, Task
from harness.networks.feedforward import (
    Activation,
    Dnn,
    Layout,
    Precision,
    check,
    check_here,
    denormals_flushed,
    random_parameters,
)
from harness.simulator.cluster import Workload
from harness.speech.decoding import posteriors_of, references_of
from harness.speech.evaluation import FrameEvaluator, log_prior
from harness.speech.frames import Blocks, FramesOnDevice, MadeFrames, corpus_of, frames_of
from harness.store import Run, RunWriter, Store
from harness.store.files import load_arrays, read_bytes
from harness.store.schema import MODEL, TARGETS
from harness.tasks.order import Examples, Order, Shuffling


@dataclass(frozen=True)
class CorpusKeys:
    """Keys of ``[task]`` that name a corpus: see `Frames`."""

    corpus: str
    scale: str = "smoke"
    corpus_seed: int = setting(0, at_least=0)


FOLLOWS = ("fingerprint", "device")
"""Fields that are derived from the rest of a run file."""


@dataclass(frozen=True, kw_only=True)
class Frames(Task):
    """Frames of a corpus as a task.

    Args:
        corpus: name of a corpus, or folder of a saved one (docs/corpora.md).
        scale: size of a generated corpus: smoke, laptop, overnight, gpu or paper.
        corpus_seed: seed of a generated corpus.
        fingerprint: SHA-256 of the corpus's content.
        hidden: number of units of each hidden layer; the sizes of input and output follow from
            the corpus.
        activation: nonlinearity of the hidden layers.
        initial: initialisation: `Recipe` pretrains with RBMs, `WideRandom` draws from a wide
            distribution. Without it, parameters are drawn from a narrower one.
        timed_layers: units of every layer of the network whose time and bytes the cluster is
            charged for; inputs and outputs included.
        precision: arithmetic of the matrix products in gradients.
        targets: forced alignment whose targets replace the corpus's own in training and scoring.
            Without it, the corpus's own.

    Raises:
        UserError: settings that do not go together.
    """

    kind: ClassVar[str] = "frames"
    # What runs were stored as before tasks were parts of experiments.
    stored_as: ClassVar[str] = "RunConfig"
    usual: ClassVar[Mapping[str, Any]] = {}
    follows: ClassVar[Sequence[str]] = FOLLOWS
    unit: ClassVar[str] = "frames"
    drops_rest: ClassVar[bool] = True

    corpus: str
    scale: str
    corpus_seed: int
    fingerprint: str
    hidden: tuple[int, ...] = setting(at_least=1)
    activation: Activation = setting("sigmoid")
    initial: Recipe | WideRandom | None = setting(None)
    timed_layers: tuple[int, ...] = setting(at_least=1)
    precision: Precision = setting("float32")
    targets: ForcedAlignment | None = setting(None)

    @classmethod
    def read(cls, request: RunRequest, keys: Table) -> tuple[Self, Table]:
        """See `Task`."""
        settings = read_corpus(request, keys, keys.get("hidden"))
        return build(cls, settings, str(request.path), TASK), {}

    def open(
        self, experiment: Experiment[Frames], store: Store | None = None, watch: Watch = ignore
    ) -> FramesProblem:
        """See `Task`; without a store the corpus has its own targets."""
        corpus = corpus_of(self)
        if store is not None:
            corpus = load_corpus_with_targets(experiment, store, watch)
        return FramesProblem(experiment, corpus, store)

    def network(self, corpus: Corpus) -> Dnn:
        """The network to train."""
        return Dnn(Layout(corpus.layers(self.hidden)), self.activation, self.precision)

    def workload(self, experiment: Experiment[Frames], stage: int = 0) -> Workload:
        """See `Task`."""
        return Workload.of_network(self.timed_layers, experiment.stage(stage).timed_minibatch)

    def check(self, experiment: Experiment[Frames]) -> None:
        """See `Task`."""
        check(self.precision, experiment.device)

    def find_simulation_only(self) -> tuple[str, str] | None:
        """See `Task`; each process would have to make the alignment."""
        if self.targets is None:
            return None
        return "targets", "simulated only; allowed on real processes: the corpus's own"

    @property
    def size(self) -> int:
        """About how many weights are trained: inputs and targets follow from the corpus."""
        return sum(above * below for above, below in pairwise((self.hidden[0], *self.hidden)))

    @property
    def judged(self) -> Judged:
        """Share of wrong frames on the development set."""
        return Judged("frame_error", is_share=True)


@dataclass(frozen=True)
class ForcedAlignment(Configuration):
    """Forced alignment of a corpus's transcripts by a trained network.

    Args:
        network: the training that produces the network.
        kappa: factor of its acoustic scores; transitions and words have factor 1.
    """

    network: Experiment[Frames]
    kappa: float = setting(above=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Canonical plain JSON values, which the alignment's identity hashes."""
        return plain(self)

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return align(self, store, watch)


class FramesProblem(Problem):
    """Training on the frames of a corpus; see `Problem`.

    Args:
        experiment: the experiment.
        corpus: the corpus it names.
        store: store of pretraining runs; None if nothing is trained.
    """

    def __init__(self, experiment: Experiment[Frames], corpus: Corpus, store: Store | None) -> None:
        self.experiment, self.corpus, self.store = experiment, corpus, store

    @cached_property
    def network(self) -> Dnn:
        """See `Problem`."""
        return self.experiment.task.network(self.corpus)

    @cached_property
    def pieces(self) -> Pieces:
        """The training utterances, or blocks of them if frames are shuffled in blocks."""
        train = self.corpus.split("train")
        in_blocks = self.experiment.shuffling == "in blocks"
        return Blocks.from_utterances(train) if in_blocks else train

    @cached_property
    def examples(self) -> FramesOnDevice | MadeFrames:
        """See `Problem`."""
        return frames_of(self.corpus, self.experiment.device, self.experiment.shuffling)

    @cached_property
    def like(self) -> Tensor:
        """See `Problem`."""
        return torch.zeros(self.network.layout.parameters)

    def initial(self) -> Tensor:
        """See `Problem`."""
        assert self.store is not None  # it is opened for training
        parts = self.experiment, self.network, self.examples, self.corpus, self.store
        return initial_parameters(*parts).to(self.experiment.device)

    @contextmanager
    def computing(self, *, alone: bool) -> Generator[None]:
        """See `Problem`.

        Gradients of speech need no autograd. In inference mode calls are a tenth to a fifth
        cheaper, with the same bits; on real processes threads share tensors, which excludes it.

        Raises:
            UserError: this machine does not support the precision.
        """
        check_here(self.network.precision, self.experiment.device)
        with denormals_flushed(), torch.inference_mode() if alone else nullcontext():
            yield

    def losses_in(self, minibatch: int) -> int:
        """Number of losses in a minibatch: one per frame."""
        return minibatch

    @cached_property
    def evaluator(self) -> FrameEvaluator:
        """Scores models."""
        return FrameEvaluator(self.network, self.examples, self.corpus)

    def evaluate(self, model: Tensor) -> Mapping[str, float]:
        """See `Problem`."""
        scores = self.evaluator.dev(model)
        return {"frame_error": scores.frame_error, "loss": scores.loss}

    def evaluate_held_out(self, model: Tensor) -> float:
        """See `Problem`."""
        return self.evaluator.evaluate_held_out(model)

    def test(self, model: Tensor, name: str) -> EvaluationResult:
        """Frame and word errors, at the acoustic scale tuned on development data."""
        measured: dict[str, float] = {}
        errors: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        tuned = self.evaluator.tune_decoding(model)
        if tuned is not None:
            measured[f"acoustic_scale/{name}"] = tuned.best.scale
            measured[f"acoustic_scale_decided/{name}"] = float(tuned.decided)
        for test in self.corpus.tests:
            counts, frame_error = self.evaluator.test(test, model, tuned)
            errors[test] = counts.errors, counts.lengths
            measured[f"{test}_frame_error/{name}"] = frame_error
            measured[f"{test}_word_error/{name}"] = counts.rate
        return EvaluationResult(measured, errors)


MINIBATCH = 100
"""Frames per minibatch of pretraining, as the recipe's rates expect."""

ENOUGH = 1_000_000
"""Largest number of frames for pretraining on speech in blocks: draws on the host take 0.7 ms
per minibatch, hours over 500 h of speech; and an interrupted pretraining starts again."""

SIGMOID_GAIN = 4.0


@dataclass(frozen=True)
class PretrainingConfig:
    """Configuration of a pretraining run: everything that its parameters depend on.

    Args:
        corpus, scale, fingerprint: the corpus and the SHA-256 of its content.
        hidden: units of each hidden layer.
        recipe: rates and epochs of the machines.
        seed: seed of data order and draws.
        device: ``"cpu"`` or ``"cuda"``.
        share: share of the training utterances to pretrain on.
        shuffling: ``"in blocks"`` if the run shuffles so, else ``"full"``.
    """

    corpus: str
    scale: str
    fingerprint: str
    hidden: tuple[int, ...]
    recipe: Recipe
    seed: int
    device: str
    share: float = setting(1.0)
    shuffling: Shuffling = setting("full")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which the run's identity hashes."""
        return {**plain(self), "minibatch": MINIBATCH}


def final_model(run: Run) -> Tensor:
    """Load the final parameters ``[P]`` of a run.

    Raises:
        UserError: the run has stored none.
    """
    return torch.as_tensor(run.model)


def initial_parameters(
    config: Experiment[Frames], net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """Initial parameters ``[P]`` of a run: pretrained, or drawn."""
    task = config.task
    if isinstance(task.initial, Recipe):
        config_of_rbms = PretrainingConfig(
            task.corpus,
            task.scale,
            task.fingerprint,
            task.hidden,
            task.initial,
            config.seed,
            config.device,
            _share(config, corpus),
            shuffling="in blocks" if config.shuffling == "in blocks" else "full",
        )
        return pretrain_or_load(config_of_rbms, net, frames, corpus, store)
    generator = torch.Generator().manual_seed(stream_key(config.seed, "initialise") >> 65)
    if task.initial is not None:
        return task.initial.parameters(net.layout, generator)[0]
    gain = SIGMOID_GAIN if task.activation == "sigmoid" else 1.0
    return random_parameters(net.layout, generator, gain)[0]


def _share(config: Experiment[Frames], corpus: Corpus) -> float:
    """Share of utterances to pretrain on: of runs in rounds their first stage's, else all."""
    share = config.stages[0].share if config.rounds else 1.0
    if config.shuffling != "in blocks":
        return share
    return min(share, ENOUGH / corpus.frames_of("train"))


def pretrain_or_load(
    config: PretrainingConfig, net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """Pretrain, or load the pretrained parameters ``[P]`` from the store.

    Of several processes that call this at once, one pretrains and the others wait.
    """
    run = store.needing(MODEL).obtain(
        config.to_dict(), lambda writer: _pretrain(config, net, frames, corpus, writer)
    )
    return final_model(run)


def _pretrain(
    config: PretrainingConfig, net: Dnn, frames: Examples, corpus: Corpus, writer: RunWriter
) -> None:
    train = corpus.split("train")
    if config.shuffling == "in blocks":
        train = Blocks.from_utterances(train)
    # Stages of training count from 0: negative numbers give orders that no stage has.
    parts = (train.start, train.frames, MINIBATCH, config.share)
    orders = [
        Order(config.seed, -1 - epoch, *parts, shuffling=config.shuffling)
        for epoch in range(max(config.recipe.gaussian_epochs, config.recipe.bernoulli_epochs))
    ]

    def inputs(epoch: int, number: int) -> Tensor:
        return frames.gather(torch.as_tensor(orders[epoch].rows(number))[None]).x

    fit = pretrain(net, inputs, orders[0].steps, [config.seed], config.recipe)
    for depth, errors in enumerate(fit.reconstruction):
        for epoch, error in enumerate(map(float, errors[:, 0]), start=1):
            writer.log(f"reconstruction/{depth}", error, fold=0, time_s=0.0, epoch=epoch)
    writer.attach_arrays(MODEL, {"model": fit.stack[0].cpu().numpy()})
    writer.finish(
        "done", {f"reconstruction/{d}": e[-1, 0].item() for d, e in enumerate(fit.reconstruction)}
    )


def load_corpus_with_targets(config: Experiment[Frames], store: Store, watch: Watch) -> Corpus:
    """Load the corpus of a configuration, with the targets of its alignment if it names one.

    Args:
        config: configuration of the training.
        store: store of the alignment and of its network's training.
        watch: callback for progress.

    Raises:
        UserError: the training of the alignment's network diverged or failed.
    """
    corpus, targets = corpus_of(config.task), config.task.targets
    if targets is None:
        return corpus
    run = targets.execute(store.needing(TARGETS), watch)
    if run.status != "done":
        raise UserError(f"targets: {run.ending()}")
    return _with_targets(corpus, run.path(TARGETS))


@lru_cache(maxsize=4)
def _with_targets(corpus: Corpus, path: Path) -> Corpus:
    """Replace a corpus's targets; one object per process, since caches are keyed by the object."""
    return replace(
        corpus, targets=load_arrays(read_bytes(path))[0]["targets"], stored_fingerprint=None
    )


def align(config: ForcedAlignment, store: Store, watch: Watch) -> Run:
    """Run an alignment after its network's training, or load finished runs from the store.

    The summary has the share of each split's frames with another target than the corpus's.
    """

    def execute(writer: RunWriter) -> None:
        network = run(config.network, store.needing(MODEL), watch)
        if network.status != "done":
            ended = "failed" if network.status == "failed" else "diverged"
            writer.finish(ended, {}, network.ending("its network"))
            return
        corpus = load_corpus_with_targets(config.network, store, watch)
        net, model = config.network.task.network(corpus), final_model(network)
        moved = compute_forced_targets(net, model.to(config.network.device), corpus, config)
        writer.attach_arrays(TARGETS, {"targets": moved})
        splits = ("train", "dev", *corpus.tests)
        writer.finish("done", {f"moved_{s}": target_change_rate(corpus, moved, s) for s in splits})

    return store.obtain(config.to_dict(), execute)


def compute_forced_targets(
    net: Dnn, model: Tensor, corpus: Corpus, rule: ForcedAlignment
) -> np.ndarray:
    """Align every transcript by its best path; without a path, targets stay unchanged.

    Args:
        net: the network.
        model: its parameters ``[P]``.
        corpus: source of transcripts, and of targets for priors and transitions.
        rule: settings of the alignment.

    Returns:
        Targets of all frames, int32 [N].
    """
    criterion = SequenceCriterion(
        Criterion(kappa=rule.kappa), references_of(corpus), log_prior(corpus)
    )
    frames = frames_of(corpus, str(model.device))
    targets = np.array(corpus.targets, np.int32)
    every = corpus.utterances
    posteriors = posteriors_of(net, model, frames, every)
    for start, words, scores in zip(every.start.tolist(), every.words, posteriors, strict=True):
        if (path := criterion.align(scores, words)) is not None:
            targets[start : start + len(scores)] = path.targets
    return targets


def target_change_rate(corpus: Corpus, targets: np.ndarray, split: str) -> float:
    """Share of a split's frames with another target than the corpus's own."""
    rows = frame_edges(corpus.split(split))[0]
    return float((targets[rows] != corpus.targets[rows]).mean())


def read_corpus(request: RunRequest, table: Table, hidden: object) -> Table:
    """The keys of ``[task]``, with those that follow from its corpus, which is loaded.

    Args:
        request: the run file.
        table: the keys of ``[task]``.
        hidden: units of the network's hidden layers, as in the file.

    Raises:
        UserError: a mistake in the file or its corpus.
    """
    names = {entry.name for entry in fields(CorpusKeys)} & table.keys()
    keys = build(CorpusKeys, {name: table[name] for name in names}, str(request.path), TASK)
    corpus = load_corpus(keys.corpus, scale=keys.scale, seed=keys.corpus_seed, progress=request.say)
    # A list with other elements is rejected with the rest of the table.
    sizes = corpus.layers(cast(list[int], hidden) if isinstance(hidden, list) else ())
    fingerprint = {"fingerprint": corpus.fingerprint}
    return {"timed_layers": list(sizes), **table, **vars(keys), **fingerprint}


def train_or_load_start(config: Experiment[Frames], store: Store, watch: Watch) -> Tensor:
    """Final parameters ``[P]`` of a run, which is trained unless the store has it.

    Raises:
        UserError: the run diverged or failed, or has stored no model.
    """
    start = run(config, store.needing(MODEL), watch)
    if start.status != "done":
        raise UserError(f"start: {start.ending()}")
    return final_model(start)
