"""Targets that come with a Kaldi data directory: alignments of frames, or times of phones.

``pdf.*.gz`` holds pdf numbers, ``ali.*.gz`` transition numbers; ``trans.txt``, the output of
Kaldi's ``show-transitions``, says which phone, state and pdf each belongs to. Pdfs tied across
contexts need Kaldi's own tree, which is not read. Times of phones stand in ``phones.ctm`` or
``ctm`` (seconds, as ``ali-to-phones --ctm-output`` writes them), or in a file ``UTTERANCE.phn``
for each (samples, as in TIMIT), in the directory or its folder ``phn``; the states of a phone
share its frames equally.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_synth.align import equal_parts
from data_synth.features import SHIFT_S
from data_synth.public.kaldi_files import SILENCE_PHONES, archive, read_table, shift_of
from data_synth.recorded import read_lines
from data_synth.targets import monophones
from data_synth.tree import SILENCE, Tree
from harness.base.errors import UserError

STATE = re.compile(r"Transition-state \d+: phone = (\S+) hmm-state = (\d+) pdf = (\d+)")
TRANSITION = re.compile(r"\s*Transition-id = (\d+) ")
POSITION = re.compile(r"_[BEIS]$")
"""Suffix that Kaldi appends to a phone for its position in the word."""
CTM = ("phones.ctm", "ctm")
LONGER = 3
"""Frames that times may go on after the last frame: the last window of a recording is not full."""

Targets = Callable[[int], np.ndarray]
"""Maps an utterance's number of frames to its targets, int32 [frames]."""
Times = Sequence[tuple[float, float, str]]
"""Start, end (seconds) and phone, one after another."""


@dataclass(frozen=True)
class TargetReader:
    """Reader of the targets of Kaldi directories.

    Attributes:
        tree: maps a phone's states to targets.
        of: directory -> targets by utterance.
    """

    tree: Tree
    of: Callable[[Path], Mapping[str, Targets]]


def find_targets(
    folder: Path, lexicon: Mapping[str, tuple[str, ...]], states: int, rate_hz: int
) -> TargetReader | None:
    """Reader of the targets that a training directory comes with; None without any.

    Args:
        folder: the training directory; others are to have theirs in the same form.
        lexicon: the lexicon, phones by word.
        states: of a phone, where its times are given.
        rate_hz: of the samples that ``.phn`` files count.

    Raises:
        UserError: a broken file, or pdfs that are tied across contexts.
    """
    if any(any(folder.glob(f"{kind}.*.gz")) for kind in ("pdf", "ali")):
        return _reader_from_archives(folder, lexicon)
    if _times(folder, rate_hz):
        tree = monophones(lexicon, states)
        return TargetReader(tree, partial(_targets_from_times, tree=tree, rate_hz=rate_hz))
    return None


# -- alignments of frames --------------------------------------------------------------------


@dataclass(frozen=True)
class Transitions:
    """Output of ``show-transitions``.

    Attributes:
        pdf_of: transition number -> pdf.
        tree: maps a phone's states to pdfs; None if these depend on the context.
    """

    pdf_of: Mapping[int, int]
    tree: Tree | None


def _reader_from_archives(folder: Path, lexicon: Mapping[str, tuple[str, ...]]) -> TargetReader:
    """Reader of the archives that Kaldi's aligners write."""
    trans = folder / "trans.txt"
    if not trans.exists():
        paths = sorted(folder.glob("pdf.*.gz")) or sorted(folder.glob("ali.*.gz"))
        raise UserError(f"{paths[0]}: alignments need {trans} (show-transitions)")
    transitions = read_transitions(trans)
    if transitions.tree is None:
        raise UserError(
            f"{trans}: pdfs are tied across contexts, and Kaldi's tree is not read; "
            "--realign finds targets from the transcripts"
        )
    lacking = {p for phones in lexicon.values() for p in (*phones, SILENCE)}
    lacking -= set(transitions.tree.roots)
    if lacking:
        raise UserError(f"{trans}: phone {min(lacking)!r} is missing")

    def read_targets(path: Path) -> Mapping[str, Targets]:
        return {
            key: partial(_check_length, targets)
            for key, targets in read_alignments(path, transitions).items()
        }

    return TargetReader(transitions.tree, read_targets)


def _check_length(targets: np.ndarray, frames: int) -> np.ndarray:
    if len(targets) != frames:
        raise UserError(f"{frames} frames of features, {len(targets)} of alignment")
    return targets


def read_transitions(path: Path) -> Transitions:
    """The output of ``show-transitions phones.txt final.mdl``.

    Raises:
        UserError: it has no transitions.
    """
    pdf_of: dict[int, int] = {}
    pdfs: dict[tuple[str, int], set[int]] = {}
    pdf = -1
    for line in read_lines(path):
        if state := STATE.match(line):
            phone, pdf = state[1], int(state[3])
            phone = SILENCE if phone in SILENCE_PHONES else phone
            pdfs.setdefault((phone, int(state[2])), set()).add(pdf)
        elif transition := TRANSITION.match(line):
            pdf_of[int(transition[1])] = pdf
    if not pdf_of:
        raise UserError(f"{path}: no transitions; the output of show-transitions is expected")
    return Transitions(pdf_of, _tree(pdfs))


def _tree(pdfs: Mapping[tuple[str, int], set[int]]) -> Tree | None:
    if any(len(tree) > 1 for tree in pdfs.values()):
        return None
    roots: dict[str, tuple[int, ...]] = {}
    for phone, state in sorted(pdfs):
        roots[phone] = (*roots.get(phone, ()), ~next(iter(pdfs[phone, state])))
    return Tree(roots)


def read_alignments(folder: Path, transitions: Transitions) -> dict[str, np.ndarray]:
    """Pdf of every frame by utterance; empty if the directory has no alignments.

    Raises:
        UserError: a broken archive, or transition numbers that nothing explains.
    """
    alignments: dict[str, np.ndarray] = {}
    paths = sorted(folder.glob("pdf.*.gz")) or sorted(folder.glob("ali.*.gz"))
    for path in paths:
        try:
            pairs = list(archive(path))
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: broken archive ({reason})") from None
        for key, numbers in pairs:
            alignments[key] = _pdfs(path, numbers, transitions)
    return alignments


def _pdfs(path: Path, numbers: np.ndarray, transitions: Transitions) -> np.ndarray:
    if path.name.startswith("pdf."):
        return numbers.astype(np.int32)
    strange = [n for n in np.unique(numbers).tolist() if n not in transitions.pdf_of]
    if strange:
        raise UserError(f"{path}: transition {strange[0]} is not in trans.txt")
    return np.array([transitions.pdf_of[n] for n in numbers.tolist()], np.int32)


# -- times of phones -------------------------------------------------------------------------


def _times(folder: Path, rate_hz: int) -> dict[str, Times]:
    """Times of phones by utterance; empty without any."""
    for name in CTM:
        if (folder / name).is_file():
            return _ctm(folder / name, folder / "phones.txt")
    paths = [*sorted(folder.glob("*.phn")), *sorted((folder / "phn").glob("*.phn"))]
    return {path.stem: _phn(path, rate_hz) for path in paths}


def _ctm(path: Path, numbers: Path) -> dict[str, Times]:
    """Lines ``utterance channel start duration phone``; numbers of phones are looked up."""
    names = {n: name for name, n in read_table(numbers).items()} if numbers.is_file() else {}
    times: dict[str, list[tuple[float, float, str]]] = {}
    for line, words in enumerate(map(str.split, read_lines(path)), 1):
        if words and not words[0].startswith(";;"):
            expected = "UTTERANCE CHANNEL START DURATION PHONE"
            start, length = _numbers(words[2:4], path, line, expected)
            if len(words) < 5:
                raise UserError(f"{path}: line {line}: needed: {expected}")
            phone = names.get(words[4], words[4])
            times.setdefault(words[0], []).append((start, start + length, phone))
    return dict(times)


def _phn(path: Path, rate_hz: int) -> Times:
    """Lines ``start end phone``, in samples."""
    times: list[tuple[float, float, str]] = []
    for line, words in enumerate(map(str.split, read_lines(path)), 1):
        if words:
            start, end = _numbers(words[:2], path, line, "START END PHONE")
            if len(words) < 3:
                raise UserError(f"{path}: line {line}: needed: START END PHONE")
            times.append((start / rate_hz, end / rate_hz, words[2]))
    return times


def _numbers(words: Sequence[str], path: Path, line: int, expected: str) -> tuple[float, float]:
    try:
        start, second = map(float, words)
    except ValueError:
        raise UserError(f"{path}: line {line}: needed: {expected}") from None
    if not 0 <= start < float("inf") or not 0 <= second < float("inf"):
        raise UserError(f"{path}: line {line}: a time below 0, or not finite")
    return start, second


def _targets_from_times(folder: Path, tree: Tree, rate_hz: int) -> Mapping[str, Targets]:
    times, shift_s = _times(folder, rate_hz), shift_of(folder)
    return {key: partial(spread, own, tree=tree, shift_s=shift_s) for key, own in times.items()}


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
