"""Where leases lie: numbered texts, each of which is made once."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NAME = ".lease-"
DIGITS = 18


class Place(Protocol):
    """What a lease needs; `make` is the one step that has to be atomic.

    Attributes:
        poll_s: how often whoever waits looks again.
    """

    @property
    def poll_s(self) -> float:
        """See above."""
        ...

    def numbers(self) -> list[int]:
        """Of the texts that are there."""
        ...

    def read(self, number: int) -> str:
        """A text; FileNotFoundError if it is not there."""
        ...

    def make(self, number: int, text: str) -> bool:
        """Put a text where there is none; False if there is one."""
        ...

    def write(self, number: int, text: str) -> None:
        """Put a text in place of the one that is there."""
        ...

    def remove(self, number: int) -> None:
        """Nothing is there from now on."""
        ...


@dataclass(frozen=True)
class Folder:
    """Files ``.lease-N`` of a folder, which exists."""

    path: Path
    poll_s: float = 0.05

    def numbers(self) -> list[int]:
        """See `Place`."""
        names = os.listdir(self.path)  # noqa: PTH208 (asked often, and far quicker)
        return numbered(names, NAME)

    def read(self, number: int) -> str:
        """See `Place`."""
        return self._at(number).read_text(errors="replace")

    def make(self, number: int, text: str) -> bool:
        """See `Place`."""
        try:
            with self._at(number).open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def write(self, number: int, text: str) -> None:
        """Nothing if it is not there: a lease that was taken over is not made again."""
        with suppress(FileNotFoundError), self._at(number).open("r+") as file:
            file.write(text)
            file.truncate()  # after it: at no moment, and on no full disk, is nothing there

    def remove(self, number: int) -> None:
        """See `Place`."""
        self._at(number).unlink(missing_ok=True)

    def _at(self, number: int) -> Path:
        return self.path / f"{NAME}{number}"


def numbered(names: list[str], prefix: str) -> list[int]:
    """The numbers at the ends of names that begin with a prefix; what nobody counts to is none."""
    ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return [int(end) for end in ends if end.isdecimal() and len(end) <= DIGITS]
