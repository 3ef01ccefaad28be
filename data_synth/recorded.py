"""Recordings: read, mixed with noise at a stated level, and made into a corpus of any language.

Every recording is read, turned into features and checked. A bad one (damaged, too short,
without transcript, with a word without pronunciation) is rejected, or left out and counted
with ``skip``. Targets follow from the transcripts (``targets``).
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_synth.corpus import Corpus, Utterances
from data_synth.features import plp, standardise, with_deltas
from data_synth.storage import progress_counter
from data_synth.targets import Effort, Speech, from_transcripts
from harness.acoustics.language_model import variants
from harness.base.errors import UserError

LONGEST_S = 6 * 3600
"""Longest recording that is accepted, in seconds."""


def read_wav(path: Path, rate_hz: int) -> np.ndarray:
    """The samples of a one-channel 16-bit wav file.

    Returns:
        float64 [samples], −32768..32767.

    Raises:
        UserError: the file is missing, not a wav, of another kind, or shorter than it says.
    """
    needed = f"a wav file, 16-bit, one channel, {rate_hz} Hz, is expected"
    try:
        with wave.open(str(path)) as file:
            header = file.getparams()
            raw = file.readframes(header.nframes)
    except (wave.Error, EOFError, RuntimeError) as error:  # the last: a chunk that ends early
        reason = str(error) or "it ends early"
        raise UserError(f"{path}: not a whole wav file ({reason}); {needed}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {needed}") from None
    found = (header.sampwidth, header.nchannels, header.framerate)
    if found != (2, 1, rate_hz):
        kind = f"{8 * found[0]}-bit, channels: {found[1]}, {found[2]} Hz"
        raise UserError(f"{path}: {kind}; {needed}")
    if len(raw) != 2 * header.nframes or not raw:
        raise UserError(
            f"{path}: truncated: its header says {header.nframes} samples, "
            f"the file has {len(raw) // 2}; {needed}"
        )
    return np.frombuffer(raw, "<i2").astype(np.float64)


def read_flac(path: Path, rate_hz: int) -> np.ndarray:
    """The samples of a one-channel 16-bit flac file.

    Returns:
        float64 [samples], −32768..32767.

    Raises:
        UserError: the file is missing, not a flac, of another kind, or shorter than it says.
    """
    import soundfile  # pyright: ignore[reportMissingTypeStubs]

    needed = f"a flac file, one channel, {rate_hz} Hz, is expected"
    try:
        with soundfile.SoundFile(str(path)) as file:
            if file.format != "FLAC":  # of floating-point samples, int16 would be zeros
                raise UserError(f"{path}: {file.format} of {file.subtype}; {needed}")
            length, kind = file.frames, (file.channels, file.samplerate)
            if length > LONGEST_S * rate_hz:  # so much is asked for before a sample is read
                raise UserError(f"{path}: {length} samples; allowed: at most {LONGEST_S // 3600} h")
            samples = file.read(dtype="int16")
    except (soundfile.LibsndfileError, OSError) as error:
        reason = str(error).rpartition(": ")[2]
        raise UserError(f"{path}: not a whole flac file ({reason}); {needed}") from None
    if kind != (1, rate_hz):
        raise UserError(f"{path}: channels: {kind[0]}, {kind[1]} Hz; {needed}")
    if len(samples) != length or not length:
        raise UserError(
            f"{path}: truncated: its header says {length} samples, "
            f"the file has {len(samples)}; {needed}"
        )
    return samples.astype(np.float64)


def babble(
    voices: list[np.ndarray], samples: int, talkers: int, rng: np.random.Generator
) -> np.ndarray:
    """Several people at once: recordings drawn at random, looped, equally loud, summed.

    Args:
        voices: recordings to draw from.
        samples: length of the result.
        talkers: recordings to sum.
        rng: decides which recordings and where each starts.

    Returns:
        float64 [samples], variance about ``talkers``.
    """
    total = np.zeros(samples)
    for voice in rng.integers(len(voices), size=talkers):
        recording = voices[int(voice)]
        start = int(rng.integers(len(recording)))
        looped = np.resize(np.roll(recording, -start), samples)
        total += looped / max(float(recording.std()), 1.0)
    return total


def with_noise(signal: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Signal plus noise, scaled so that their mean powers differ by ``snr_db``.

    Returns:
        float64 [samples], 16-bit units, neither rounded nor clipped.
    """
    ratio = np.mean(signal**2) / max(float(np.mean(noise**2)), 1e-12)
    return signal + noise * np.sqrt(ratio) * 10 ** (-snr_db / 20)


READERS: dict[str, Callable[[Path, int], np.ndarray]] = {".wav": read_wav, ".flac": read_flac}

TOLD = 3  # of the recordings left out, how many are named


@dataclass(frozen=True)
class Recording:
    """One utterance before it is read: name, speaker, split, transcript and file."""

    id: str
    speaker: str
    split: str
    words: tuple[str, ...]
    path: Path


@dataclass(frozen=True)
class Recipe:
    """Parameters of a corpus made of recordings.

    Attributes:
        rate_hz: of the recordings.
        effort: parameters of the alignment.
        skip: leave bad recordings out and count them, instead of rejecting the corpus.
    """

    rate_hz: int = 16_000
    effort: Effort = field(default_factory=Effort)
    skip: bool = False


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text, which end with LF or CR LF alone, as they do for Kaldi.

    Raises:
        UserError: it cannot be read, or is not UTF-8; names the line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return [line.removesuffix("\r") for line in raw.decode("utf-8-sig").split("\n")]
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
    signal = READERS[recording.path.suffix.lower()](recording.path, recipe.rate_hz)
    static = plp(signal, recipe.rate_hz)
    if not len(static):
        raise UserError(f"{recording.path}: shorter than one frame ({len(signal)} samples)")
    return with_deltas(static)


class Tally:
    """Bad recordings that were left out, with the first reason."""

    def __init__(self, name: str, skip: bool) -> None:
        self.name, self.skip = name, skip
        self.lost: list[str] = []

    def lose(self, error: UserError) -> None:
        """Counts a bad utterance, or raises its error.

        Raises:
            UserError: bad utterances are not to be skipped.
        """
        if not self.skip:
            raise UserError(f"corpus {self.name}: {error} (--skip-bad leaves it out)")
        self.lost.append(str(error))

    def tell(self, total: int, progress: Callable[[str], None]) -> None:
        """Reports the number of recordings left out, and the first of them."""
        if self.lost:
            progress(f"corpus {self.name}: {len(self.lost)} of {total} utterances left out:")
            for line in self.lost[:TOLD]:
                progress(f"  {line}")


def table_of(recordings: Sequence[Recording], frames: Sequence[int]) -> Utterances:
    """Table of utterances with consecutive frames."""
    lengths = np.array(frames, np.int64)
    return Utterances(
        id=np.array([r.id for r in recordings]),
        speaker=np.array([r.speaker for r in recordings]),
        split=np.array([r.split for r in recordings]),
        start=np.cumsum(lengths) - lengths,
        frames=lengths,
        words=tuple(r.words for r in recordings),
    )


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
        recipe: parameters.
        progress: called with a line of text now and then.
        tests: the names of the test sets.

    Raises:
        UserError: a bad recording, unless ``recipe.skip``; or no good one.
    """
    entries, tally = variants(pronunciations), Tally(name, recipe.skip)
    good: list[Recording] = []
    blocks: list[np.ndarray] = []
    tell = progress_counter(progress, name, len(recordings), "recordings read")
    for i, recording in enumerate(recordings):
        try:
            blocks.append(features_of(recording, recipe, entries))
            good.append(recording)
        except UserError as error:
            tally.lose(error)
        tell(i + 1)
    tally.tell(len(recordings), progress)
    if not any(r.split == "train" for r in good):
        raise UserError(f"corpus {name}: no good recording for training")
    blocks = [standardise(block) for block in blocks]
    speech = Speech(
        np.concatenate(blocks), table_of(good, list(map(len, blocks))), dict(pronunciations)
    )
    sentences = tuple(r.words for r in good if r.split == "train")
    return from_transcripts(
        name, speech, recipe.effort, progress, recipe.skip, tests=tests, lm_text=sentences
    )
