"""Targets that come with a Kaldi data directory: times of phones.

They stand in ``phones.ctm`` or ``ctm``, in seconds, as ``ali-to-phones --ctm-output`` writes them;
the states of a phone share its frames equally. Alignments of frames need Kaldi's own tree, which is
not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_synth.align import equal_parts
from data_synth.features import SHIFT_S
from data_synth.public.kaldi_files import SILENCE_PHONES, read_table
from data_synth.recorded import read_lines
from data_synth.tree import SILENCE, Tree
from harness.base.errors import UserError

POSITION = re.compile(r"_[BEIS]$")
"""Suffix that Kaldi appends to a phone for its position in the word."""
CTM = ("phones.ctm", "ctm")
LONGER = 3
"""Frames that times may go on after the last frame: the last window of a recording is not full."""

Times = Sequence[tuple[float, float, str]]
"""Start, end (seconds) and phone, one after another."""


def read_times(folder: Path) -> dict[str, Times]:
    """Times of phones by utterance; empty without any. Numbers of phones are looked up.

    Raises:
        UserError: a broken file.
    """
    path = next((folder / name for name in CTM if (folder / name).is_file()), None)
    if path is None:
        return {}
    numbers = folder / "phones.txt"
    names = {n: name for name, n in read_table(numbers).items()} if numbers.is_file() else {}
    times: dict[str, list[tuple[float, float, str]]] = {}
    for line, words in enumerate(map(str.split, read_lines(path)), 1):
        if words and not words[0].startswith(";;"):
            start, length = _read_numbers(words, path, line)
            phone = names.get(words[4], words[4])
            times.setdefault(words[0], []).append((start, start + length, phone))
    return dict(times)


def _read_numbers(words: Sequence[str], path: Path, line: int) -> tuple[float, float]:
    """Start and duration of a line ``utterance channel start duration phone``."""
    try:
        _, _, start, length, _ = words[:5]
        seconds = float(start), float(length)
    except ValueError:
        needed = "UTTERANCE CHANNEL START DURATION PHONE"
        raise UserError(f"{path}: line {line}: needed: {needed}") from None
    if not all(0 <= second < float("inf") for second in seconds):
        raise UserError(f"{path}: line {line}: a time below 0, or not finite")
    return seconds


def spread(times: Times, frames: int, tree: Tree, shift_s: float = SHIFT_S) -> np.ndarray:
    """Targets of frames from times of phones; silence where no phone is.

    Frame t stands for the time from t to t + 1 shifts, as in Kaldi. A phone with fewer frames than
    states has the first of these.

    Args:
        times: of the phones of an utterance, in their order.
        frames: of the utterance.
        tree: of phones without contexts.
        shift_s: seconds from one frame to the next.

    Returns:
        int32 [frames].

    Raises:
        UserError: an unknown phone, phones out of order, or times that go on after the frames.
    """
    states = [_states(phone, tree) for _, _, phone in times]
    ends = [(round(start / shift_s), round(end / shift_s)) for start, end, _ in times]
    if any(before[1] > after[0] for before, after in pairwise(ends)):
        raise UserError("phones whose times are out of order")
    if ends and ends[-1][1] > frames + LONGER:
        raise UserError(f"{frames} frames of features, {ends[-1][1]} of phones' times")
    targets = np.full(frames, -1, np.int32)
    for (begin, end), span in zip(ends, states, strict=True):
        last = min(end, frames)
        if last > begin:
            targets[begin:last] = equal_parts(last - begin, span)
    for begin, end in _runs(targets < 0):
        targets[begin:end] = equal_parts(end - begin, _states(SILENCE, tree))
    return targets


def _states(phone: str, tree: Tree) -> tuple[int, ...]:
    name = SILENCE if phone in SILENCE_PHONES else phone
    name = name if name in tree.roots else POSITION.sub("", name)
    if name not in tree.roots:
        raise UserError(f"phone {phone!r} is not in the lexicon")
    return tuple(~at for at in tree.roots[name])


def _runs(place: np.ndarray) -> list[tuple[int, int]]:
    """Begin and end of every stretch of true entries."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], place, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
