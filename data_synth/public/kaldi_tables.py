"""The tables of a Kaldi data directory, and its lexicon."""

from __future__ import annotations

from pathlib import Path

from data_synth.recorded import read_lines
from data_synth.tree import SILENCE
from harness.base.errors import UserError

__all__ = ["SILENCE_PHONES", "read_lexicon", "read_table"]

SILENCE_PHONES = ("SIL", "sil", "h#", "pau")
"""What silence is called in lexicons and alignments of Kaldi and of TIMIT."""


def read_table(path: Path) -> dict[str, str]:
    """A Kaldi table of lines ``key rest``.

    Raises:
        UserError: it cannot be read, is not UTF-8, or names a key twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        key, rest = [*line.split(maxsplit=1), "", ""][:2]
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
