"""Any Kaldi data directory: features or recordings, ``text``, ``utt2spk`` and a lexicon.

Features are those of ``feats.scp``, or made of ``wav.scp`` (`kaldi_files`). Targets follow from
times of phones where they are given (`kaldi_targets`), elsewhere from the transcripts
(``targets``).

An inconsistent utterance is named, and either rejected or left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_synth.corpus import Corpus
from data_synth.features import standardise, with_deltas
from data_synth.public.kaldi_files import (
    has_sound,
    matrices,
    read_lexicon,
    read_table,
    shift_of,
)
from data_synth.public.kaldi_targets import read_times, spread
from data_synth.recorded import TOLD, Recipe, Recording, Tally, table_of
from data_synth.targets import Speech, from_transcripts, monophones, silence_of
from data_synth.tree import Tree, expand_lexicon
from harness.acoustics.language_model import variants
from harness.base.errors import UserError


@dataclass(frozen=True)
class Folder:
    """One data directory and the split it becomes."""

    path: Path
    split: str


def utterance(
    key: str, tables: Mapping[str, Mapping[str, str]], folder: Folder, entries: Mapping[str, Any]
) -> Recording:
    """Speaker, transcript and split of an utterance, from the text tables.

    Raises:
        UserError: it lacks a speaker or transcript, or has a word without pronunciation.
    """
    for name, lacking in (("utt2spk", "no speaker"), ("text", "no transcript")):
        if key not in tables[name]:
            raise UserError(f"{lacking} in {name}")
    words = tuple(tables["text"][key].split())
    if not words:
        raise UserError("empty transcript")
    strange = [w for w in words if w not in entries]
    if strange:
        raise UserError(f"word {strange[0]!r} is not in the lexicon")
    return Recording(key, tables["utt2spk"][key], folder.split, words, folder.path)


def check_features(features: np.ndarray, dim: int | None) -> np.ndarray:
    """An utterance's features, compared with the others'.

    Raises:
        UserError: they are not numbers, or do not fit.
    """
    if features.ndim != 2 or not len(features):
        raise UserError("no frames")
    if dim is not None and features.shape[1] != dim:
        raise UserError(f"{features.shape[1]} features a frame, the first utterance has {dim}")
    if not np.isfinite(features).all():
        raise UserError("features that are not finite")
    return features


class _Reader:
    """Gathers the utterances of several directories."""

    def __init__(self, entries: Mapping[str, Any], recipe: Recipe, tree: Tree | None) -> None:
        self.entries, self.recipe, self.tree = entries, recipe, tree
        self.tally = Tally("kaldi", recipe.skip)
        self.recordings: list[Recording] = []
        self.blocks: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []
        self.total = 0

    def read(self, folder: Folder, shift_s: float, progress: Callable[[str], None]) -> None:
        features = matrices(folder.path)
        tables = {n: read_table(folder.path / n) for n in ("text", "utt2spk")}
        keys = tables["text"].keys() | tables["utt2spk"].keys()
        if silent := sorted(keys - features.keys()):
            reason = f"{len(silent)} of {len(keys)} utterances have no recording or features"
            names = ", ".join(silent[:TOLD])
            progress(f"corpus kaldi: {folder.path}: {reason}, and are left out: {names}, …")
        times = {} if self.tree is None else read_times(folder.path)
        slopes = has_sound(folder.path)
        for key, compute in sorted(features.items()):
            self.total += 1
            place = f"{folder.path}: utterance {key}"
            dim = self.blocks[0].shape[1] if self.blocks else None
            try:
                recording = utterance(key, tables, folder, self.entries)
                if self.tree is not None and key not in times:
                    raise UserError("no times of phones")
                static = compute()
                block = check_features(
                    with_deltas(static) if slopes and len(static) else static, dim
                )
                if self.tree is not None:
                    self.targets.append(spread(times[key], len(block), self.tree, shift_s))
            except UserError as error:
                self.tally.lose(UserError(f"{place}: {error}"))
                continue
            self.recordings.append(recording)
            self.blocks.append(block)


def assign_splits(recordings: Sequence[Recording], folders: Sequence[Folder]) -> list[Recording]:
    """Missing dev and test splits, taken from the training directory.

    Of every ten utterances of it the ninth is dev, the tenth test.

    Raises:
        UserError: they are too few to be parted.
    """
    splits = {folder.split for folder in folders}
    names = {8: "dev"} if "dev" not in splits else {}
    names |= {9: "test"} if splits <= {"train", "dev"} else {}
    training = iter(range(len(recordings)))
    assigned = [
        replace(r, split=names.get(next(training) % 10, "train")) if r.split == "train" else r
        for r in recordings
    ]
    if missing := set(names.values()) - {r.split for r in assigned}:
        reason = f"too few utterances to part off {' and '.join(sorted(missing))}"
        raise UserError(f"{folders[0].path}: {reason}; allowed: 10 or more, or --dev and --test")
    return assigned


def read(
    folders: Sequence[Folder],
    lexicon: Path,
    recipe: Recipe,
    progress: Callable[[str], None],
    *,
    realign: bool = False,
) -> Corpus:
    """Reads Kaldi data directories.

    Args:
        folders: the training directory first; splits without a directory are taken from it.
        lexicon: ``lexicon.txt`` or ``lexiconp.txt``.
        recipe: effort and skipping.
        progress: called with a line of text now and then.
        realign: find targets from transcripts even where times of phones are given.

    Raises:
        UserError: something is missing, broken or inconsistent; see the module.
    """
    training = folders[0].path
    if not (training / "feats.scp").exists():
        matrices(training)  # says what is needed before a lexicon is missed
    said = read_lexicon(lexicon)
    shifts = [shift_of(folder.path) for folder in folders]
    if max(shifts) > 1.05 * min(shifts):
        spans = ", ".join(f"{shift:g}" for shift in shifts)
        raise UserError(f"{training}: frame shifts of {spans} s; allowed: one for all directories")
    tree = None
    if not realign and read_times(training):
        tree = monophones(said, recipe.effort.states)
    elif not realign and any([*training.glob("ali.*.gz"), *training.glob("pdf.*.gz")]):
        needed = "phones.ctm (ali-to-phones --ctm-output), or --realign"
        raise UserError(f"{training}: alignments of frames are not read; needed: {needed}")
    reader = _Reader(variants(said), recipe, tree)
    for folder, shift_s in zip(folders, shifts, strict=True):
        reader.read(folder, shift_s, progress)
    reader.tally.tell(reader.total, progress)
    if not reader.blocks:
        raise UserError(f"{folders[0].path}: no good utterance")
    return replace(_corpus(reader, folders, said, progress), frame_shift_s=shifts[0])


def _corpus(
    reader: _Reader,
    folders: Sequence[Folder],
    lexicon: dict[str, tuple[str, ...]],
    progress: Callable[[str], None],
) -> Corpus:
    recordings = assign_splits(reader.recordings, folders)
    names = tuple(dict.fromkeys(("train", "dev", *(f.split for f in folders), "test")))
    order = sorted(range(len(recordings)), key=lambda i: names.index(recordings[i].split))
    recordings = [recordings[i] for i in order]
    blocks = [standardise(reader.blocks[i]) for i in order]
    present = {r.split for r in recordings}
    tests = tuple(n for n in names[2:] if n in present)
    text = tuple(r.words for r in recordings if r.split == "train")
    table = table_of(recordings, list(map(len, blocks)))
    if reader.tree is None:
        effort, skip = reader.recipe.effort, reader.recipe.skip
        speech = Speech(np.concatenate(blocks), table, lexicon)
        return from_transcripts("kaldi", speech, effort, progress, skip, tests=tests, lm_text=text)
    return Corpus(
        name="kaldi",
        features=np.concatenate(blocks),
        targets=np.concatenate([reader.targets[i] for i in order]),
        utterances=table,
        lexicon=expand_lexicon(lexicon, reader.tree),
        silence=silence_of(reader.tree),
        tests=tests,
        pronunciations=lexicon,
        tree=reader.tree,
        lm_text=text,
    )
