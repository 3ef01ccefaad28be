"""AISHELL-1: Mandarin read speech, 16 kHz wav (Apache 2.0), whole (178 h) or its sample.

Both are laid out as ``wav/{train,dev,test}/SPEAKER/ID.wav`` and one transcript file. The
sample has ``train`` alone: of every speaker the last tenth is ``test`` and the tenth before
it ``dev``, which is no official split. A character is a word; so word errors are character
errors. How characters sound comes from the corpus's own ``resource_aishell/lexicon.txt``
where it lies beside ``data_aishell``, else from pypinyin (the extra ``mandarin``): initials
and finals without tones, up to three readings a character.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from data_synth.corpus import Corpus
from data_synth.public.fetching import Source, manifest_sha256
from data_synth.public.fetching import fetch as fetch_source
from data_synth.public.fetching import find as find_folder
from data_synth.recorded import Recipe, Recording, build, read_lines
from data_synth.storage import load_or_make, recipe_key, write
from data_synth.targets import Effort
from harness.base.errors import UserError

FOLDERS = ("data_aishell", "aishell_sample/data_aishell")
SOURCE = Source(
    "aishell",
    "https://github.com/QianZ423/kaldi-asr-aishell-sample/archive/4e69bf1.tar.gz",
    "data_aishell",
    "76c5cd54de428dba9d7179616f5de56ff71ef62b954609c383646692dc7fd23a",
)
TRANSCRIPT = "transcript/aishell_transcript_v0.8.txt"
SPLITS = ("train", "dev", "test")
READINGS = 3
MAKERS = (
    "public/aishell.py",
    "recorded.py",
    "targets.py",
    "align.py",
    "tree.py",
    "features.py",
    "corpus.py",
    "storage.py",
)
RECIPE = Recipe(effort=Effort(rounds=12, tied_rounds=6, leaves=400))


def characters(text: str) -> tuple[str, ...]:
    """A transcript as characters, Latin letters in capitals, without spaces and signs."""
    plain = unicodedata.normalize("NFKC", text).upper()
    return tuple(c for c in plain if unicodedata.category(c)[0] in "LN")


def transcripts(folder: Path) -> dict[str, tuple[str, ...]]:
    """Utterance -> its characters.

    Raises:
        UserError: the file is missing or not UTF-8.
    """
    texts: dict[str, tuple[str, ...]] = {}
    for line in read_lines(folder / TRANSCRIPT):
        name, _, text = line.strip().partition(" ")
        texts[name] = characters(text)
    return texts


def recordings(folder: Path) -> list[Recording]:
    """All recordings that have a transcript, split by split; others are not official.

    Raises:
        UserError: no transcripts, or no recordings.
    """
    texts = transcripts(folder)
    files: list[Recording] = []
    for split in SPLITS:
        for path in sorted((folder / "wav" / split).glob("S*/*.wav")):
            if path.stem in texts:
                files.append(Recording(path.stem, path.parent.name, split, texts[path.stem], path))
    if not files:
        raise UserError(f"{folder}: no recording of wav/{{train,dev,test}}/S*/ has a transcript")
    if {r.split for r in files} == {"train"}:
        return _assign_splits(files)
    return files


def _assign_splits(files: list[Recording]) -> list[Recording]:
    """The sample's splits: a tenth of every speaker each for dev and test."""
    spoken_by: dict[str, list[Recording]] = {}
    for recording in files:
        spoken_by.setdefault(recording.speaker, []).append(recording)
    parts: dict[str, list[Recording]] = {split: [] for split in SPLITS}
    for spoken in spoken_by.values():
        tenth = len(spoken) // 10
        cuts = {"train": spoken[: -2 * tenth], "dev": spoken[-2 * tenth : -tenth]}
        for split, chosen in {**cuts, "test": spoken[-tenth:]}.items():
            parts[split] += [dataclasses.replace(r, split=split) for r in chosen]
    return [r for split in SPLITS for r in parts[split]]


def readings(folder: Path, wanted: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Pronunciations of characters; one without a reading is left out.

    Raises:
        UserError: there is neither a lexicon nor pypinyin.
    """
    lexicon = folder.parent / "resource_aishell" / "lexicon.txt"
    sounds = _from_lexicon(lexicon) if lexicon.exists() else _from_pinyin(wanted)
    entries: dict[str, tuple[str, ...]] = {}
    for character in sorted(set(wanted)):
        for number, phones in enumerate(sounds.get(character, [])[:READINGS], 1):
            entries[character if number == 1 else f"{character}({number})"] = phones
    return entries


def _from_lexicon(path: Path) -> dict[str, list[tuple[str, ...]]]:
    entries: dict[str, list[tuple[str, ...]]] = {}
    for line in read_lines(path):
        word, *phones = line.split() or [""]
        if phones:
            entries.setdefault(word, []).append(tuple(phones))
    return entries


def _from_pinyin(wanted: Iterable[str]) -> dict[str, list[tuple[str, ...]]]:
    try:
        # An optional extra: the type checker may run without it.
        from pypinyin import Style, pinyin  # pyright: ignore[reportMissingImports]
        from pypinyin.contrib.tone_convert import (  # pyright: ignore[reportMissingImports]
            to_finals,
            to_initials,
        )
    except ImportError:
        raise UserError(
            "corpus aishell: no resource_aishell/lexicon.txt beside data_aishell, and pypinyin "
            "is not installed: pip install 'lagbench[mandarin]'"
        ) from None
    readings: dict[str, list[tuple[str, ...]]] = {}
    for character in wanted:
        if unicodedata.name(character, "").startswith("CJK"):
            syllables = pinyin(character, style=Style.NORMAL, heteronym=True)[0]
            parts = [(to_initials(s, strict=False), to_finals(s, strict=False)) for s in syllables]
            sounds = [tuple(p for p in pair if p) for pair in parts]
            readings[character] = list(dict.fromkeys(s for s in sounds if s))
    return readings


def find(cache: Path) -> Path:
    """The folder ``data_aishell``: the whole corpus if it is there, else the sample."""
    try:
        return find_folder("aishell", FOLDERS[0], cache)
    except UserError:
        return find_folder("aishell", FOLDERS[1], cache)


def fetch(cache: Path, progress: Callable[[str], None]) -> Path:
    """Downloads the sample into the cache, checked; the whole is openslr.org/33."""
    return fetch_source(SOURCE, cache / FOLDERS[1], progress)


def make(
    scale: str, *, seed: int, cache: Path, progress: Callable[[str], None], skip: bool = False
) -> Corpus:
    """The corpus, from the cache or newly made; one size at every scale, nothing random."""
    folder = find(cache)
    recipe = dataclasses.replace(RECIPE, skip=skip)
    source = {"recordings": manifest_sha256(folder), **dataclasses.asdict(recipe)}
    files = recordings(folder)
    entries = readings(folder, dict.fromkeys(c for r in files for c in r.words))

    def fill(empty: Path) -> None:
        write(build("aishell", files, entries, recipe, progress), empty)

    return load_or_make(cache / "corpora" / f"aishell-{recipe_key(source, MAKERS)}", fill)
