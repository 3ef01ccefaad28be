"""Samrómur: Icelandic read speech from many people, 16 kHz flac (CC BY 4.0).

``metadata.tsv`` names sentence, speaker and official split. Letters stand for phones:
Icelandic spelling is close to its sound. The language model's text is the training
transcripts; the lexicon has the words of all splits, so no word of a test is unknown.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path

from data_synth.corpus import Corpus
from data_synth.public.fetching import Source, manifest_sha256
from data_synth.public.fetching import fetch as fetch_source
from data_synth.public.fetching import find as find_folder
from data_synth.recorded import Recipe, Recording, build, read_lines
from data_synth.storage import load_or_make, recipe_key, write
from data_synth.targets import Effort
from harness.base.errors import UserError

FOLDER = "samromur_demo"
SOURCE = Source(
    "samromur",
    "https://github.com/cadia-lvl/samromur-asr/archive/a6dbb20.tar.gz",
    "samromur_demo",
    "f0156f125853190edae7e73c53fda42cb3f7ff5b171cf1d65053a9df6825b385",
)
SPLITS = ("train", "dev", "test")
COLUMNS = ("filename", "speaker_id", "sentence_norm", "status")
MAKERS = (
    "public/samromur.py",
    "recorded.py",
    "targets.py",
    "align.py",
    "tree.py",
    "features.py",
    "corpus.py",
    "storage.py",
)
RECIPE = Recipe(effort=Effort(rounds=12, tied_rounds=6, leaves=400), skip=False)


def recordings(folder: Path) -> list[Recording]:
    """All recordings that ``metadata.tsv`` lists, split by split.

    Raises:
        UserError: it is missing, not UTF-8, or lacks a column.
    """
    path = folder / "metadata.tsv"
    # Quotation marks in sentences are text, not CSV quotes.
    rows = list(csv.DictReader(read_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE))
    lacking = [c for c in COLUMNS if not rows or rows[0].get(c) is None]
    if lacking:
        raise UserError(f"{path}: column {lacking[0]!r} is missing")
    found: list[Recording] = []
    for split in SPLITS:
        for row in (row for row in rows if row["status"] == split):
            name, who = row["filename"], row["speaker_id"]
            place = folder / "audio" / split / who / name
            words = tuple((row["sentence_norm"] or "").split())
            found.append(Recording(Path(name).stem, who, split, words, place))
    return found


def spell_words(found: list[Recording]) -> dict[str, tuple[str, ...]]:
    """Every word by its letters, which stand for phones."""
    words = sorted({word for recording in found for word in recording.words})
    return {word: tuple(letter for letter in word if letter.isalpha()) or (word,) for word in words}


def fetch(cache: Path, progress: Callable[[str], None]) -> Path:
    """Downloads the demo set into the cache, checked."""
    return fetch_source(SOURCE, cache / FOLDER, progress)


def make(
    scale: str, *, seed: int, cache: Path, progress: Callable[[str], None], skip: bool = False
) -> Corpus:
    """The corpus, from the cache or newly made; one size at every scale, nothing random."""
    folder = find_folder("samromur", FOLDER, cache)
    recipe = dataclasses.replace(RECIPE, skip=skip)
    source = {"recordings": manifest_sha256(folder), **dataclasses.asdict(recipe)}
    found = recordings(folder)

    def fill(empty: Path) -> None:
        write(build("samromur", found, spell_words(found), recipe, progress), empty)

    return load_or_make(cache / "corpora" / f"samromur-{recipe_key(source, MAKERS)}", fill)
