"""The continuous corpora of the three papers' tasks, at every scale.

``mandarin-like``: characters of two phones, many homophones; test sets clean and noise
(paper 1). ``conversational``: words, much reduced; five test sets, Switchboard's the
easiest (paper 2). ``voice-search-small`` and ``-large``: short queries (paper 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from data_synth import continuous
from data_synth.continuous import Condition, Recipe
from data_synth.corpus import Corpus
from data_synth.invented_language import Manner


@dataclass(frozen=True)
class Size:
    """Size of a preset's corpus at one scale.

    Attributes:
        train, dev, test: utterances; ``test`` in each test set.
        speakers, test_speakers: people in train, and in dev and each test set.
        words: in the lexicon.
        lm_sentences: text for a language model.
        phones: in the language, where the recipe's own are too few for so many words.
    """

    train: int
    dev: int
    test: int
    speakers: int
    test_speakers: int
    words: int
    lm_sentences: int
    phones: int = 0


SIZES: Mapping[str, Mapping[str, Size]] = {
    "mandarin-like": {
        "smoke": Size(300, 40, 40, 40, 10, 100, 2000),
        "laptop": Size(2000, 200, 200, 200, 40, 300, 10_000),
        "overnight": Size(20_000, 400, 1000, 1000, 100, 300, 10_000),
        "gpu": Size(100_000, 1000, 1000, 2000, 200, 2000, 100_000, phones=64),
        "paper": Size(900_000, 2000, 2000, 4000, 400, 4000, 1_000_000, phones=64),
    },
    "conversational": {
        "smoke": Size(300, 40, 40, 40, 10, 200, 2000),
        "laptop": Size(2000, 200, 200, 200, 40, 600, 10_000),
        "overnight": Size(2000, 300, 400, 200, 40, 600, 10_000),
        "gpu": Size(100_000, 1000, 1000, 2000, 200, 4000, 100_000),
        "paper": Size(900_000, 2000, 2000, 4000, 400, 8000, 1_000_000),
    },
    "voice-search-small": {
        "smoke": Size(300, 40, 180, 40, 10, 100, 2000),
        "laptop": Size(2000, 200, 900, 200, 40, 300, 10_000),
        "overnight": Size(10_000, 400, 10_000, 500, 100, 300, 10_000),
        "gpu": Size(100_000, 1000, 4500, 2000, 200, 2000, 100_000),
        "paper": Size(900_000, 2000, 9000, 4000, 400, 4000, 1_000_000),
    },
    "voice-search-large": {
        "smoke": Size(600, 40, 120, 40, 10, 200, 2000),
        "laptop": Size(4000, 200, 600, 200, 40, 600, 10_000),
        "overnight": Size(15_000, 400, 4000, 750, 100, 600, 10_000),
        "gpu": Size(200_000, 1000, 3000, 2000, 200, 4000, 100_000),
        "paper": Size(1_800_000, 2000, 6000, 4000, 400, 8000, 1_000_000),
    },
}
"""Preset -> scale -> size. Queries are short, so it takes more of them to tell error rates apart;
``conversational`` keeps, overnight too, paper 2's 2.7 frames a parameter."""

MADE = ("gpu", "paper")
"""Scales with training speech that is generated and never stored."""

# What all share: neighbours matter, and a phone is said in ways that no plane parts from
# the other phones'.
SOUNDS = Recipe(pull=0.7, wobble=0.4, band_noise=0.2, variants=4, variant_spread=1.5)


def mandarin_like() -> Recipe:
    """Short words, each a character; only the language model tells homophones apart."""
    return replace(
        SOUNDS,
        phones=32,
        word_phones=(2, 2),
        minimal_pairs=0.3,
        homophones=0.3,
        closeness=0.3,
        mean_state_frames=2.6,
        characters=True,
        manner=Manner(habit=0.65, favourites=10, sentence_words=(6, 14)),
        pause=0.05,
        conditions=(
            Condition("clean", 0),
            Condition("noise", 0, snr_db=(5.0, 10.0), speech_of="clean"),
        ),
    )


LONGER = replace(SOUNDS, phones=36, word_phones=(2, 4), minimal_pairs=0.7, closeness=0.25)
"""Longer words, many of which are minimal pairs."""


def conversational() -> Recipe:
    """Longer words in quick, smeared speech over telephones."""
    return replace(
        LONGER,
        mean_state_frames=2.1,
        manner=Manner(habit=0.45, favourites=12, sentence_words=(4, 14)),
        speaker_spread=0.22,
        snr_db=(12.0, 28.0),
        conditions=(
            Condition("swb", 0, snr_db=(14.0, 28.0)),
            Condition("callhome", 0, snr_db=(6.0, 16.0), speaker=1.5, channel=1.4, hurry=1.15),
            Condition("hub5-swb", 0, snr_db=(12.0, 26.0)),
            Condition("swb2p3", 0, snr_db=(9.0, 20.0), speaker=1.2, channel=1.2),
            Condition("swb-cell", 0, snr_db=(4.0, 14.0), speaker=1.2, channel=1.6),
        ),
    )


def voice_search() -> Recipe:
    """Queries of a few words; many words are minimal pairs."""
    return replace(
        LONGER,
        mean_state_frames=2.4,
        manner=Manner(habit=0.4, favourites=12, sentence_words=(2, 5)),
        snr_db=(2.0, 18.0),
        conditions=(Condition("test", 0, snr_db=(2.0, 18.0)),),
    )


PRESETS: Mapping[str, Callable[[], Recipe]] = {
    "mandarin-like": mandarin_like,
    "conversational": conversational,
    "voice-search-small": voice_search,
    "voice-search-large": voice_search,
}
"""Name -> the recipe before its size."""


def resize(size: Size, train: int) -> Size:
    """A size with ``train`` training utterances, and as many of each speaker as before."""
    return replace(size, train=train, speakers=max(1, round(size.speakers * train / size.train)))


def recipe(name: str, scale: str, seed: int = 0) -> Recipe:
    """The recipe of a preset at a scale.

    Args:
        name: of a preset, or ``NAME@N`` for one with N training utterances; development and test
            sets, the language and the number of utterances of a speaker are those of the scale.
        scale: one of its sizes.
        seed: decides everything random.
    """
    base, _, train = name.partition("@")
    plain, size = PRESETS[base](), SIZES[base][scale]
    if train:
        size = resize(size, int(train))
    return replace(
        plain,
        seed=seed,
        train=size.train,
        dev=size.dev,
        speakers=size.speakers,
        test_speakers=size.test_speakers,
        words=size.words,
        phones=size.phones or plain.phones,
        lm_sentences=size.lm_sentences,
        conditions=tuple(replace(c, utterances=size.test) for c in plain.conditions),
    )


def maker_of(name: str) -> Callable[..., Corpus]:
    """The function that makes a preset's corpus, with the signature of ``data_synth.CORPORA``."""

    def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
        making = continuous.make_as_needed if scale in MADE else continuous.make
        sized = recipe(name, scale, seed)
        return making(name, sized, scale, cache=cache, progress=progress)

    return make
