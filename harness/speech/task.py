"""Frames of a corpus as a task: initial parameters, targets, training, alignment.

The task trains a network on spliced frames and scores it in frames and words.

Initial parameters are drawn, pretrained, or those of another run. RBM pretraining is a run of its
own, shared by all runs of a seed.

A forced alignment gives the targets of transcripts by a trained network. Paper 3 bootstraps its
network "using alignments from a standard HMM-based system", and its control without denominator
continues with alignments by the network itself. Both are computed here by one rule.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.numpy import load_file as numpy_load_file  # pyright: ignore[reportUnknownVariableType]
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from data_synth import load_corpus
from data_synth.corpus import Corpus, frame_edges
from harness.acoustics.mmi import Criterion, SequenceCriterion
from harness.acoustics.rbm import Recipe, pretrain
from harness.base.errors import UserError
from harness.base.seeds import stream_key
from harness.base.settings import build, setting
from harness.experiment.contract import EvaluationResult, RunRequest, Say, Table, Watch, key_in_file
from harness.experiment.experiment import plain
from harness.experiment.order import Examples, Order, Shuffling
from harness.experiment.run import FoldApplication, train
from harness.experiment.run_file import complete_protocol
from harness.networks.feedforward import Dnn, check_here, denormals_flushed, random_parameters
from harness.speech.decoding import log_posteriors, references_of
from harness.speech.evaluation import FrameEvaluator, Scores, log_prior
from harness.speech.frames import Blocks, ForcedAlignment, RunConfig, corpus_of, frames_of
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL, TARGETS


class Acoustic:
    """Training on the frames of a corpus; see `Task`.

    Args:
        config: configuration of the run.
        corpus: the corpus it names.
        store: store of pretraining runs.
    """

    unit = "nats a frame"

    def __init__(self, config: RunConfig, corpus: Corpus, store: Store) -> None:
        self.config, self.corpus, self.store = config, corpus, store
        self.network = config.network(corpus)
        self.frames = frames_of(corpus, config.device, config.shuffling)
        self.evaluator = FrameEvaluator(self.network, self.frames, corpus)
        self.minibatches = config.minibatches(corpus, self.frames)

    def initial(self) -> Tensor:
        """See `Task`."""
        parts = self.config, self.network, self.frames, self.corpus, self.store
        return initial_parameters(*parts).to(self.config.device)

    def losses_in(self, minibatch: int) -> int:
        """Number of losses in a minibatch: one per frame."""
        return minibatch

    def dev(self, model: Tensor) -> Scores:
        """See `Task`."""
        return self.evaluator.dev(model)

    def held_out_loss(self, model: Tensor) -> float:
        """See `Task`."""
        return self.evaluator.held_out_loss(model)

    def tested(self, model: Tensor, name: str) -> EvaluationResult:
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
            measured[f"{test}_word_error/{name}"] = float(
                counts.errors.sum() / counts.lengths.sum()
            )
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
    return load_file(run.path(MODEL))["model"]


def initial_parameters(
    config: RunConfig, net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """Initial parameters ``[P]`` of a run: pretrained, or drawn."""
    if isinstance(config.initial, Recipe):
        asked = PretrainingConfig(
            config.corpus,
            config.scale,
            config.fingerprint,
            config.hidden,
            config.initial,
            config.seed,
            config.device,
            _share(config, corpus),
            shuffling="in blocks" if config.shuffling == "in blocks" else "full",
        )
        return pretrain_or_load(asked, net, frames, corpus, store)
    generator = torch.Generator().manual_seed(stream_key(config.seed, "initialise") >> 65)
    if config.initial is not None:
        return config.initial.parameters(net.layout, generator)[0]
    gain = SIGMOID_GAIN if config.activation == "sigmoid" else 1.0
    return random_parameters(net.layout, generator, gain)[0]


def _share(config: RunConfig, corpus: Corpus) -> float:
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
    return load_file(run.path(MODEL))["model"]


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

    found = pretrain(net, inputs, orders[0].steps, [config.seed], config.recipe)
    for depth, errors in enumerate(found.reconstruction):
        for epoch, error in enumerate(map(float, errors[:, 0]), start=1):
            writer.log(f"reconstruction/{depth}", error, fold=0, time_s=0.0, epoch=epoch)
    writer.attach_arrays(MODEL, {"model": found.stack[0].cpu().numpy()})
    writer.finish(
        "done", {f"reconstruction/{d}": e[-1, 0].item() for d, e in enumerate(found.reconstruction)}
    )


def load_corpus_with_targets(config: RunConfig, store: Store, watch: Watch) -> Corpus:
    """Load the corpus of a configuration, with the targets of its alignment if it names one.

    Args:
        config: configuration of the training.
        store: store of the alignment and of its network's training.
        watch: callback for progress.

    Raises:
        UserError: the training of the alignment's network diverged or failed.
    """
    corpus = corpus_of(config)
    if config.targets is None:
        return corpus
    run = config.targets.execute(store.needing(TARGETS), watch)
    if run.status != "done":
        raise UserError(f"targets: {run.ending()}")
    return _with_targets(corpus, run.path(TARGETS))


@lru_cache(maxsize=4)
def _with_targets(corpus: Corpus, path: Path) -> Corpus:
    """Replace a corpus's targets; one object per process, since caches are keyed by the object."""
    return replace(corpus, targets=numpy_load_file(path)["targets"], stored_fingerprint=None)


def align(config: ForcedAlignment, store: Store, watch: Watch) -> Run:
    """Run an alignment after its network's training, or load finished runs from the store.

    The summary has the share of each split's frames with another target than the corpus's.
    """

    def execute(writer: RunWriter) -> None:
        network = config.network.execute(store.needing(MODEL), watch)
        if network.status != "done":
            ended = "failed" if network.status == "failed" else "diverged"
            writer.finish(ended, {}, network.ending("its network"))
            return
        corpus = load_corpus_with_targets(config.network, store, watch)
        net, model = config.network.network(corpus), final_model(network)
        found = compute_forced_targets(net, model.to(config.network.device), corpus, config)
        writer.attach_arrays(TARGETS, {"targets": found})
        splits = ("train", "dev", *corpus.tests)
        writer.finish("done", {f"moved_{s}": target_change_rate(corpus, found, s) for s in splits})

    return store.obtain(config.to_dict(), execute)


@torch.no_grad()
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
    found = np.array(corpus.targets, np.int32)
    every = corpus.utterances
    for first, length, words in zip(
        every.start.tolist(), every.frames.tolist(), every.words, strict=True
    ):
        rows = torch.arange(first, first + length, device=model.device)
        scores = log_posteriors(net, model, frames.gather(rows.unsqueeze(0)).x[0])
        if (path := criterion.align(scores, words)) is not None:
            found[first : first + length] = path.targets
    return found


def target_change_rate(corpus: Corpus, targets: np.ndarray, split: str) -> float:
    """Share of a split's frames with another target than the corpus's own."""
    rows = frame_edges(corpus.split(split))[0]
    return float((targets[rows] != corpus.targets[rows]).mean())


CORPUS = {"scale": "smoke", "corpus_seed": 0, "seed": 0}
"""Defaults of the keys that a run file on a corpus may omit."""

USUAL = {"activation": "sigmoid", "initial": None, "chunk": 1.0, "evaluations": 10, "passes": 1}
"""Defaults of further keys that a run file on frames may omit."""

FOLLOWS = ("fingerprint", "device")
"""Fields that are derived from the rest of a run file."""


def read_corpus(asked: RunRequest, hidden: object) -> tuple[Table, Corpus]:
    """Load the corpus of a run file and complete the file's table with keys derived from it.

    Args:
        asked: the run file.
        hidden: units of the network's hidden layers, as in the file.

    Raises:
        UserError: a mistake in the file, its cluster file or its corpus.
    """
    corpus = load_corpus(
        asked.word("corpus"),
        scale=asked.word("scale"),
        seed=asked.whole("corpus_seed"),
        progress=asked.say,
    )
    table = {**asked.table, "cluster": asked.cluster()}
    # A list with other elements is rejected with the rest of the table.
    sizes = corpus.layers(cast(list[int], hidden) if isinstance(hidden, list) else ())
    table.setdefault("timed_layers", list(sizes))
    return {**table, "fingerprint": corpus.fingerprint, "device": asked.device}, corpus


def complete_frames(table: Table) -> Table:
    """Complete the table of a run on frames with defaults and its protocol's class."""
    return complete_protocol({**USUAL, **table})


class FramesApplication(FoldApplication[RunConfig, Corpus]):
    """Frames of a corpus: see `Application`."""

    config = RunConfig
    usual = {**CORPUS, **USUAL}  # noqa: RUF012 (never written to)
    follows = FOLLOWS

    def read(self, asked: RunRequest) -> tuple[RunConfig, Corpus]:
        """See `Application`."""
        asked = replace(asked, table={**CORPUS, **asked.table})
        table, corpus = read_corpus(asked, asked.table.get("hidden"))
        return build(RunConfig, complete_frames(table), str(asked.path), named=key_in_file), corpus

    def load(self, config: RunConfig, say: Say) -> Corpus:
        """See `Application`; the corpus has its own targets."""
        return corpus_of(config, say)

    def open(self, config: RunConfig, data: Corpus, store: Store, writer: RunWriter) -> Acoustic:
        """See `FoldApplication`."""
        del writer
        return Acoustic(config, data, store)

    @contextmanager
    def computing(self, config: RunConfig) -> Generator[None]:
        """See `FoldApplication`.

        Raises:
            UserError: this machine does not support the configured precision.
        """
        check_here(config.precision, config.device)
        with denormals_flushed():
            yield

    def execute(self, config: RunConfig, store: Store, watch: Watch) -> Run:
        """See `Configuration`.

        Gradients of speech need no autograd. In inference mode calls are a tenth to a fifth
        cheaper, with the same bits; on real processes threads share tensors, which excludes it.
        """
        with torch.inference_mode():
            return train(config, load_corpus_with_targets(config, store, watch), store, watch)

    def align(self, config: ForcedAlignment, store: Store, watch: Watch) -> Run:
        """Run or load the alignment of a configuration; see `align`."""
        return align(config, store, watch)

    def describe(self, config: RunConfig, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        del share
        yield "  timed network", name_timed(config.timed_layers, config.hidden)


FRAMES = FramesApplication()


def name_timed(timed: tuple[int, ...], hidden: tuple[int, ...]) -> str:
    """Describe the network that time is charged for, often larger than the trained one."""
    sizes = "-".join(map(str, timed))
    if timed[1:-1] == tuple(hidden):
        return f"{sizes}, as trained"
    return f"{sizes} (timed_layers); trained is hidden = {list(hidden)}"


def train_or_load_start(config: RunConfig, corpus: Corpus, store: Store, watch: Watch) -> Tensor:
    """Final parameters ``[P]`` of a run, which is trained unless the store has it.

    Raises:
        UserError: the run diverged or failed, or has stored no model.
    """
    run = train(config, corpus, store.needing(MODEL), watch)
    if run.status != "done":
        raise UserError(f"start: {run.ending()}")
    return final_model(run)
