"""Language models as ARPA files, plain or gzip-compressed: base-10 logarithms in text."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.acoustics.language_model import BEGIN, LanguageModel, Ngram
from harness.base.errors import UserError
from harness.base.settings import inflated

LN10 = math.log(10.0)
NEVER = -99.0
"""What ARPA files have for the logarithm of zero."""


def read_arpa(path: Path) -> LanguageModel:
    """Read a model of any order.

    Raises:
        UserError: the file cannot be read, is not UTF-8 or not an ARPA file, or holds
            another number of n-grams than it announces.
    """
    try:
        with path.open("rb") as raw:
            size = path.stat().st_size
            file = inflated(raw, size) if path.suffix == ".gz" else raw
            return _Reader(path).model(io.TextIOWrapper(file, encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; an ARPA file must be") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


class _Reader:
    """Reads one file, line by line, knowing where it is."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self.announced: dict[int, int] = {}
        self.log_probs: dict[Ngram, float] = {}
        self.backoffs: dict[Ngram, float] = {}

    def model(self, lines: Iterator[str]) -> LanguageModel:
        """The model in the file; what stands around the data is ignored."""
        section: int | None = None
        for self.number, raw in enumerate(lines, 1):
            line = raw.strip()
            if line == "\\data\\":
                section = 0
            elif line == "\\end\\" and section is not None:
                return self._whole()
            elif line.startswith("\\") and line.endswith("-grams:"):
                section = self._integer(line[1 : -len("-grams:")])
            elif line and section is not None:
                self._entry(line, section)
        raise UserError(f"{self.path}: ends after line {self.number} without a line \\end\\")

    def _entry(self, line: str, section: int) -> None:
        if section == 0:
            order, _, count = line.removeprefix("ngram").partition("=")
            self.announced[self._integer(order)] = self._integer(count)
            return
        fields = line.split()
        if not section + 1 <= len(fields) <= section + 2:
            raise self._wrong(f"{line!r}; allowed: log10 p, {section} words, perhaps log10 b")
        gram = tuple(fields[1 : section + 1])
        value = self._log(fields[0])
        self.log_probs[gram] = -math.inf if gram == (BEGIN,) else value
        if len(fields) == section + 2:
            self.backoffs[gram] = self._log(fields[-1])

    def _whole(self) -> LanguageModel:
        held = Counter(map(len, self.log_probs))
        for order, count in self.announced.items():
            if held[order] != count:
                raise UserError(
                    f"{self.path}: announces {count} n-grams of order {order}, holds {held[order]}"
                )
        if set(held) - set(self.announced) or not self.announced:
            raise UserError(f"{self.path}: n-gram orders {sorted(held)} are not all announced")
        return LanguageModel(max(held), self.log_probs, self.backoffs)

    def _integer(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self._wrong(f"{text!r}; a whole number is needed") from None

    def _log(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._wrong(f"{text!r}; a base-10 logarithm is needed") from None
        if math.isnan(value) or value == math.inf:
            raise self._wrong(f"{text!r}; a finite base-10 logarithm is needed")
        return -math.inf if value <= NEVER else value * LN10

    def _wrong(self, what: str) -> UserError:
        return UserError(f"{self.path}: line {self.number}: {what}")
