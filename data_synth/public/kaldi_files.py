# kaldiio says no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Files of a Kaldi data directory: tables, a lexicon, archives of numbers, features or recordings.

Features are those of ``feats.scp``, or made of ``wav.scp``'s recordings. Archives are read for
numbers alone: one may hold pickles, arrays of numpy and audio, and a table may name commands, which
kaldiio unpickles and executes. Here a table names a file of numbers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from data_synth.features import SHIFT_S, plp
from data_synth.recorded import READERS, read_lines
from data_synth.tree import SILENCE
from harness.base.errors import UserError

OVERSHOOT_S = 0.5
"""A segment that ends later than its recording by less is cut there, as by `extract-segments`."""

PLACE = re.compile(r"(?P<file>.+?)(:(?P<offset>\d{1,18}))?")
"""``FILE:OFFSET``."""

OTHERS = (b"PKL", b"NPY", b"AUDIO", b"RIFF", b"fLaC")
"""First bytes by which kaldiio recognises other formats than Kaldi's."""


class NotNumbers(ValueError):  # noqa: N818 (what is wrong)
    """An archive or a table that holds something else than Kaldi's numbers."""


def matrix(place: str, folder: Path) -> np.ndarray:
    """Read the matrix that a line of a table names.

    Args:
        place: a file, perhaps with an offset; relative to the working directory, as in Kaldi, or
            to ``folder``.
        folder: of the table.

    Raises:
        NotNumbers: it is a command, or something else lies there.
        Exception: whatever kaldiio raises where the archive is broken.
    """
    parts = PLACE.fullmatch(place)
    if parts is None or place.startswith("|") or place.endswith("|"):
        raise NotNumbers("a command, and commands are not run; needed: FILE or FILE:OFFSET")
    file_name = Path(parts["file"])
    path = file_name if file_name.exists() else folder / file_name
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    with path.open("rb") as file:
        file.seek(int(parts["offset"] or 0))
        return _numbers(file)


def _numbers(file: IO[bytes]) -> np.ndarray:
    from kaldiio.matio import read_kaldi

    begins = file.read(max(map(len, OTHERS)))
    if begins.startswith(OTHERS):
        raise NotNumbers("not numbers in Kaldi's own format")
    file.seek(-len(begins), io.SEEK_CUR)
    return np.asarray(read_kaldi(file))


SILENCE_PHONES = ("SIL", "sil", "h#", "pau")
"""Names of silence in lexicons and alignments of Kaldi and of TIMIT."""


def read_table(path: Path) -> dict[str, str]:
    """A Kaldi table of lines ``key rest``.

    Raises:
        UserError: it cannot be read, is not UTF-8, or names a key twice.
    """
    rows: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        key, value = [*line.split(maxsplit=1), "", ""][:2]
        if key in rows:
            raise UserError(f"{path}: line {number}: {key} occurs twice")
        if key:
            rows[key] = value.strip()
    return rows


def read_lexicon(path: Path) -> dict[str, tuple[str, ...]]:
    """``lexicon.txt``, or ``lexiconp.txt`` with a probability in the second column.

    Raises:
        UserError: a word without phones, or no words at all.
    """
    entries: dict[str, tuple[str, ...]] = {}
    times: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        word, *phones = line.split() or [""]
        phones = phones[1:] if path.name == "lexiconp.txt" else phones
        if word and not phones:
            raise UserError(f"{path}: line {number}: word {word!r} has no phones")
        if word:
            times[word] = times.get(word, 0) + 1
            sounds = tuple(SILENCE if p in SILENCE_PHONES else p for p in phones)
            entries[word if times[word] == 1 else f"{word}({times[word]})"] = sounds
    if not entries:
        raise UserError(f"{path}: no words")
    return entries


Made = Callable[[], np.ndarray]
"""Computes an utterance's features, float64 [frames, dim]."""


def has_sound(folder: Path) -> bool:
    """Whether features are computed from recordings."""
    return not (folder / "feats.scp").exists() and (folder / "wav.scp").exists()


def matrices(folder: Path) -> Mapping[str, Made]:
    """Functions that read or compute each utterance's features.

    Args:
        folder: the data directory.

    Raises:
        UserError: it has neither features nor recordings, or a broken table.
    """
    if (folder / "feats.scp").exists():
        table = read_table(folder / "feats.scp")
        return {key: partial(_load_matrix, place, folder) for key, place in table.items()}
    if not folder.is_dir():
        raise UserError(f"{folder}: no such directory; needed: a Kaldi data directory")
    if not (folder / "wav.scp").exists():
        raise UserError(
            f"{folder}: neither feats.scp nor wav.scp; needed: feats.scp, as Kaldi's"
            " steps/make_fbank.sh writes it, or wav.scp, whose recordings are made into features"
        )
    rate_hz = rate_of(folder)
    compute = partial(_compute_features, folder=folder, rate_hz=rate_hz)
    return {key: partial(compute, *piece) for key, piece in _pieces(folder).items()}


def _pieces(folder: Path) -> dict[str, tuple[str, float, float]]:
    """Recording, start and end (seconds) of each utterance."""
    table = read_table(folder / "wav.scp")
    if not (folder / "segments").exists():
        return {key: (place, 0.0, float("inf")) for key, place in table.items()}
    pieces: dict[str, tuple[str, float, float]] = {}
    for key, value in read_table(folder / "segments").items():
        try:
            recording, start, end = value.split()
            until = float("inf") if float(end) == -1 else float(end)  # as in Kaldi
            pieces[key] = table[recording], float(start), until
        except (ValueError, KeyError):
            needed = "needed: UTTERANCE RECORDING START END, the recording one of wav.scp"
            raise UserError(f"{folder / 'segments'}: {key}: {needed}") from None
    return pieces


def rate_of(folder: Path) -> int:
    """Samples a second of a directory's recordings: that of the first, which all are to have.

    Raises:
        UserError: it has none, or the first cannot be read.
    """
    import soundfile  # pyright: ignore[reportMissingTypeStubs]

    wheres = list(read_table(folder / "wav.scp").values())
    if not wheres:
        raise UserError(f"{folder / 'wav.scp'}: no recordings")
    path = _recording(wheres[0], folder)
    try:
        return int(soundfile.info(str(path)).samplerate)
    except (soundfile.LibsndfileError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).rpartition(': ')[2]})") from None


FEW = 10
"""Utterances that tell the shift of frames."""


def shift_of(folder: Path) -> float:
    """Seconds between frames: of the file ``frame_shift``, or else by durations of utterances.

    Durations are those of ``utt2dur``, ``segments`` or recordings, over the frames, as in Kaldi's
    ``get_frame_shift.sh``. `SHIFT_S` without any, and of features that are made here.

    Raises:
        UserError: no number above 0 stands there.
    """
    if has_sound(folder):
        return SHIFT_S
    path, features = folder / "frame_shift", read_table(folder / "feats.scp")
    try:
        if path.exists():
            shift = float(" ".join(read_lines(path)))
        else:
            path = folder / "utt2dur"
            seconds = _durations(folder, [*features][:FEW])
            frames = sum(len(_load_matrix(features[key], folder)) for key in seconds)
            shift = sum(seconds.values()) / frames if frames else SHIFT_S
            if SHIFT_S < shift < 1.05 * SHIFT_S:  # as a window is longer than the shift
                shift = SHIFT_S
    except ValueError:
        shift = 0.0
    if not 0 < shift < 1:
        raise UserError(f"{path}: not the seconds between frames; needed: a number from 0 to 1")
    return shift


def _durations(folder: Path, keys: Sequence[str]) -> dict[str, float]:
    """Seconds of utterances, where they are known."""
    import soundfile  # pyright: ignore[reportMissingTypeStubs]

    seconds: dict[str, float] = {}
    if (folder / "utt2dur").exists():
        table = read_table(folder / "utt2dur")
        seconds = {key: float(table[key]) for key in keys if key in table}
    elif (folder / "wav.scp").exists():
        pieces = _pieces(folder)
        for key in keys:
            with suppress(KeyError, UserError, RuntimeError):  # of a file that cannot be read
                place, start, end = pieces[key]
                is_whole = end == float("inf")
                until = soundfile.info(str(_recording(place, folder))).duration if is_whole else end
                seconds[key] = until - start
    return seconds


def _recording(place: str, folder: Path) -> Path:
    """The file of a line of ``wav.scp``, relative to the working directory or to ``folder``."""
    if place.endswith("|"):
        raise UserError(
            f"{folder / 'wav.scp'}: {place[:60]!r} is a command, and commands are not run;"
            " needed: .wav or .flac files, or feats.scp"
        )
    path = Path(place) if Path(place).exists() else folder / place
    if path.suffix.lower() not in READERS:
        raise UserError(f"{folder / 'wav.scp'}: {place!r}; allowed: {', '.join(READERS)} files")
    return path


def _compute_features(
    place: str, start_s: float, end_s: float, folder: Path, rate_hz: int
) -> np.ndarray:
    path = _recording(place, folder)
    signal = READERS[path.suffix.lower()](path, rate_hz)
    last = len(signal) if end_s == float("inf") else round(end_s * rate_hz)
    if len(signal) < last < len(signal) + OVERSHOOT_S * rate_hz:
        last = len(signal)
    if not 0 <= start_s * rate_hz < last <= len(signal):
        reason = f"segment from {start_s} to {end_s} s of {len(signal) / rate_hz:.2f} s"
        raise UserError(f"{path}: {reason}")
    return plp(signal[round(start_s * rate_hz) : last], rate_hz)


def _load_matrix(place: str, folder: Path) -> np.ndarray:
    """One matrix of an ark, relative to the working directory or to ``folder``."""
    try:
        return matrix(place, folder).astype(np.float64)
    except Exception as error:  # kaldiio lets whatever goes wrong while parsing through
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{place} cannot be read ({reason})") from None
