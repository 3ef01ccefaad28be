"""Random parameters of a synthetic corpus: recipe, lexicon, acoustics, voices and word bigram.

Text is a bigram whose entropy is known exactly: after word v comes one of its few favourites with
probability λ (``habit``), else any word by Zipf's law: P(w|v) = λ F(w|v) + (1 − λ) Z(w). A
sentence's length is drawn apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from data_synth.articulation import cepstra, cosine_transform, ripple, smear_and_wobble, sound
from data_synth.corpus import Card, Corpus, Utterances
from data_synth.features import standardise, with_deltas
from data_synth.storage import Chunk, load_or_make, progress_counter, recipe_key, write_chunks
from harness.base.seeds import stream

SILENCE_STATES = 3

STATES_A_PHONE = 3

SILENCE_NEPERS = -6.0


@dataclass(frozen=True)
class Recipe:
    """Parameters of a synthetic corpus.

    Attributes:
        seed: of everything random.
        train, dev, test: utterances in each split; ``clean`` and ``noise`` are the same
            ``test`` utterances with different backgrounds.
        speakers, test_speakers: people heard in training; dev and test each have
            ``test_speakers`` of their own.
        words: size of the lexicon, one word an utterance.
        minimal_pairs: share of words made from another word by changing one phone.
        phones, word_phones: number of phones, and (least, most) in a word.
        cluster: phones come in families of this many, whose places are close;
            ``closeness`` is the distance within a family over that between families.
        variants, variant_spread: ways to say a phone (one is drawn for each utterance of
            it) and their distance. A linear model cannot join such scattered classes.
        state_spread: distance between the three states of a phone.
        jitter: random displacement of every state visited.
        articulation: dimensions of the articulatory space.
        smear: pole of the two articulatory smoothing filters, 0 (none) to 1.
        wobble, wobble_pole: size and pole of autoregressive articulatory noise.
        hidden, gain: units and steepness of the tanh layer from places to bands.
        bands, cepstra: frequency bands, and coefficients kept of their cosine transform.
        band_noise: frame-to-frame noise of a band, in nepers of energy.
        speaker_spread, channel_spread: size of differences between voices and microphones.
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
    """Parameters that all utterances of a recipe share: the words and the physics.

    Attributes:
        words: word -> its phones.
        places: float64 [states, articulation + 1], articulatory aim of each HMM state; the
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
    """A syllable to call a phone by, so that words can be pronounced; numbered from the 71st."""
    round_, syllable = divmod(phone, 70)
    number = str(round_) if round_ else ""
    return "bdfgklmnprstvz"[syllable // 5] + "aeiou"[syllable % 5] + number


def invent_words(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """A lexicon; ``minimal_pairs`` of it differ from another word in one phone of a family."""
    rng = stream(recipe.seed, "parametric words")
    least, most = recipe.word_phones
    possible = sum(recipe.phones**length for length in range(least, most + 1))
    if recipe.words > possible:
        raise ValueError(f"{recipe.words} words of {recipe.phones} phones; {possible} are possible")
    words: list[tuple[int, ...]] = []
    known: set[tuple[int, ...]] = set()
    while len(words) < recipe.words:
        if len(words) >= recipe.words * (1 - recipe.minimal_pairs):
            phones = list(words[rng.integers(len(words))])
            at = rng.integers(len(phones))
            family = phones[at] - phones[at] % recipe.cluster
            phones[at] = min(family + int(rng.integers(recipe.cluster)), recipe.phones - 1)
        else:
            phones = rng.integers(recipe.phones, size=rng.integers(least, most + 1)).tolist()
        if tuple(phones) not in known:
            words.append(tuple(phones))
            known.add(tuple(phones))
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


@dataclass(frozen=True)
class Voice:
    """Acoustic effect of one person, or of one microphone with its room.

    Attributes:
        turn: float64 [articulation, articulation]; ``shift`` [articulation].
        hidden: float64 [hidden], offsets inside the tanh.
        colour: float64 [bands], added to log energies.
    """

    turn: np.ndarray
    shift: np.ndarray
    hidden: np.ndarray
    colour: np.ndarray


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


Spoken = tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]
"""Features float32 [frames, 3 * cepstra], targets int32 [frames], speaker and words."""


def table_of(
    split: str,
    first: int,
    targets: Sequence[np.ndarray],
    speakers: Sequence[int],
    words: Sequence[tuple[str, ...]],
) -> Utterances:
    """Table of the utterances of a split from number ``first`` on; see `Spoken`."""
    frames = np.array([len(part) for part in targets], np.int64)
    return Utterances(
        id=np.array([f"{split}-{i:07d}" for i in range(first, first + len(frames))]),
        speaker=np.array([f"speaker-{s:04d}" for s in speakers]),
        split=np.full(len(frames), split),
        start=np.cumsum(frames) - frames,
        frames=frames,
        words=tuple(words),
    )


class SpeechMaker(ABC):
    """Makes any utterance of a recipe: words and aims are drawn by a kind of corpus, then sound."""

    def __init__(self, recipe: Recipe, name: str) -> None:
        self.name = name
        self.recipe = recipe
        self.language = invent_language(recipe)
        self.voices: dict[tuple[int, float], Voice] = {}

    @abstractmethod
    def card(self) -> Card:
        """All of the corpus but its utterances."""

    @abstractmethod
    def utterance(self, split: str, index: int) -> Spoken:
        """Utterance ``index`` of a split."""

    def voice(self, speaker: int, spread: float = 1.0) -> Voice:
        """The voice of a speaker, drawn once; ``spread`` is a factor on how odd it is."""
        if (speaker, spread) not in self.voices:
            odd = replace(self.recipe, speaker_spread=spread * self.recipe.speaker_spread)
            self.voices[speaker, spread] = invent_voice(odd, speaker)
        return self.voices[speaker, spread]

    def sound(
        self,
        voice: Voice,
        aims: np.ndarray,
        snr_db: tuple[float, float],
        rng: np.random.Generator,
        channel: float = 1.0,
    ) -> np.ndarray:
        """Features of a voice that follows articulatory aims, with a channel and a background."""
        r, lang = self.recipe, self.language
        path = smear_and_wobble(aims, rng.normal(size=aims.shape), r.smear, r.wobble, r.wobble_pole)
        colour = voice.colour + ripple(rng, channel * r.channel_spread, r.bands)
        bias = lang.mouth_bias + voice.hidden
        speech = sound(path, voice.turn, voice.shift, lang.mouth, bias, lang.spectrum, colour)
        least, most = snr_db
        snr_nepers = (least + (most - least) * rng.random()) * np.log(10) / 10
        hum = ripple(rng, channel * r.channel_spread, r.bands)
        noise = r.band_noise * rng.normal(size=speech.shape)
        static = cepstra(speech, colour.mean() - snr_nepers + hum, noise, lang.cosines)
        return standardise(with_deltas(static))

    def chunk(self, split: str, first: int, last: int) -> Chunk:
        """Utterances ``first`` to ``last - 1`` of a split."""
        spoken = [self.utterance(split, i) for i in range(first, last)]
        features, targets, speakers, words = zip(*spoken, strict=True)
        table = table_of(split, first, targets, speakers, words)
        return Chunk(np.concatenate(features), np.concatenate(targets), table)

    def chunks(
        self, utterances: int = 200, tell: Callable[[int], None] = lambda count: None
    ) -> Iterator[Chunk]:
        """All of the corpus, ``utterances`` at a time; the cut changes no byte.

        Args:
            utterances: in a chunk.
            tell: receives the number of utterances made so far.
        """
        progress = 0
        for split, count in self.recipe.sizes().items():
            for first in range(0, count, utterances):
                end = min(first + utterances, count)
                yield self.chunk(split, first, end)
                progress += end - first
                tell(progress)


def make_speech(
    maker: Callable[[], SpeechMaker],
    recipe: Recipe,
    makers: tuple[str, ...],
    name: str,
    cache: Path,
    progress: Callable[[str], None],
) -> Corpus:
    """The corpus of a recipe, from the cache or newly made.

    Args:
        maker: of its utterances.
        recipe: of the corpus.
        makers: modules that make it; see `recipe_key`.
        name: of the corpus and its scale.
        cache: see `cache_folder`.
        progress: takes a line now and then.
    """

    def fill(folder: Path) -> None:
        speech = maker()
        total = sum(recipe.sizes().values())
        tell = progress_counter(progress, f"{speech.name} corpus", total, "utterances made")
        write_chunks(folder, speech.card(), speech.chunks(tell=tell))

    key = recipe_key(asdict(recipe), makers)
    return load_or_make(cache / "corpora" / f"{name}-{key}", fill)


@dataclass(frozen=True)
class Manner:
    """Parameters of the word bigram of an invented language.

    Attributes:
        habit: λ, the probability that a word is followed by one of its favourites.
        favourites: favourite successors of each word; the k-th has weight 1/k.
        zipf: exponent of the words' frequencies, rank^−zipf.
        sentence_words: (least, most) in a sentence, every length equally likely.
    """

    habit: float = 0.7
    favourites: int = 8
    zipf: float = 0.8
    sentence_words: tuple[int, int] = (4, 12)


@dataclass(frozen=True)
class Bigram:
    """A word bigram with drawn frequencies and favourites; words are numbered from 0.

    Attributes:
        manner: its parameters.
        often: float64 [words], Z.
        next: int64 [words, favourites], the favourite successors of each word.
    """

    manner: Manner
    often: np.ndarray
    next: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """Weights of a word's favourites, float64 [favourites]."""
        weights = 1.0 / np.arange(1, int(self.next.shape[1]) + 1)
        return weights / weights.sum()

    def sentence(self, rng: np.random.Generator) -> tuple[int, ...]:
        """One sentence; its first word follows Zipf's law."""
        least, most = self.manner.sentence_words
        length = int(rng.integers(least, most + 1))
        # All numbers are drawn, used or not: the stream's position depends on the length alone.
        anybody = _draw(self.often, rng.random(length))
        liked, habit = _draw(self.weights, rng.random(length)), rng.random(length)
        words = [int(anybody[0])]
        for i in range(1, length):
            usual = habit[i] < self.manner.habit
            words.append(int(self.next[words[-1], liked[i]] if usual else anybody[i]))
        return tuple(words)


def _draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Indices drawn by weight: the inverse of the cumulative distribution at ``uniform``."""
    edges = np.cumsum(weights)
    return np.searchsorted(edges[:-1] / edges[-1], uniform, side="right")


def invent_bigram(seed: int, words: int, manner: Manner) -> Bigram:
    """Draws the frequency of each word and its favourite successors."""
    rng = stream(seed, "text bigram")
    often = np.arange(1, words + 1) ** -manner.zipf
    often = often[rng.permutation(words)] / often.sum()
    return Bigram(manner, often, rng.integers(words, size=(words, manner.favourites)))
