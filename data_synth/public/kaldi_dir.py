# kaldiio says no types:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Any Kaldi data directory: ``feats.scp``, ``text``, ``utt2spk`` and a lexicon, read by kaldiio.

Alignments are taken over where they are given: ``pdf.*.gz`` holds pdf numbers, ``ali.*.gz``
transition numbers; ``trans.txt``, the output of Kaldi's ``show-transitions``, says which
phone, state and pdf each belongs to. Pdfs tied across contexts need Kaldi's own tree,
which is not read: for such directories, and for those without alignments, targets are
found from the transcripts (``targets``).

What is inconsistent is named, and refused or left out and counted.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_synth.corpus import Corpus
from data_synth.features import with_deltas
from data_synth.recorded import Recipe, Recording, Tally, normalise, read_lines, table_of
from data_synth.targets import Speech, from_transcripts, silence_of
from data_synth.tree import SILENCE, Tree, expanded
from harness.acoustics.lexicon import variants
from harness.errors import UserError

SILENCE_PHONES = ("SIL", "sil")
STATE = re.compile(r"Transition-state \d+: phone = (\S+) hmm-state = (\d+) pdf = (\d+)")
TRANSITION = re.compile(r"\s*Transition-id = (\d+) ")


@dataclass(frozen=True)
class Folder:
    """One data directory and the split it becomes."""

    path: Path
    split: str


@dataclass(frozen=True)
class Transitions:
    """What ``show-transitions`` tells.

    Attributes:
        pdf_of: transition number -> pdf.
        tree: which pdf a phone's state has; None if that depends on the context.
    """

    pdf_of: Mapping[int, int]
    tree: Tree | None


def read_table(path: Path) -> dict[str, str]:
    """A Kaldi table of lines ``key rest``.

    Raises:
        UserError: it cannot be read, is not UTF-8, or names a key twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        key, _, rest = line.strip().partition(" ")
        if key in found:
            raise UserError(f"{path}: line {number}: {key} stands there twice")
        if key:
            found[key] = rest.strip()
    return found


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
            named = tuple(SILENCE if p in SILENCE_PHONES else p for p in phones)
            entries[word if times[word] == 1 else f"{word}({times[word]})"] = named
    if not entries:
        raise UserError(f"{path}: no words")
    return entries


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
    if any(len(found) > 1 for found in pdfs.values()):
        return None
    roots: dict[str, tuple[int, ...]] = {}
    for phone, state in sorted(pdfs):
        roots[phone] = (*roots.get(phone, ()), ~next(iter(pdfs[phone, state])))
    return Tree(roots)


def _load(where: str, folder: Path, what: str) -> np.ndarray:
    """One matrix of an ark; paths are relative to here, as Kaldi's, or to the directory."""
    import kaldiio  # pyright: ignore[reportMissingTypeStubs]

    file, _, _ = where.rpartition(":")
    place = where if Path(file or where).exists() else str(folder / where)
    try:
        return np.asarray(kaldiio.load_mat(place), np.float64)
    except Exception as error:  # kaldiio lets whatever goes wrong while parsing through
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{what}: {where} cannot be read ({reason})") from None


def read_alignments(folder: Path, transitions: Transitions | None) -> dict[str, np.ndarray]:
    """Pdf of every frame by utterance; empty if the directory has no alignments.

    Raises:
        UserError: a broken archive, or transition numbers that nothing explains.
    """
    import kaldiio  # pyright: ignore[reportMissingTypeStubs]

    found: dict[str, np.ndarray] = {}
    paths = sorted(folder.glob("pdf.*.gz")) or sorted(folder.glob("ali.*.gz"))
    for path in paths:
        if transitions is None:
            raise UserError(f"{path}: alignments need {folder / 'trans.txt'} (show-transitions)")
        try:
            with gzip.open(path) as file:
                pairs = [(key, np.asarray(v)) for key, v in kaldiio.load_ark(file)]
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: broken archive ({reason})") from None
        for key, numbers in pairs:
            found[key] = _pdfs(path, numbers, transitions)
    return found


def _pdfs(path: Path, numbers: np.ndarray, transitions: Transitions) -> np.ndarray:
    if path.name.startswith("pdf."):
        return numbers.astype(np.int32)
    strange = [n for n in np.unique(numbers).tolist() if n not in transitions.pdf_of]
    if strange:
        raise UserError(f"{path}: transition {strange[0]} is not in trans.txt")
    return np.array([transitions.pdf_of[n] for n in numbers.tolist()], np.int32)


@dataclass(frozen=True)
class Import:
    """How a directory becomes a corpus.

    Attributes:
        recipe: normalisation, effort and skipping; the rest is not used.
        deltas: append slopes and slopes' slopes to the features.
        realign: find targets from transcripts even where alignments are given.
    """

    recipe: Recipe
    deltas: bool = False
    realign: bool = False


def utterance(
    key: str, tables: Mapping[str, Mapping[str, str]], folder: Folder, entries: Mapping[str, Any]
) -> Recording:
    """What the text tables say of an utterance.

    Raises:
        UserError: it lacks a speaker or transcript, or has a word without pronunciation.
    """
    what = f"{folder.path}: utterance {key}"
    for name, lacking in (("utt2spk", "no speaker"), ("text", "no transcript")):
        if key not in tables[name]:
            raise UserError(f"{what}: {lacking} in {name}")
    words = tuple(tables["text"][key].split())
    if not words:
        raise UserError(f"{what}: empty transcript")
    strange = [w for w in words if w not in entries]
    if strange:
        raise UserError(f"{what}: word {strange[0]!r} is not in the lexicon")
    return Recording(key, tables["utt2spk"][key], folder.split, words, folder.path)


def matrix(
    where: str, what: str, folder: Path, dim: int | None, pdfs: np.ndarray | None
) -> np.ndarray:
    """An utterance's features, checked against the others and its alignment.

    Raises:
        UserError: they cannot be read, are not numbers, or do not fit.
    """
    found = _load(where, folder, what)
    if found.ndim != 2 or not len(found):
        raise UserError(f"{what}: no frames")
    if dim is not None and found.shape[1] != dim:
        raise UserError(f"{what}: {found.shape[1]} features a frame, the first utterance has {dim}")
    if not np.isfinite(found).all():
        raise UserError(f"{what}: features that are not finite")
    if pdfs is not None and len(pdfs) != len(found):
        raise UserError(f"{what}: {len(found)} frames of features, {len(pdfs)} of alignment")
    return found


class _Reader:
    """Gathers the utterances of several directories."""

    def __init__(self, entries: Mapping[str, Any], options: Import) -> None:
        self.entries, self.options = entries, options
        self.tally = Tally("kaldi", options.recipe.skip)
        self.recordings: list[Recording] = []
        self.blocks: list[np.ndarray] = []
        self.pdfs: list[np.ndarray] = []
        self.total = 0

    def read(self, folder: Folder, transitions: Transitions | None, aligned: bool) -> None:
        tables = {n: read_table(folder.path / n) for n in ("feats.scp", "text", "utt2spk")}
        pdfs = read_alignments(folder.path, transitions) if aligned else {}
        for key, where in sorted(tables["feats.scp"].items()):
            self.total += 1
            what = f"{folder.path}: utterance {key}"
            try:
                recording = utterance(key, tables, folder, self.entries)
                if aligned and key not in pdfs:
                    raise UserError(f"{what}: no alignment")
                dim = self.blocks[0].shape[1] if self.blocks else None
                block = matrix(where, what, folder.path, dim, pdfs.get(key))
            except UserError as error:
                self.tally.lose(error)
                continue
            self.recordings.append(recording)
            self.blocks.append(block)
            if aligned:
                self.pdfs.append(pdfs[key])


def parted(recordings: Sequence[Recording], folders: Sequence[Folder]) -> list[Recording]:
    """Splits that no directory is for, parted off the training directory.

    Of every ten utterances of it the ninth is dev, the tenth test.

    Raises:
        UserError: they are too few to be parted.
    """
    given = {folder.split for folder in folders}
    names = {8: "dev"} if "dev" not in given else {}
    names |= {9: "test"} if given <= {"train", "dev"} else {}
    training = iter(range(len(recordings)))
    found = [
        replace(r, split=names.get(next(training) % 10, "train")) if r.split == "train" else r
        for r in recordings
    ]
    if missing := set(names.values()) - {r.split for r in found}:
        told = f"too few utterances to part off {' and '.join(sorted(missing))}"
        raise UserError(f"{folders[0].path}: {told}; allowed: 10 or more, or --dev and --test")
    return found


def read(
    folders: Sequence[Folder], lexicon: Path, options: Import, progress: Callable[[str], None]
) -> Corpus:
    """Reads Kaldi data directories.

    Args:
        folders: the training directory first; what no other is for is parted off it.
        lexicon: ``lexicon.txt`` or ``lexiconp.txt``.
        options: see ``Import``.
        progress: called with a line of text now and then.

    Raises:
        UserError: something is missing, broken or inconsistent; see the module.
    """
    said = read_lexicon(lexicon)
    trans = folders[0].path / "trans.txt"
    transitions = read_transitions(trans) if trans.exists() else None
    given = any(any(folders[0].path.glob(f"{kind}.*.gz")) for kind in ("pdf", "ali"))
    aligned = given and not options.realign
    if aligned and transitions is not None and transitions.tree is None:
        raise UserError(
            f"{trans}: pdfs are tied across contexts, and Kaldi's tree is not read; "
            "--realign finds targets from the transcripts"
        )
    reader = _Reader(variants(said), options)
    for folder in folders:
        reader.read(folder, transitions, aligned)
    reader.tally.tell(reader.total, progress)
    if not reader.blocks:
        raise UserError(f"{folders[0].path}: no good utterance")
    return _corpus(reader, folders, said, transitions if aligned else None, progress)


def _corpus(
    reader: _Reader,
    folders: Sequence[Folder],
    said: dict[str, tuple[str, ...]],
    transitions: Transitions | None,
    progress: Callable[[str], None],
) -> Corpus:
    options, recordings, pdfs = reader.options, reader.recordings, reader.pdfs
    blocks = [with_deltas(b) for b in reader.blocks] if options.deltas else reader.blocks
    blocks = normalise(blocks, [r.speaker for r in recordings], options.recipe.normalise)
    recordings = parted(recordings, folders)
    names = tuple(dict.fromkeys(("train", "dev", *(f.split for f in folders), "test")))
    order = sorted(range(len(recordings)), key=lambda i: names.index(recordings[i].split))
    recordings = [recordings[i] for i in order]
    blocks = [blocks[i] for i in order]
    there = {r.split for r in recordings}
    tests = tuple(n for n in names[2:] if n in there)
    text = tuple(r.words for r in recordings if r.split == "train")
    table = table_of(recordings, list(map(len, blocks)))
    if transitions is None:
        effort, skip = options.recipe.effort, options.recipe.skip
        speech = Speech(np.concatenate(blocks), table, said)
        return from_transcripts("kaldi", speech, effort, progress, skip, tests=tests, lm_text=text)
    tree = transitions.tree
    assert tree is not None
    lacking = {p for phones in said.values() for p in (*phones, SILENCE)} - set(tree.roots)
    if lacking:
        raise UserError(f"{folders[0].path / 'trans.txt'}: phone {min(lacking)!r} is missing")
    return Corpus(
        name="kaldi",
        features=np.concatenate(blocks),
        targets=np.concatenate([pdfs[i] for i in order]),
        utterances=table,
        lexicon=expanded(said, tree),
        silence=silence_of(tree),
        tests=tests,
        pronunciations=said,
        tree=tree,
        lm_text=text,
    )
