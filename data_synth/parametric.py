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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from data_synth.cache import cached, recipe_key
from data_synth.corpus import Corpus, Utterances
from data_synth.features import normalised, with_deltas
from data_synth.storage import Card, Chunk, write_chunks
from harness.seeds import stream

SPLITS = ("train", "dev", "clean", "noise")
SILENCE_STATES = 3
STATES_A_PHONE = 3
SILENCE_NEPERS = -6.0


@dataclass(frozen=True)
class Recipe:
    """The knobs of a synthetic corpus.

    Attributes:
        seed: everything random follows from it.
        train, dev, test: utterances in each split; ``clean`` and ``noise`` are the same
            ``test`` utterances with different backgrounds.
        speakers, test_speakers: people heard in training; dev and test each have
            ``test_speakers`` of their own.
        words: size of the lexicon, one word an utterance.
        minimal_pairs: share of words made from another word by changing one phone.
        phones, word_phones: how many there are, and (least, most) in a word.
        cluster: phones come in families of this many, whose places are close;
            ``closeness`` is the distance within a family over that between families.
        variants, variant_spread: ways to say a phone (one is drawn for each utterance of
            it) and their distance. Scattered classes are what a linear model cannot join.
        state_spread: distance between the three states of a phone.
        jitter: random displacement of every state visited.
        articulation: dimensions of the articulatory space.
        smear: pole of the two articulatory smoothing filters, 0 (none) to 1.
        wobble, wobble_pole: size and pole of autoregressive articulatory noise.
        hidden, gain: units and steepness of the tanh layer from places to bands.
        bands, cepstra: frequency bands, and coefficients kept of their cosine transform.
        band_noise: frame-to-frame noise of a band, in nepers of energy.
        speaker_spread, channel_spread: how much voices and microphones differ.
        mean_state_frames: average stay in a state; ``silence_frames`` (least, most) before
            and after the word.
        snr_db: (least, most) signal over background in train, dev and clean;
            ``noise_snr_db`` in the test set ``noise``.
    """

    seed: int = 0
    train: int = 1200
    dev: int = 150
    test: int = 300
    speakers: int = 60
    test_speakers: int = 20
    words: int = 40
    minimal_pairs: float = 0.6
    phones: int = 24
    word_phones: tuple[int, int] = (2, 5)
    cluster: int = 4
    closeness: float = 0.4
    variants: int = 3
    variant_spread: float = 1.2
    state_spread: float = 0.5
    jitter: float = 0.3
    articulation: int = 6
    smear: float = 0.35
    wobble: float = 0.55
    wobble_pole: float = 0.8
    hidden: int = 48
    gain: float = 1.6
    bands: int = 24
    cepstra: int = 13
    band_noise: float = 0.3
    speaker_spread: float = 0.15
    channel_spread: float = 0.5
    mean_state_frames: float = 3.5
    silence_frames: tuple[int, int] = (8, 20)
    snr_db: tuple[float, float] = (15.0, 30.0)
    noise_snr_db: tuple[float, float] = (5.0, 10.0)

    def sizes(self) -> dict[str, int]:
        """Utterances in each split."""
        return {"train": self.train, "dev": self.dev, "clean": self.test, "noise": self.test}


@dataclass(frozen=True)
class Language:
    """What every utterance of a recipe shares: the words and the physics.

    Attributes:
        words: word -> its phones.
        places: float64 [states, articulation + 1], where each HMM state is aimed at; the
            last column is loudness in nepers. Silence has the first three states.
        variants: float64 [phones, variants, articulation + 1], displacements of a phone.
        mouth: float64 [hidden, articulation]; ``mouth_bias`` [hidden].
        spectrum: float64 [bands, hidden], from tanh units to log energies.
        cosines: float64 [cepstra, bands], the orthonormal cosine transform.
    """

    words: dict[str, tuple[int, ...]]
    places: np.ndarray
    variants: np.ndarray
    mouth: np.ndarray
    mouth_bias: np.ndarray
    spectrum: np.ndarray
    cosines: np.ndarray

    def states(self, word: str) -> tuple[int, ...]:
        """The word's targets from left to right."""
        return tuple(
            SILENCE_STATES + STATES_A_PHONE * phone + state
            for phone in self.words[word]
            for state in range(STATES_A_PHONE)
        )


def phone_name(phone: int) -> str:
    """A syllable to call a phone by, so that words can be pronounced."""
    return "bdfgklmnprstvz"[phone // 5] + "aeiou"[phone % 5]


def invent_words(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """A lexicon; ``minimal_pairs`` of it differ from another word in one phone of a family."""
    rng = stream(recipe.seed, "parametric words")
    least, most = recipe.word_phones
    words: list[tuple[int, ...]] = []
    while len(words) < recipe.words:
        if len(words) >= recipe.words * (1 - recipe.minimal_pairs):
            phones = list(words[rng.integers(len(words))])
            at = rng.integers(len(phones))
            family = phones[at] - phones[at] % recipe.cluster
            phones[at] = min(family + int(rng.integers(recipe.cluster)), recipe.phones - 1)
        else:
            phones = rng.integers(recipe.phones, size=rng.integers(least, most + 1)).tolist()
        if tuple(phones) not in words:
            words.append(tuple(phones))
    return {"".join(map(phone_name, phones)): phones for phones in words}


def invent_language(recipe: Recipe) -> Language:
    """Draws the words and the physics of a recipe."""
    rng = stream(recipe.seed, "parametric language")
    r, dim = recipe, recipe.articulation + 1
    families = np.repeat(rng.normal(size=(-(-r.phones // r.cluster), dim)), r.cluster, axis=0)
    phones = families[: r.phones] + r.closeness * rng.normal(size=(r.phones, dim))
    states = phones[:, None] + r.state_spread * rng.normal(size=(r.phones, STATES_A_PHONE, dim))
    silence = 0.3 * rng.normal(size=(SILENCE_STATES, dim))
    silence[:, -1] = SILENCE_NEPERS
    return Language(
        words=invent_words(recipe),
        places=np.concatenate([silence, states.reshape(-1, dim)]),
        variants=r.variant_spread * rng.normal(size=(r.phones, r.variants, dim)),
        mouth=r.gain * rng.normal(size=(r.hidden, r.articulation)) / np.sqrt(r.articulation),
        mouth_bias=rng.normal(size=r.hidden),
        spectrum=_smooth_spectrum(rng.normal(size=(r.bands, r.hidden))),
        cosines=cosine_transform(r.cepstra, r.bands),
    )


def _smooth_spectrum(rough: np.ndarray) -> np.ndarray:
    """Neighbouring bands made alike; scaled so that tanh units move a band by about 1.5 nepers."""
    padded = np.pad(rough, ((2, 2), (0, 0)), mode="edge")
    smooth = sum(w * padded[i : i + len(rough)] for i, w in enumerate((1, 4, 6, 4, 1)))
    return 2.0 * smooth / np.linalg.norm(smooth, axis=1, keepdims=True)


def cosine_transform(rows: int, columns: int) -> np.ndarray:
    """The first rows of the orthonormal type-II discrete cosine transform, float64."""
    angles = np.pi * np.arange(rows)[:, None] * (np.arange(columns) + 0.5) / columns
    basis = np.sqrt(2.0 / columns) * np.cos(angles)
    basis[0] /= np.sqrt(2.0)
    return basis


@dataclass(frozen=True)
class Voice:
    """How one person, or one microphone with its room, changes the sound.

    Attributes:
        turn: float64 [articulation, articulation]; ``shift`` [articulation].
        hidden: float64 [hidden], offsets inside the tanh.
        colour: float64 [bands], added to log energies.
    """

    turn: np.ndarray
    shift: np.ndarray
    hidden: np.ndarray
    colour: np.ndarray


def ripple(rng: np.random.Generator, size: float, bands: int) -> np.ndarray:
    """A smooth random curve over the bands, float64 [bands]."""
    place = (np.arange(bands) + 0.5) / bands
    waves = np.stack([2 * place - 1, np.cos(np.pi * place), np.cos(2 * np.pi * place)])
    return (size * rng.normal(size=(3, 1)) * waves).sum(axis=0)


def invent_voice(recipe: Recipe, speaker: int) -> Voice:
    """The voice of speaker number ``speaker``."""
    rng = stream(recipe.seed, "parametric speaker", speaker)
    n, spread = recipe.articulation, recipe.speaker_spread
    return Voice(
        turn=np.eye(n) + spread * rng.normal(size=(n, n)) / np.sqrt(n),
        shift=spread * rng.normal(size=n),
        hidden=spread * rng.normal(size=recipe.hidden),
        colour=ripple(rng, 2 * spread, recipe.bands),
    )


@njit(cache=True)
def smear_and_wobble(aims, noise, smear, wobble, pole):
    """Articulators: aims smoothed by two one-pole filters each way, plus AR(1) noise.

    Args:
        aims: float64 [frames, dims].
        noise: float64 [frames, dims], standard normal.
        smear: pole of the filters.
        wobble: standard deviation of the added noise.
        pole: pole of the added noise.

    Returns:
        float64 [frames, dims]: half the causal and half the anticipating smoothing.
    """
    frames, dims = aims.shape
    path = np.empty_like(aims)
    ahead = np.empty(frames)
    fresh = wobble * np.sqrt(1.0 - pole * pole)
    for d in range(dims):
        one = two = aims[frames - 1, d]
        for t in range(frames - 1, -1, -1):
            one = smear * one + (1.0 - smear) * aims[t, d]
            two = smear * two + (1.0 - smear) * one
            ahead[t] = two
        one = two = aims[0, d]
        drift = wobble * noise[0, d]
        for t in range(frames):
            one = smear * one + (1.0 - smear) * aims[t, d]
            two = smear * two + (1.0 - smear) * one
            if t > 0:
                drift = pole * drift + fresh * noise[t, d]
            path[t, d] = 0.5 * (two + ahead[t]) + drift
    return path


@njit(cache=True)
def sound(path, turn, shift, mouth, bias, spectrum, colour):
    """Log band energies of an articulatory path: V tanh(W (A x + a) + b) + loudness + colour.

    Args:
        path: float64 [frames, dims + 1], the last column loudness.
        turn: A, float64 [dims, dims].
        shift: a, float64 [dims].
        mouth: W, float64 [hidden, dims].
        bias: b, float64 [hidden].
        spectrum: V, float64 [bands, hidden].
        colour: float64 [bands].

    Returns:
        float64 [frames, bands], nepers.
    """
    frames, dims = path.shape[0], path.shape[1] - 1
    hidden, bands = mouth.shape[0], spectrum.shape[0]
    out = np.empty((frames, bands))
    place, units = np.empty(dims), np.empty(hidden)
    for t in range(frames):
        for i in range(dims):
            place[i] = shift[i]
            for j in range(dims):
                place[i] += turn[i, j] * path[t, j]
        for h in range(hidden):
            total = bias[h]
            for i in range(dims):
                total += mouth[h, i] * place[i]
            units[h] = np.tanh(total)
        for b in range(bands):
            total = path[t, dims] + colour[b]
            for h in range(hidden):
                total += spectrum[b, h] * units[h]
            out[t, b] = total
    return out


@njit(cache=True)
def cepstra(speech, background, noise, cosines):
    """Cosine transform of log(e^speech + e^background) + noise: float64 [frames, cepstra].

    Args:
        speech: float64 [frames, bands], nepers.
        background: float64 [bands], nepers.
        noise: float64 [frames, bands], nepers.
        cosines: float64 [cepstra, bands].
    """
    frames, bands = speech.shape
    out = np.zeros((frames, cosines.shape[0]))
    for t in range(frames):
        for b in range(bands):
            top = max(speech[t, b], background[b])
            gap = abs(speech[t, b] - background[b])
            energy = top + np.log1p(np.exp(-gap)) + noise[t, b]
            for c in range(cosines.shape[0]):
                out[t, c] += cosines[c, b] * energy
    return out


class Maker:
    """Makes any utterance of a recipe; see the module's first lines for how."""

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
        first, count = {
            "train": (0, r.speakers),
            "dev": (r.speakers, r.test_speakers),
        }.get(split, (r.speakers + r.test_speakers, r.test_speakers))
        return first + int(rng.integers(count))

    def aims(self, word: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Where the articulators are aimed in every frame of an utterance, and its targets.

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
        return normalised(with_deltas(static)), targets, speaker, word

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


PRESETS: dict[str, Recipe] = {
    "smoke": Recipe(),
    "laptop": Recipe(train=6000, dev=500, test=1000, speakers=200, test_speakers=40),
    "gpu": Recipe(train=330_000, dev=2000, test=4000, speakers=2000, test_speakers=200),
    "paper": Recipe(train=3_000_000, dev=5000, test=10_000, speakers=4000, test_speakers=400),
}


def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
    """The preset of a scale, from the cache or newly made."""
    recipe = dataclasses.replace(PRESETS[scale], seed=seed)
    key = recipe_key(dataclasses.asdict(recipe), ("parametric.py", "features.py", "storage.py"))

    def fill(folder: Path) -> None:
        write_chunks(folder, Maker(recipe).card(), _reported(chunks(recipe), recipe, progress))

    return cached(cache / "corpora" / f"parametric-{scale}-{key}", fill)


def _reported(
    made: Iterator[Chunk], recipe: Recipe, progress: Callable[[str], None]
) -> Iterator[Chunk]:
    total, done = sum(recipe.sizes().values()), 0
    for chunk in made:
        yield chunk
        done += len(chunk.utterances)
        progress(f"parametric corpus: {done} of {total} utterances made")
