"""Recognition of a corpus's test sets by a trained network, tuned on development data."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from data_synth import load_corpus
from data_synth.corpus import Corpus, Utterances
from data_synth.storage import load
from harness.acoustics.scoring import (
    Sentence,
    TuningResult,
    character_errors,
    phone_errors,
    word_errors,
)
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.runs.config import plain
from harness.speech.evaluation import Decoding, FrameEvaluator, Transcriber
from harness.speech.frames import RunConfig, frames_of
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL
from harness.tasks.contract import Configuration, Watch
from harness.training.run import train

FORMAT = 2
"""Version of the results; raised when the same configuration would give other errors."""

ERRORS, HEARD = "errors.safetensors", "heard.json"
"""Attached files: edits ``[U, 3]`` and lengths ``[U]`` of words, characters and phones (if the
corpus has pronunciations) for each test set; and the recognised words of each utterance."""


@dataclass(frozen=True)
class Place:
    """Source of a corpus: a folder, or a name with scale and seed."""

    name: str
    scale: str
    seed: int
    skip: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder, if the name is one of a saved corpus."""
        return Path(self.name) if (Path(self.name) / "corpus.json").exists() else None

    def load(self) -> Corpus:
        """Load the corpus; a named one is generated if it is not in the cache.

        Raises:
            UserError: no such corpus, or it cannot be generated.
        """
        if self.folder is not None:
            return load(self.folder)
        return load_corpus(self.name, scale=self.scale, seed=self.seed, skip=self.skip)


@dataclass(frozen=True)
class RecognitionConfig(Configuration):
    """A training run, and the recognition of test sets with its model.

    Args:
        training: the run that trains the model; a run of its own in the store.
        decoding: settings of the recognition.
        place: source of the corpus; not part of the identity, which has its fingerprint.
        arpa: path of the ARPA file of ``decoding.arpa``.
    """

    training: RunConfig
    decoding: Decoding
    place: Place
    arpa: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which the run's identity hashes."""
        training, decoding = self.training.to_dict(), plain(self.decoding)
        body = {"training": training, "decoding": decoding, "format": FORMAT}
        return {"is": "RecognitionConfig", **body}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return run_recognition(self, store, watch)


def arpa_sha256(path: Path) -> str:
    """SHA-256 of an ARPA file, as in ``Decoding.arpa``."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_recognition(config: RecognitionConfig, store: Store, watch: Watch) -> Run:
    """Run a recognition, after its training, or load the finished run from the store.

    Progress of the training is reported under this run's hash.

    Raises:
        UserError: the corpus cannot be loaded, or has changed since the configuration.
    """
    corpus = config.place.load()
    if corpus.fingerprint != config.training.fingerprint:
        raise UserError(f"corpus {corpus.name}: changed on disk while the runs were prepared")
    name = identity(config.to_dict())
    trained = train(
        config.training,
        corpus,
        store.needing(MODEL),
        lambda progress: watch(replace(progress, run=name)),
    )
    return store.obtain(config.to_dict(), lambda writer: _test(config, corpus, trained, writer))


def _test(config: RecognitionConfig, corpus: Corpus, trained: Run, writer: RunWriter) -> None:
    """Score frames and words of every test set with the trained model."""
    if trained.status != "done":
        how = "failed" if trained.status == "failed" else "diverged"
        writer.finish(how, {"trained": trained.hash}, trained.note)
        return
    net, device = config.training.network(corpus), config.training.device
    # without text the evaluator builds no decoding graph of its own: the transcriber has one
    evaluator = FrameEvaluator(
        net, frames_of(corpus, device, config.training.shuffling), replace(corpus, lm_text=())
    )
    model = load_file(trained.path(MODEL))["model"].to(device)
    transcriber = Transcriber(corpus, config.decoding, config.arpa)
    arrays: dict[str, np.ndarray] = {}
    heard: dict[str, list[Sentence]] = {}
    summary: dict[str, Any] = {"trained": trained.hash, "passes": trained.summary["passes"]}
    began = time.monotonic()

    def scores_of(part: Utterances) -> list[np.ndarray]:
        return evaluator.likelihoods(model, part)

    tuned = transcriber.tune_decoding(scores_of)
    for test in corpus.tests:
        heard[test] = transcriber.hear(test, scores_of, tuned)
        arrays |= _errors(corpus, test, heard[test])
        summary[f"{test}_frame_error"] = evaluator.frames_of(test, model).frame_error
        summary[f"{test}_unknown_words"] = transcriber.oov_rate(test)
    summary["dev_frame_error"] = evaluator.frames_of("dev", model).frame_error
    if tuned is not None:
        summary |= _tuning_to_dict(tuned)
    writer.attach_arrays(ERRORS, arrays)
    writer.attach(HEARD, json.dumps(heard, ensure_ascii=False, indent=0).encode())
    writer.finish("done", summary, provenance={"testing_s": round(time.monotonic() - began, 3)})


def _tuning_to_dict(tuned: TuningResult) -> dict[str, Any]:
    """Summary of the tuning: chosen settings, the plateaus' ends, whether they are bounded."""
    best = tuned.best
    return {
        "scale": best.scale,
        "scale_low": tuned.scale.low,
        "scale_high": tuned.scale.high,
        "scale_decided": float(tuned.scale.decided),
        "insertion": best.insertion,
        "insertion_low": tuned.insertion.low,
        "insertion_high": tuned.insertion.high,
        "insertion_decided": float(tuned.insertion.decided),
        "dev_word_error": best.rate,
    }


def _errors(corpus: Corpus, test: str, heard: Sequence[Sentence]) -> dict[str, np.ndarray]:
    """Edits and lengths of a test set in every unit that the corpus has."""
    said = corpus.split(test).words
    counted = {"words": word_errors(said, heard), "characters": character_errors(said, heard, " ")}
    if corpus.pronunciations:
        counted["phones"] = phone_errors(said, heard, corpus.pronunciations)
    edits = {f"{test}/{unit}/edits": counts.edits for unit, counts in counted.items()}
    return edits | {f"{test}/{unit}/lengths": counts.lengths for unit, counts in counted.items()}
