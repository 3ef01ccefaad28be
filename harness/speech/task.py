"""Frames of a corpus as a task: initial parameters, targets, training, alignment.

Frames of a corpus as a task: a network over spliced frames, scored in frames and words.

What a run starts from: drawn, pretrained, or what another has trained. RBM pretraining is a run of
its own, which all of a seed share.

Forced alignments: the targets that a trained network finds for what was said. Paper 3 bootstraps
its network "using alignments from a standard HMM-based system", and its control without
denominator goes on with alignments by the network itself. Both are made here by one rule.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
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
from harness.base.settings import build, counts, setting
from harness.networks.feedforward import Dnn, check_here, denormals_flushed, random_parameters
from harness.runs.file import complete_protocol
from harness.speech import frames
from harness.speech.decoding import log_posteriors, references_of
from harness.speech.evaluation import FrameEvaluator, Scores, log_prior
from harness.speech.frames import Blocks, ForcedAlignment, RunConfig, corpus_of, frames_of
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL, TARGETS
from harness.tasks.contract import EvaluationResult, RunRequest, Say, Table, Watch
from harness.tasks.order import Examples, Order, Shuffling
from harness.training.run import FoldApplication, train


class Acoustic:
    """See `Task`.

    Args:
        config: what is run.
        corpus: the corpus it names.
        store: where pretrained networks are kept.
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
        """One for each frame."""
        return minibatch

    def dev(self, model: Tensor) -> Scores:
        """See `Task`."""
        return self.evaluator.dev(model)

    def held_out_loss(self, model: Tensor) -> float:
        """See `Task`."""
        return self.evaluator.held_out_loss(model)

    def tested(self, model: Tensor, name: str) -> EvaluationResult:
        """Frame and word errors, at the acoustic scale that development data give the model."""
        measured: dict[str, float] = {}
        errors: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        tuned = self.evaluator.tune_decoding(model)
        if tuned is not None:
            measured[f"acoustic_scale/{name}"] = tuned.best.scale
            measured[f"acoustic_scale_decided/{name}"] = float(tuned.decided)
        for test in self.corpus.tests:
            counts = self.evaluator.word_errors(test, model, tuned)
            errors[test] = counts.errors, counts.lengths
            frames = self.evaluator.frames_of(test, model)
            measured[f"{test}_frame_error/{name}"] = frames.frame_error
            measured[f"{test}_word_error/{name}"] = float(
                counts.errors.sum() / counts.lengths.sum()
            )
        return EvaluationResult(measured, errors)


MINIBATCH = 100
"""Frames a minibatch, as the recipe's rates expect."""

ENOUGH = 1_000_000
"""Frames that machines are trained on, of speech in blocks: draws are made on the host, 0.7
ms a minibatch, which over 500 h is hours; and a pretraining that ends early begins anew."""

SIGMOID_GAIN = 4.0

FORMAT = 1
"""Grows when the same configuration would no longer pretrain to the same bytes."""


@dataclass(frozen=True)
class PretrainingConfig:
    """What the pretrained parameters are a function of.

    Args:
        corpus, scale, fingerprint: the corpus and the SHA-256 of its content.
        hidden: units of each hidden layer.
        recipe: rates and epochs of the machines.
        seed: of data order and draws.
        device: ``"cpu"`` or ``"cuda"``.
        share: of the training utterances, the same as the run trains on.
        shuffling: ``"in blocks"``, or ``"full"`` however the run shuffles otherwise.
    """

    corpus: str
    scale: str
    fingerprint: str
    hidden: tuple[int, ...]
    recipe: Recipe
    seed: int
    device: str
    share: float = setting(1.0, added=True)
    format: int = FORMAT
    shuffling: Shuffling = setting("full", added=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        counted = {entry.name for entry in fields(self) if counts(self, entry)}
        plain = {name: value for name, value in asdict(self).items() if name in counted}
        return {"is": "PretrainingConfig", "minibatch": MINIBATCH, **plain}


def final_model(run: Run) -> Tensor:
    """The final parameters ``[P]`` of a run.

    Raises:
        UserError: it has kept none.
    """
    return load_file(run.path(MODEL))["model"]


def initial_parameters(
    config: RunConfig, net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """The parameters ``[P]`` that a run starts from: pretrained, or drawn."""
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
    """Of the utterances. Asynchronous runs pretrain on all, whatever share they train on."""
    share = config.stages[0].share if config.rounds else 1.0
    if config.shuffling != "in blocks":
        return share
    return min(share, ENOUGH / corpus.frames_of("train"))


def pretrain_or_load(
    config: PretrainingConfig, net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """The pretrained parameters ``[P]``: from the store, or made now.

    Several processes may ask at once: one makes them, the others wait.
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
    # Stages of training count from 0: these orders are of no stage.
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
    """The corpus that a configuration names, with the targets that it names.

    Args:
        config: of the training.
        store: where the alignment is kept, and the network that makes it.
        watch: told of progress.

    Raises:
        UserError: that network did not train to its end.
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
    """One object a process: what is made of a corpus is kept by the object."""
    return replace(corpus, targets=numpy_load_file(path)["targets"], stored_fingerprint=None)


def align(config: ForcedAlignment, store: Store, watch: Watch) -> Run:
    """The finished alignment of a configuration, and before it the training of its network.

    Its summary has the shares of each split's frames that it moved to another target.
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
    """The best path of every transcript; where one has none, the targets stay as they are.

    Args:
        net: the network.
        model: its parameters ``[P]``.
        corpus: whose transcripts; priors and transitions are those of its targets.
        rule: how acoustic scores weigh.

    Returns:
        int32 [N].
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
    """The share of a split's frames whose target is not the corpus's own."""
    rows = frame_edges(corpus.split(split))[0]
    return float((targets[rows] != corpus.targets[rows]).mean())


CORPUS = {"scale": "smoke", "corpus_seed": 0, "seed": 0}
"""What a run file on a corpus may leave out."""

USUAL = {"activation": "sigmoid", "initial": None, "chunk": 1.0, "evaluations": 10, "passes": 1}
"""What a run file on frames may leave out besides."""

FOLLOWS = ("fingerprint", "device", "format")
"""Fields that follow from the rest of a run file."""


def read_corpus(asked: RunRequest, hidden: object) -> tuple[Table, Corpus]:
    """The keys of a run file on a corpus, completed by what follows from the corpus.

    Args:
        asked: the file.
        hidden: units of the network's hidden layers, as the file has them.

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
    # A list of something else is refused with the rest of the table.
    sizes = corpus.layers(cast(list[int], hidden) if isinstance(hidden, list) else ())
    table.setdefault("timed_layers", list(sizes))
    return {**table, "fingerprint": corpus.fingerprint, "device": asked.device}, corpus


def complete_frames(table: Table) -> Table:
    """The table of a run on frames, with its protocol's class and its format."""
    return complete_protocol({**USUAL, **table, "format": frames.FORMAT})


class FramesApplication(FoldApplication[RunConfig, Corpus]):
    """Frames of a corpus: see `Application`."""

    config = RunConfig
    usual = {**CORPUS, **USUAL}  # noqa: RUF012 (never written to)
    follows = FOLLOWS

    def read(self, asked: RunRequest) -> tuple[RunConfig, Corpus]:
        """See `Application`."""
        asked.check_keys(self)
        asked = replace(asked, table={**CORPUS, **asked.table})
        table, corpus = read_corpus(asked, asked.table.get("hidden"))
        return build(RunConfig, complete_frames(table), str(asked.path)), corpus

    def load(self, config: RunConfig, say: Say) -> Corpus:
        """See `Application`; the corpus's own targets."""
        return corpus_of(config, say)

    def open(self, config: RunConfig, data: Corpus, store: Store, writer: RunWriter) -> Acoustic:
        """See `FoldApplication`."""
        del writer
        return Acoustic(config, data, store)

    @contextmanager
    def computing(self, config: RunConfig) -> Generator[None]:
        """See `FoldApplication`.

        Raises:
            UserError: this machine cannot compute in the precision asked for.
        """
        check_here(config.precision, config.device)
        with denormals_flushed():
            yield

    def execute(self, config: RunConfig, store: Store, watch: Watch) -> Run:
        """See `Configuration`.

        Gradients of speech are written out. Where autograd cannot be asked, calls are a tenth to
        a fifth cheaper, with the same bits; on real processes threads share tensors, and may not.
        """
        with torch.inference_mode():
            return train(config, load_corpus_with_targets(config, store, watch), store, watch)

    def align(self, config: ForcedAlignment, store: Store, watch: Watch) -> Run:
        """The finished alignment of a configuration; see `align`."""
        return align(config, store, watch)

    def describe(self, config: RunConfig, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        del share
        yield "  timed network", name_timed(config.timed_layers, config.hidden)


FRAMES = FramesApplication()


def name_timed(timed: tuple[int, ...], hidden: tuple[int, ...]) -> str:
    """The network whose minibatches the cluster computes: often larger than the trained one."""
    sizes = "-".join(map(str, timed))
    if timed[1:-1] == tuple(hidden):
        return f"{sizes}, as trained"
    return f"{sizes} (timed_layers); trained is hidden = {list(hidden)}"


def train_or_load_start(config: RunConfig, corpus: Corpus, store: Store, watch: Watch) -> Tensor:
    """The final parameters ``[P]`` of a run, which is trained if the store does not have it.

    Raises:
        UserError: it diverged, or has kept no model.
    """
    run = train(config, corpus, store.needing(MODEL), watch)
    if run.status != "done":
        raise UserError(f"start: {run.ending()}")
    return final_model(run)
