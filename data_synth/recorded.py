"""From recordings and transcripts to a corpus, whatever language they are in.

Every recording is read, turned into features and checked. A bad one (damaged, too short,
without transcript, with a word without pronunciation) is refused in one line, or left
out and counted where that is asked for. Targets follow from the transcripts (``targets``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_synth.corpus import Corpus, Utterances
from data_synth.counted import counted
from data_synth.features import FRONT_ENDS, normalised, normalised_by_speaker, with_deltas
from data_synth.targets import Effort, Speech, from_transcripts
from data_synth.waves import read_flac, read_wav
from harness.acoustics.language_model import variants
from harness.base.errors import UserError, unknown

NORMALISATIONS = ("utterance", "speaker")
READERS: dict[str, Callable[[Path, int], np.ndarray]] = {".wav": read_wav, ".flac": read_flac}
TOLD = 3  # of the recordings left out, how many are named


@dataclass(frozen=True)
class Recording:
    """One utterance before it is read: its name, who says what, and the file."""

    id: str
    speaker: str
    split: str
    words: tuple[str, ...]
    path: Path


@dataclass(frozen=True)
class Recipe:
    """How recordings become a corpus.

    Attributes:
        rate_hz: of the recordings.
        front_end: one of ``features.FRONT_ENDS``.
        normalise: ``"utterance"`` or ``"speaker"``.
        effort: how targets are found.
        skip: leave bad recordings out and count them, instead of refusing.
    """

    rate_hz: int = 16_000
    front_end: str = "plp"
    normalise: str = "utterance"
    effort: Effort = field(default_factory=Effort)
    skip: bool = False


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text.

    Raises:
        UserError: it cannot be read, or is not UTF-8; names the line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line} is not UTF-8 text ({error.reason})") from None


def features_of(
    recording: Recording, recipe: Recipe, entries: Mapping[str, tuple[str, ...]]
) -> np.ndarray:
    """Static features with slopes, not yet normalised, float64 [frames, dim].

    Raises:
        UserError: the recording is damaged, too short, says nothing, or an unknown word.
    """
    if not recording.words:
        raise UserError(f"{recording.path}: empty transcript")
    strange = [w for w in recording.words if w not in entries]
    if strange:
        raise UserError(f"{recording.path}: word {strange[0]!r} has no pronunciation")
    signal = READERS[recording.path.suffix](recording.path, recipe.rate_hz)
    static = FRONT_ENDS[recipe.front_end](signal, recipe.rate_hz)
    if not len(static):
        raise UserError(f"{recording.path}: shorter than one frame ({len(signal)} samples)")
    return with_deltas(static)


class Tally:
    """What was left out, and why."""

    def __init__(self, name: str, skip: bool) -> None:
        self.name, self.skip = name, skip
        self.lost: list[str] = []

    def lose(self, error: UserError) -> None:
        """Counts a bad utterance, or refuses it.

        Raises:
            UserError: bad utterances are not to be skipped.
        """
        if not self.skip:
            raise UserError(f"corpus {self.name}: {error} (--skip-bad leaves it out)")
        self.lost.append(str(error))

    def tell(self, total: int, progress: Callable[[str], None]) -> None:
        """Says how many were left out, and names the first."""
        if self.lost:
            progress(f"corpus {self.name}: {len(self.lost)} of {total} utterances left out:")
            for line in self.lost[:TOLD]:
                progress(f"  {line}")


def table_of(recordings: Sequence[Recording], frames: Sequence[int]) -> Utterances:
    """The table of utterances whose frames lie one after another."""
    lengths = np.array(frames, np.int64)
    return Utterances(
        id=np.array([r.id for r in recordings]),
        speaker=np.array([r.speaker for r in recordings]),
        split=np.array([r.split for r in recordings]),
        start=np.cumsum(lengths) - lengths,
        frames=lengths,
        words=tuple(r.words for r in recordings),
    )


def normalise(blocks: list[np.ndarray], speakers: Sequence[str], how: str) -> list[np.ndarray]:
    """Features normalised over the utterance or over the speaker.

    Raises:
        UserError: an unknown way to normalise.
    """
    if how not in NORMALISATIONS:
        raise unknown("normalise", how, NORMALISATIONS)
    if how == "speaker":
        return normalised_by_speaker(blocks, speakers)
    return [normalised(block) for block in blocks]


def build(
    name: str,
    recordings: Sequence[Recording],
    pronunciations: Mapping[str, tuple[str, ...]],
    recipe: Recipe,
    progress: Callable[[str], None],
    tests: tuple[str, ...] = ("test",),
) -> Corpus:
    """Reads and aligns recordings.

    Args:
        name: of the corpus.
        recordings: in the order train, dev, test sets.
        pronunciations: lexicon entry -> phones.
        recipe: how.
        progress: called with a line of text now and then.
        tests: the names of the test sets.

    Raises:
        UserError: a bad recording, unless ``recipe.skip``; or no good one.
    """
    entries, tally = variants(pronunciations), Tally(name, recipe.skip)
    kept: list[Recording] = []
    blocks: list[np.ndarray] = []
    tell = counted(progress, name, len(recordings), "recordings read")
    for i, recording in enumerate(recordings):
        try:
            blocks.append(features_of(recording, recipe, entries))
            kept.append(recording)
        except UserError as error:
            tally.lose(error)
        tell(i + 1)
    tally.tell(len(recordings), progress)
    if not any(r.split == "train" for r in kept):
        raise UserError(f"corpus {name}: no good recording for training")
    blocks = normalise(blocks, [r.speaker for r in kept], recipe.normalise)
    speech = Speech(
        np.concatenate(blocks), table_of(kept, list(map(len, blocks))), dict(pronunciations)
    )
    said = tuple(r.words for r in kept if r.split == "train")
    return from_transcripts(
        name, speech, recipe.effort, progress, recipe.skip, tests=tests, lm_text=said
    )
