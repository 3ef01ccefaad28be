"""Connected digits: recordings of the Free Spoken Digit Dataset joined into strings.

Splits are those of ``fsdd``, so test recordings (index 0 to 4) are never heard in training.
Within a split every recording of a speaker is said once: they are shuffled and joined, end to
end, into strings of three to seven digits. A string is one signal: frames reach over the joints
and are normalised over the whole. ``noise`` is ``clean`` under babble, with its targets. Text for
a language model is strings of equally likely digits: a digit loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from data_synth.corpus import Corpus, Utterances
from data_synth.public import fsdd
from data_synth.public.fetching import manifest_sha256
from data_synth.recorded import Recording, read_wav, table_of
from data_synth.storage import load_or_make, recipe_key, write
from data_synth.targets import Effort, Speech, from_transcripts
from harness.base.seeds import stream

MAKERS = (
    "public/fsdd_connected.py",
    "public/fsdd.py",
    "recorded.py",
    "targets.py",
    "align.py",
    "features.py",
    "corpus.py",
    "storage.py",
)
PARTS = 3  # of a digit, each with the states of a phone: models of whole words


@dataclass(frozen=True)
class Recipe:
    """Parameters of the strings.

    Attributes:
        recordings: recordings of each split, front end and babble.
        digits: (least, most) in a string, every length equally likely; a split's last string
            of a speaker has what is left.
        effort: parameters of the alignment.
        text: strings for the language model.
    """

    recordings: fsdd.Recipe = field(default_factory=fsdd.Recipe)
    digits: tuple[int, int] = (3, 7)
    effort: Effort = field(default_factory=lambda: Effort(leaves=0, components=4))
    text: int = 2000


Key = tuple[int, str, int]  # digit, speaker, take


def draw_strings(recipe: Recipe, split: str, speaker: str) -> Iterator[list[Key]]:
    """The strings of a speaker: all of a split's recordings, each once."""
    takes = recipe.recordings.takes()[split]
    keys = [(digit, speaker, take) for digit in range(len(fsdd.DIGITS)) for take in takes]
    # Clean and noise share their recordings, so they share their strings: named by the first.
    seed, place = recipe.recordings.seed, fsdd.SPEAKERS.index(speaker)
    rng = stream(seed, "fsdd strings", takes.start, place)
    order = [keys[int(i)] for i in rng.permutation(len(keys))]
    while order:
        length = int(rng.integers(recipe.digits[0], recipe.digits[1] + 1))
        yield order[:length]
        order = order[length:]


def words_of(text: list[Key]) -> tuple[str, ...]:
    """The words of a string."""
    return tuple(fsdd.DIGITS[digit] for digit, _, _ in text)


def read_split(recipe: Recipe, folder: Path, split: str) -> tuple[list[np.ndarray], Utterances]:
    """The joined signals of a split, and its utterances with frames still unknown (0).

    Raises:
        UserError: a recording is damaged.
    """
    signals: list[np.ndarray] = []
    recordings: list[Recording] = []
    for speaker in fsdd.SPEAKERS:
        for number, text in enumerate(draw_strings(recipe, split, speaker)):
            paths = [folder / fsdd.recording(*key) for key in text]
            signals.append(np.concatenate([read_wav(path, fsdd.RATE_HZ) for path in paths]))
            name = f"{split}-{speaker}-{number:03d}"
            recordings.append(Recording(name, speaker, split, words_of(text), folder))
    return signals, table_of(recordings, [0] * len(recordings))


def build(recipe: Recipe, folder: Path, progress: Callable[[str], None]) -> Corpus:
    """Makes the corpus of the recordings in ``folder``."""
    splits: list[tuple[Utterances, list[np.ndarray]]] = []
    reader = partial(read_split, recipe, folder)
    for table, blocks in fsdd.read_splits(recipe.recordings, reader):
        splits.append((table, blocks))
        progress(f"fsdd-connected: {len(blocks)} strings for {table.split[0]}")
    speech = Speech(*fsdd.join_splits(splits), pronunciations())
    return _align_splits(recipe, speech, progress)


def pronunciations() -> dict[str, tuple[str, ...]]:
    """Every digit in parts of its own."""
    return {word: tuple(f"{word}-{part}" for part in range(PARTS)) for word in fsdd.DIGITS}


def digit_loop(recipe: Recipe) -> tuple[tuple[str, ...], ...]:
    """Strings for the language model, which no recording says; all digits are equally likely."""
    rng = stream(recipe.recordings.seed, "fsdd text")
    lengths = rng.integers(recipe.digits[0], recipe.digits[1] + 1, size=recipe.text)
    return tuple(tuple(fsdd.DIGITS[int(d)] for d in rng.integers(10, size=int(n))) for n in lengths)


def _align_splits(recipe: Recipe, speech: Speech, progress: Callable[[str], None]) -> Corpus:
    """Targets for all splits; ``noise`` takes over those of ``clean``, frame for frame."""
    text = digit_loop(recipe)
    tests = ("clean", "noise")
    corpus = from_transcripts(
        "fsdd-connected", speech, recipe.effort, progress, tests=tests, lm_text=text
    )
    clean, noise = corpus.split("clean"), corpus.split("noise")
    targets = np.array(corpus.targets)
    rows, source = (slice(u.start[0], u.start[0] + u.total_frames) for u in (noise, clean))
    targets[rows] = targets[source]
    return dataclasses.replace(corpus, targets=targets)


def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
    """The preset of a scale, from the cache or newly made."""
    recipe = Recipe(dataclasses.replace(fsdd.PRESETS[scale], seed=seed))
    folder = fsdd.find(cache)
    source = {"recordings": manifest_sha256(folder, ".wav"), **dataclasses.asdict(recipe)}
    place = cache / "corpora" / f"fsdd-connected-{recipe_key(source, MAKERS)}"
    return load_or_make(place, lambda empty: write(build(recipe, folder, progress), empty))
