"""Synthetic isolated words with known truth: speech-like, any size, nothing to download.

A word is a string of phones, a phone three HMM states, a state a place in a small
articulatory space. Slow articulators smear the places into one another
(coarticulation), a nonlinear mouth turns them into log energies of frequency bands,
a speaker and a channel colour these, and background noise covers the quiet ones.
What is left becomes 13 cepstra with differences: 39 numbers a frame.

Every hardship is a field of ``Recipe``. Utterance i of a split is a pure function of
(recipe, split, i), so a corpus can be made in chunks of any size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from data_synth.corpus import Card, Corpus
from data_synth.invented_language import (
    SILENCE_STATES,
    STATES_A_PHONE,
    Recipe,
    SpeechMaker,
    Spoken,
    make_speech,
)
from harness.base.seeds import stream

MAKERS = (
    "parametric.py",
    "invented_language.py",
    "articulation.py",
    "features.py",
    "corpus.py",
    "storage.py",
)

PRESETS: dict[str, Recipe] = {
    "smoke": Recipe(),
    "laptop": Recipe(train=6000, dev=500, test=1000, speakers=200, test_speakers=40),
    "overnight": Recipe(train=60_000, dev=1000, test=2000, speakers=1000, test_speakers=100),
    "gpu": Recipe(train=330_000, dev=2000, test=4000, speakers=2000, test_speakers=200),
    "paper": Recipe(train=3_000_000, dev=5000, test=10_000, speakers=4000, test_speakers=400),
}


class Maker(SpeechMaker):
    """Makes any utterance of a recipe; the model is described in the module's docstring."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, "parametric")
        self.names = tuple(self.language.words)

    def card(self) -> Card:
        """Name, lexicon and silence of the corpus."""
        lexicon = {word: self.language.states(word) for word in self.names}
        return Card("parametric", lexicon, silence=tuple(range(SILENCE_STATES)))

    def speaker(self, split: str, rng: np.random.Generator) -> int:
        """One of the people of a split."""
        r = self.recipe
        start, count = {"train": (0, r.speakers), "dev": (r.speakers, r.test_speakers)}.get(
            split, (r.speakers + r.test_speakers, r.test_speakers)
        )
        return start + int(rng.integers(count))

    def aims(self, word: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Articulatory aim of every frame of an utterance, and its targets.

        Returns:
            float64 [frames, articulation + 1] and int32 [frames].
        """
        r, phones = self.recipe, self.language.words[word]
        least, most = r.silence_frames
        silence = np.arange(SILENCE_STATES)
        states = np.concatenate([silence, self.language.states(word), silence])
        pauses = [_three_parts(int(rng.integers(least, most + 1))) for _ in range(2)]
        stays = rng.geometric(1.0 / r.mean_state_frames, size=STATES_A_PHONE * len(phones))
        stays = np.concatenate([pauses[0], stays, pauses[1]])
        places = self.language.places[states]
        shifts = self.language.variants[phones, rng.integers(r.variants, size=len(phones))]
        places[SILENCE_STATES:-SILENCE_STATES] += np.repeat(shifts, STATES_A_PHONE, axis=0)
        places += r.jitter * rng.normal(size=places.shape)
        return np.repeat(places, stays, axis=0), np.repeat(states, stays).astype(np.int32)

    def utterance(self, split: str, index: int) -> Spoken:
        """Utterance ``index`` of a split, a word."""
        r = self.recipe
        # `clean` and `noise` share all draws and differ in the signal-to-noise ratio alone.
        drawn_as = "test" if split in ("clean", "noise") else split
        rng = stream(r.seed, f"parametric {drawn_as}", index)
        word, speaker = self.names[rng.integers(len(self.names))], self.speaker(split, rng)
        aims, targets = self.aims(word, rng)
        snr_db = r.noise_snr_db if split == "noise" else r.snr_db
        return self.sound(self.voice(speaker), aims, snr_db, rng), targets, speaker, (word,)


def _three_parts(frames: int) -> list[int]:
    return [frames // 3, frames - 2 * (frames // 3), frames // 3]


def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
    """The preset of a scale, from the cache or newly made."""
    recipe = dataclasses.replace(PRESETS[scale], seed=seed)
    maker = partial(Maker, recipe)
    return make_speech(maker, recipe, MAKERS, f"parametric-{scale}", cache, progress)
