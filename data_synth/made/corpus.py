"""A corpus of which only the development and test sets are stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_synth import continuous
from data_synth.continuous import Maker, Recipe
from data_synth.corpus import Corpus, Utterances, join
from data_synth.made.speech import FORMAT, Speech
from data_synth.storage import counted


def make(
    name: str, recipe: Recipe, scale: str, *, cache: Path, progress: Callable[[str], None]
) -> Corpus:
    """The corpus of a recipe: its training speech made where it is trained on, the rest stored.

    What is said in training, and the target of every frame, is made now: it is 4 bytes a frame.
    """
    without = dataclasses.replace(recipe, train=0)
    stored = continuous.make(name, without, scale, cache=cache, progress=progress)
    speech = Speech(Maker(recipe, name), "train")
    table, targets = said(speech, progress)
    return dataclasses.replace(
        stored,
        targets=np.concatenate([stored.targets, targets]),
        utterances=join([stored.utterances, table.shifted(len(stored.features))]),
        speech=speech,
        stored_fingerprint=fingerprint(stored, recipe, targets),
    )


def said(speech: Speech, progress: Callable[[str], None]) -> tuple[Utterances, np.ndarray]:
    """All utterances of a split, and their targets, int32 [frames]."""
    maker, split, every = speech.maker, speech.split, np.arange(speech.utterances)
    first = maker.people(split).start
    speakers = np.array([f"speaker-{first + s:04d}" for s in range(len(maker.people(split)))])
    frames: list[np.ndarray] = []
    who: list[np.ndarray] = []
    words: list[tuple[str, ...]] = []
    targets: list[np.ndarray] = []
    tell = counted(progress, f"{maker.name} corpus", len(every), "training utterances drawn")
    for found in speech.said(every):
        frames.append(found.frames.numpy())
        who.append(speakers[found.speaker.numpy()])
        rows: list[list[int]] = found.words.numpy().tolist()
        words += [tuple(maker.words[w] for w in row if w >= 0) for row in rows]
        targets.append(found.of_frames.numpy().astype(np.int32))
        tell(len(words))
    lengths = np.concatenate(frames)
    table = Utterances(
        id=np.array([f"{split}-{i:07d}" for i in range(len(every))]),
        speaker=np.concatenate(who),
        split=np.full(len(every), split),
        start=np.cumsum(lengths) - lengths,
        frames=lengths,
        words=tuple(words),
    )
    return table, np.concatenate(targets)


def fingerprint(stored: Corpus, recipe: Recipe, targets: np.ndarray) -> str:
    """SHA-256 (hex) of what is stored, of all targets, and of what features are a function of."""
    content = {
        "stored": stored.fingerprint,
        "targets": hashlib.sha256(targets.data).hexdigest(),
        "recipe": dataclasses.asdict(recipe),
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
