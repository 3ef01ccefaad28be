"""The continuous corpora of the three papers' tasks, at every scale.

``mandarin-like``: characters of two phones, many homophones; test sets clean and noise
(paper 1). ``conversational``: words, much reduced; five test sets, Switchboard's the
easiest (paper 2). ``voice-search-small`` and ``-large``: short queries (paper 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from data_synth import continuous
from data_synth.continuous import Condition, Recipe
from data_synth.corpus import Corpus
from data_synth.text import Manner

# Utterances of train, dev and one test set, and speakers of train and one test set.
SIZES = {
    "smoke": (300, 40, 40, 40, 10),
    "laptop": (2000, 200, 200, 200, 40),
    "gpu": (100_000, 1000, 1000, 2000, 200),
    "paper": (900_000, 2000, 2000, 4000, 400),
}
TEXT_SENTENCES = {"smoke": 2000, "laptop": 10_000, "gpu": 100_000, "paper": 1_000_000}
WORDS = {"smoke": 100, "laptop": 300, "gpu": 2000, "paper": 4000}


# What all share: neighbours matter, and a phone is said in ways that no plane parts from
# the other phones'.
SOUNDS = Recipe(pull=0.7, wobble=0.4, band_noise=0.2, variants=4, variant_spread=1.5)


def mandarin_like() -> Recipe:
    """Short words, each a character; what sounds alike is told apart by what is likely."""
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


def conversational() -> Recipe:
    """Longer words in quick, smeared speech over telephones."""
    return replace(
        SOUNDS,
        phones=36,
        word_phones=(2, 4),
        minimal_pairs=0.7,
        closeness=0.25,
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
        SOUNDS,
        phones=36,
        word_phones=(2, 4),
        minimal_pairs=0.7,
        closeness=0.25,
        mean_state_frames=2.4,
        manner=Manner(habit=0.4, favourites=12, sentence_words=(2, 5)),
        snr_db=(2.0, 18.0),
        conditions=(Condition("test", 0, snr_db=(2.0, 18.0)),),
    )


# Name -> the recipe before its size, and factors on training utterances, words and test
# utterances: queries are short, so it takes more of them to tell error rates apart.
PRESETS: Mapping[str, tuple[Callable[[], Recipe], float, float, float]] = {
    "mandarin-like": (mandarin_like, 1.0, 1.0, 1.0),
    "conversational": (conversational, 1.0, 2.0, 1.0),
    "voice-search-small": (voice_search, 1.0, 1.0, 4.5),
    "voice-search-large": (voice_search, 2.0, 2.0, 3.0),
}


def recipe(name: str, scale: str, seed: int = 0) -> Recipe:
    """The recipe of a preset at a scale."""
    base, more_speech, more_words, more_tests = PRESETS[name]
    train, dev, test, speakers, test_speakers = SIZES[scale]
    plain = base()
    return replace(
        plain,
        seed=seed,
        train=round(train * more_speech),
        dev=dev,
        speakers=speakers,
        test_speakers=test_speakers,
        words=round(WORDS[scale] * more_words),
        lm_sentences=TEXT_SENTENCES[scale],
        conditions=tuple(replace(c, utterances=round(test * more_tests)) for c in plain.conditions),
    )


def maker_of(name: str) -> Callable[..., Corpus]:
    """What makes a preset, with the signature that ``data_synth.CORPORA`` wants."""

    def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
        return continuous.make(
            name, recipe(name, scale, seed), scale, cache=cache, progress=progress
        )

    return make
