"""Forced alignments: the targets that a trained network finds for what was said.

Paper 3 bootstraps its network "using alignments from a standard HMM-based system", and its control
without denominator goes on with alignments by the network itself. Both are made here by one rule.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from data_synth.corpus import Corpus, frame_edges
from harness.acoustics.mmi import Criterion, SequenceCriterion
from harness.base.errors import UserError
from harness.execution.data.corpora import corpus_of
from harness.execution.data.decoding import log_posteriors
from harness.execution.data.made import frames_of
from harness.execution.data.references import references_of
from harness.execution.evaluation.frames import log_prior
from harness.execution.runs.config import ForcedAlignment, RunConfig
from harness.execution.runs.executed import Watch, executed
from harness.execution.training.initial import final_model
from harness.networks.feedforward import Dnn
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL, TARGETS


def targeted(config: RunConfig, store: Store, watch: Watch) -> Corpus:
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
    run = executed(config.targets, store.needing(TARGETS), watch)
    if run.status != "done":
        raise UserError(f"targets: {run.ending()}")
    return _with_targets(corpus, run.path(TARGETS))


@lru_cache(maxsize=4)
def _with_targets(corpus: Corpus, path: Path) -> Corpus:
    """One object a process: what is made of a corpus is kept by the object."""
    return replace(corpus, targets=load_file(path)["targets"], stored_fingerprint=None)


@executed.register
def aligned(config: ForcedAlignment, store: Store, watch: Watch) -> Run:
    """The finished alignment of a configuration, and before it the training of its network.

    Its summary has the shares of each split's frames that it moved to another target.
    """

    def execute(writer: RunWriter) -> None:
        network = executed(config.network, store.needing(MODEL), watch)
        if network.status != "done":
            ended = "failed" if network.status == "failed" else "diverged"
            writer.finish(ended, {}, network.ending("its network"))
            return
        corpus = targeted(config.network, store, watch)
        net, model = config.network.network(corpus), final_model(network)
        found = forced_targets(net, model.to(config.network.device), corpus, config)
        writer.attach_arrays(TARGETS, {"targets": found})
        splits = ("train", "dev", *corpus.tests)
        writer.finish("done", {f"moved_{s}": moved(corpus, found, s) for s in splits})

    return store.obtain(config.to_dict(), execute)


@torch.no_grad()
def forced_targets(net: Dnn, model: Tensor, corpus: Corpus, rule: ForcedAlignment) -> np.ndarray:
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


def moved(corpus: Corpus, targets: np.ndarray, split: str) -> float:
    """The share of a split's frames whose target is not the corpus's own."""
    rows = frame_edges(corpus.split(split))[0]
    return float((targets[rows] != corpus.targets[rows]).mean())
