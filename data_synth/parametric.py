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
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data_synth.articulation import cepstra, ripple, smear_and_wobble, sound
from data_synth.corpus import Card, Corpus, Utterances
from data_synth.features import standardise, with_deltas
from data_synth.invented_language import (
    SILENCE_STATES,
    STATES_A_PHONE,
    Recipe,
    Voice,
    invent_language,
    invent_voice,
)
from data_synth.storage import Chunk, load_or_make, recipe_key, track_chunks, write_chunks
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


class Maker:
    """Makes any utterance of a recipe; the model is described in the module's docstring."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.language = invent_language(recipe)
        self.names = tuple(self.language.words)
        self.voices: dict[int, Voice] = {}

    def card(self) -> Card:
        """Name, lexicon and silence of the corpus."""
        lexicon = {word: self.language.states(word) for word in self.names}
        return Card("parametric", lexicon, silence=tuple(range(SILENCE_STATES)))

    def voice(self, speaker: int) -> Voice:
        """The voice of a speaker, drawn once."""
        if speaker not in self.voices:
            self.voices[speaker] = invent_voice(self.recipe, speaker)
        return self.voices[speaker]

    def speaker(self, split: str, rng: np.random.Generator) -> int:
        """One of the people of a split."""
        r = self.recipe
        first, count = {"train": (0, r.speakers), "dev": (r.speakers, r.test_speakers)}.get(
            split, (r.speakers + r.test_speakers, r.test_speakers)
        )
        return first + int(rng.integers(count))

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
        said = self.language.variants[phones, rng.integers(r.variants, size=len(phones))]
        places[SILENCE_STATES:-SILENCE_STATES] += np.repeat(said, STATES_A_PHONE, axis=0)
        places += r.jitter * rng.normal(size=places.shape)
        return np.repeat(places, stays, axis=0), np.repeat(states, stays).astype(np.int32)

    def utterance(self, split: str, index: int) -> tuple[np.ndarray, np.ndarray, int, str]:
        """Utterance ``index`` of a split.

        Returns:
            Features float32 [frames, 3 * cepstra], targets int32 [frames], speaker, word.
        """
        r, lang = self.recipe, self.language
        # `clean` and `noise` share all draws and differ in the signal-to-noise ratio alone.
        drawn_as = "test" if split in ("clean", "noise") else split
        rng = stream(r.seed, f"parametric {drawn_as}", index)
        word, speaker = self.names[rng.integers(len(self.names))], self.speaker(split, rng)
        voice = self.voice(speaker)
        aims, targets = self.aims(word, rng)
        path = smear_and_wobble(aims, rng.normal(size=aims.shape), r.smear, r.wobble, r.wobble_pole)
        colour = voice.colour + ripple(rng, r.channel_spread, r.bands)
        mouth_bias = lang.mouth_bias + voice.hidden
        speech = sound(path, voice.turn, voice.shift, lang.mouth, mouth_bias, lang.spectrum, colour)
        least, most = r.noise_snr_db if split == "noise" else r.snr_db
        snr_nepers = (least + (most - least) * rng.random()) * np.log(10) / 10
        background = colour.mean() - snr_nepers + ripple(rng, r.channel_spread, r.bands)
        noise = r.band_noise * rng.normal(size=speech.shape)
        static = cepstra(speech, background, noise, lang.cosines)
        return standardise(with_deltas(static)), targets, speaker, word

    def chunk(self, split: str, first: int, last: int) -> Chunk:
        """Utterances ``first`` to ``last - 1`` of a split."""
        made = [self.utterance(split, i) for i in range(first, last)]
        features, targets, speakers, words = zip(*made, strict=True)
        frames = np.array([len(t) for t in targets], np.int64)
        table = Utterances(
            id=np.array([f"{split}-{i:07d}" for i in range(first, last)]),
            speaker=np.array([f"speaker-{s:04d}" for s in speakers]),
            split=np.full(len(made), split),
            start=np.cumsum(frames) - frames,
            frames=frames,
            words=tuple((word,) for word in words),
        )
        return Chunk(np.concatenate(features), np.concatenate(targets), table)


def _three_parts(frames: int) -> list[int]:
    return [frames // 3, frames - 2 * (frames // 3), frames // 3]


def chunks(recipe: Recipe, utterances: int = 500) -> Iterator[Chunk]:
    """All of a recipe's corpus, ``utterances`` at a time; the cut changes no byte."""
    maker = Maker(recipe)
    for split, count in recipe.sizes().items():
        for first in range(0, count, utterances):
            yield maker.chunk(split, first, min(first + utterances, count))


def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
    """The preset of a scale, from the cache or newly made."""
    recipe = dataclasses.replace(PRESETS[scale], seed=seed)
    key = recipe_key(dataclasses.asdict(recipe), MAKERS)

    def fill(folder: Path) -> None:
        total = sum(recipe.sizes().values())
        made = track_chunks(chunks(recipe), progress, "parametric corpus", total)
        write_chunks(folder, Maker(recipe).card(), made)

    return load_or_make(cache / "corpora" / f"parametric-{scale}-{key}", fill)
