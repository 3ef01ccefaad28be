"""Features of a Kaldi data directory: of ``feats.scp``, or made of ``wav.scp``'s recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from data_synth.features import FRONT_ENDS
from data_synth.public.kaldi_arks import matrix
from data_synth.public.kaldi_tables import read_table
from data_synth.recorded import READERS
from harness.base.errors import UserError

__all__ = ["has_sound", "matrices", "rate_of"]

Made = Callable[[], np.ndarray]
"""An utterance's features, float64 [frames, dim]."""


def has_sound(folder: Path) -> bool:
    """Whether features are to be made of recordings."""
    return not (folder / "feats.scp").exists() and (folder / "wav.scp").exists()


def matrices(folder: Path, front_end: str) -> Mapping[str, Made]:
    """What reads or makes each utterance's features.

    Args:
        folder: the data directory.
        front_end: one of `FRONT_ENDS`, for recordings.

    Raises:
        UserError: it has neither features nor recordings, or a broken table.
    """
    if (folder / "feats.scp").exists():
        table = read_table(folder / "feats.scp")
        return {key: partial(_loaded, where, folder) for key, where in table.items()}
    if not folder.is_dir():
        raise UserError(f"{folder}: no such directory; needed: a Kaldi data directory")
    if not (folder / "wav.scp").exists():
        raise UserError(
            f"{folder}: neither feats.scp nor wav.scp; needed: feats.scp, as Kaldi's"
            " steps/make_fbank.sh writes it, or wav.scp, whose recordings are made into features"
        )
    rate_hz = rate_of(folder)
    made = partial(_made, folder=folder, rate_hz=rate_hz, front_end=front_end)
    return {key: partial(made, *piece) for key, piece in _pieces(folder).items()}


def _pieces(folder: Path) -> dict[str, tuple[str, float, float]]:
    """Recording, start and end (seconds) of each utterance."""
    table = read_table(folder / "wav.scp")
    if not (folder / "segments").exists():
        return {key: (where, 0.0, float("inf")) for key, where in table.items()}
    found: dict[str, tuple[str, float, float]] = {}
    for key, rest in read_table(folder / "segments").items():
        try:
            recording, start, end = rest.split()
            found[key] = table[recording], float(start), float(end)
        except (ValueError, KeyError):
            told = "needed: UTTERANCE RECORDING START END, the recording one of wav.scp"
            raise UserError(f"{folder / 'segments'}: {key}: {told}") from None
    return found


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


def _recording(where: str, folder: Path) -> Path:
    """The file of a line of ``wav.scp``; relative to here, as Kaldi's, or to the directory."""
    if where.endswith("|"):
        raise UserError(
            f"{folder / 'wav.scp'}: {where[:60]!r} is a command, and none is run; needed: .wav or"
            " .flac files, or feats.scp"
        )
    path = Path(where) if Path(where).exists() else folder / where
    if path.suffix not in READERS:
        raise UserError(f"{folder / 'wav.scp'}: {where!r}; allowed: {', '.join(READERS)} files")
    return path


def _made(
    where: str, start_s: float, end_s: float, folder: Path, rate_hz: int, front_end: str
) -> np.ndarray:
    path = _recording(where, folder)
    signal = READERS[path.suffix](path, rate_hz)
    last = len(signal) if end_s == float("inf") else round(end_s * rate_hz)
    if not 0 <= start_s * rate_hz < last <= len(signal):
        told = f"segment from {start_s} to {end_s} s of {len(signal) / rate_hz:.2f} s"
        raise UserError(f"{path}: {told}")
    return FRONT_ENDS[front_end](signal[round(start_s * rate_hz) : last], rate_hz)


def _loaded(where: str, folder: Path) -> np.ndarray:
    """One matrix of an ark; paths are relative to here, as Kaldi's, or to the directory."""
    try:
        return matrix(where, folder).astype(np.float64)
    except Exception as error:  # kaldiio lets whatever goes wrong while parsing through
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{where} cannot be read ({reason})") from None
