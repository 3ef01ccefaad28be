"""Free Spoken Digit Dataset: recorded English digits, six speakers, 8 kHz (CC BY-SA 4.0).

3,000 recordings ``{digit}_{speaker}_{index}.wav``. The official test split, index 0 to 4,
is ``clean``; the same recordings under babble are ``noise``; index 5 to 9 is ``dev``; the
rest is ``train``. No alignment comes with it: targets are whole-word HMM states from a
flat start and Viterbi training on ``train``, then forced alignment of every split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_synth.align import Aligner, flat_start, refit
from data_synth.corpus import Corpus, Utterances, join
from data_synth.features import utterance_features
from data_synth.public.fetching import Source, how_to_get, manifest_sha256
from data_synth.public.fetching import fetch as fetch_source
from data_synth.public.fetching import find as find_folder
from data_synth.recorded import babble, read_wav, with_noise
from data_synth.storage import load_or_make, recipe_key, write
from harness.base.errors import UserError
from harness.base.seeds import stream

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
TAKES = 50
RATE_HZ = 8000
COMMIT = "26eb9aa"
URL = f"https://github.com/Jakobovski/free-spoken-digit-dataset/archive/{COMMIT}.tar.gz"
INSIDE = "fsdd/recordings"
MANIFEST_SHA256 = "1801eae019c063377d98f831d3f93574f259475df7332bb0e3d1b080fb5e6959"
MAKERS = (
    "public/fsdd.py",
    "features.py",
    "align.py",
    "recorded.py",
    "corpus.py",
    "storage.py",
    "../harness/acoustics/hmm.py",
)


@dataclass(frozen=True)
class Recipe:
    """Parameters of the corpus made of the recordings.

    Attributes:
        seed: decides the babble.
        train_takes: training recordings of each digit and speaker (index 10 and up).
        word_states, silence_states: HMM states of a digit, and of the silence around it.
        rounds: realignments of the Viterbi training.
        noise_snr_db: mean power of a recording over that of its babble in ``noise``.
        talkers: training recordings in a babble.
    """

    seed: int = 0
    train_takes: int = 40
    word_states: int = 8
    silence_states: int = 3
    rounds: int = 12
    noise_snr_db: float = 10.0
    talkers: int = 6

    def lexicon(self) -> dict[str, tuple[int, ...]]:
        """Word -> targets; silence has the first ``silence_states``."""
        start, n = self.silence_states, self.word_states
        return {w: tuple(range(start + d * n, start + d * n + n)) for d, w in enumerate(DIGITS)}

    def takes(self) -> dict[str, range]:
        """Split -> indices of its recordings of each digit and speaker."""
        test = range(5)
        return {
            "train": range(10, 10 + self.train_takes),
            "dev": range(5, 10),
            "clean": test,
            "noise": test,
        }


PRESETS: dict[str, Recipe] = {"smoke": Recipe(train_takes=20)}
"""Recipes of scales that do not have all recordings."""


def recording(digit: int, speaker: str, take: int) -> str:
    """The file name of a recording."""
    return f"{digit}_{speaker}_{take}.wav"


def find(cache: Path) -> Path:
    """The folder of recordings: LAGBENCH_CORPORA/fsdd/recordings, else the cache's own.

    Raises:
        UserError: neither has them, or some are missing; says how to get them.
    """
    folder = find_folder("fsdd", INSIDE, cache)
    names = [recording(d, s, t) for d in range(len(DIGITS)) for s in SPEAKERS for t in range(TAKES)]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        count = f"{len(missing)} of {len(names)} recordings are missing"
        place = f"corpus fsdd: {folder / missing[0]} is missing ({count})"
        raise UserError(f"{place}; {how_to_get('fsdd', INSIDE)}")
    return folder


def fetch(cache: Path, progress: Callable[[str], None], url: str = URL) -> Path:
    """Downloads the recordings into the cache, checked; nothing is kept if they differ.

    Args:
        cache: see ``data_synth.storage.cache_folder``.
        progress: called with lines of text.
        url: a tar.gz archive with a folder ``recordings`` in it.

    Returns:
        The folder of recordings.

    Raises:
        UserError: no network, not an archive, or another SHA-256 than expected.
    """
    source = Source("fsdd", url, "recordings", MANIFEST_SHA256, ".wav")
    return fetch_source(source, cache / "fsdd" / "recordings", progress)


def read_split(folder: Path, split: str, takes: range) -> tuple[list[np.ndarray], Utterances]:
    """The recordings of a split, and its utterances with frames still unknown (0)."""
    keys = [(d, s, t) for s in SPEAKERS for d in range(len(DIGITS)) for t in takes]
    table = Utterances(
        id=np.array([f"{split}-{d}_{s}_{t}" for d, s, t in keys]),
        speaker=np.array([s for _, s, _ in keys]),
        split=np.full(len(keys), split),
        start=np.zeros(len(keys), np.int64),
        frames=np.zeros(len(keys), np.int64),
        words=tuple((DIGITS[d],) for d, _, _ in keys),
    )
    return [read_wav(folder / recording(*key), RATE_HZ) for key in keys], table


def add_babble(
    recipe: Recipe, signals: list[np.ndarray], voices: list[np.ndarray]
) -> list[np.ndarray]:
    """Every signal under babble of its own, at the recipe's level."""
    return [
        with_noise(
            signal,
            babble(voices, len(signal), recipe.talkers, stream(recipe.seed, "fsdd babble", i)),
            recipe.noise_snr_db,
        )
        for i, signal in enumerate(signals)
    ]


def build(recipe: Recipe, folder: Path, progress: Callable[[str], None]) -> Corpus:
    """Makes the corpus of the recordings in ``folder``; ``noise`` is under babble of ``train``."""
    tables: list[Utterances] = []
    features: list[np.ndarray] = []
    voices: list[np.ndarray] = []
    for split, takes in recipe.takes().items():
        signals, table = read_split(folder, split, takes)
        voices = voices or signals  # `train` comes first
        if split == "noise":
            signals = add_babble(recipe, signals, voices)
        blocks = [utterance_features(s, RATE_HZ) for s in signals]
        refuse_short(recipe, folder, table, blocks)
        tables.append(dataclasses.replace(table, frames=np.array(list(map(len, blocks)))))
        features += blocks
        progress(f"fsdd: features of {len(blocks)} recordings for {split}")
    table = join(tables)
    table = dataclasses.replace(table, start=np.cumsum(table.frames) - table.frames)
    return align_splits(recipe, np.concatenate(features), table, progress)


def refuse_short(recipe: Recipe, folder: Path, table: Utterances, blocks: list[np.ndarray]) -> None:
    """Raises UserError for a recording with fewer frames than a digit has states."""
    for name, block in zip(table.id, blocks, strict=True):
        if len(block) < recipe.word_states:
            path = folder / f"{str(name).split('-', 1)[1]}.wav"
            raise UserError(
                f"{path}: {len(block)} frames; a digit needs at least {recipe.word_states}"
            )


def align_splits(
    recipe: Recipe, features: np.ndarray, table: Utterances, progress: Callable[[str], None]
) -> Corpus:
    """Targets for all splits: models from ``train``; ``noise`` takes over those of ``clean``.

    Segmental k-means (Juang and Rabiner 1990) from a flat start: single Gaussians of the aligned
    frames, in turns with alignments by them.
    """
    lexicon, silence = recipe.lexicon(), tuple(range(recipe.silence_states))
    n_targets = recipe.silence_states + recipe.word_states * len(DIGITS)
    train, heard = table.take(table.split == "train"), table.take(table.split != "noise")
    aligner, rows = Aligner(lexicon, silence), features[: train.total_frames]
    targets, scores = flat_start(train, lexicon, silence), list[float]()
    for table_of_round in (*[train] * recipe.rounds, heard):
        model = refit(rows, targets, n_targets)
        aligned = aligner.align_all(
            table_of_round, lambda s, n, model=model: model.loglik(features[s : s + n])
        )
        targets = aligned.targets
        scores.append(aligned.score)
    progress(f"fsdd: aligned, log-likelihood of a frame {scores[0]:.2f} -> {scores[-2]:.2f}")
    clean = targets[len(targets) - heard.take(heard.split == "clean").total_frames :]
    return Corpus("fsdd", features, np.concatenate([targets, clean]), table, lexicon, silence)


def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
    """The preset of a scale, from the cache or newly made."""
    recipe = dataclasses.replace(PRESETS.get(scale, Recipe()), seed=seed)
    folder = find(cache)
    source = {"recordings": manifest_sha256(folder, ".wav"), **dataclasses.asdict(recipe)}
    place = cache / "corpora" / f"fsdd-{recipe_key(source, MAKERS)}"
    return load_or_make(place, lambda empty: write(build(recipe, folder, progress), empty))
