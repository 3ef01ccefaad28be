"""Finished runs in an object store, and leases of those that are being made.

A run is one object, ``runs/HASH.tar`` (`archive`), made where there is none: so it is there as a
whole or not at all, and is replaced only where it is damaged. Leases are ``leases/HASH/N``
(`lease`).
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from harness.base.errors import UserError
from harness.store import schema
from harness.store.archive import packed, unpacked
from harness.store.objects import Objects
from harness.store.place import numbered
from harness.store.read import Run

RUNS = "runs/"
RUN = re.compile(RUNS + r"([0-9a-f]{64})\.tar")
"""Where a run lies; whatever else is there is not ours, and its name is nobody's path."""

Sent = Literal["pushed", "replaced", "there", "there, light", "different", "damaged there"]


class Bucket:
    """Finished runs below an address; every method raises OSError if it cannot be reached.

    Args:
        url: see `Objects`.

    Raises:
        UserError: see `Objects`.
    """

    def __init__(self, url: str) -> None:
        self.url, self.objects = url, Objects(url)
        self._archives = Objects(url, archives=True)

    def hashes(self) -> set[str]:
        """Of the runs that are there."""
        found = (RUN.fullmatch(path) for path in self.objects.listed(RUNS))
        return {each[1] for each in found if each}

    def has(self, hash_: str) -> bool:
        """Whether a run is there."""
        return self.objects.has(_path(hash_))

    def push(self, run: Run, light: bool = False) -> Sent:
        """Send a finished run, unless it is there; what is there as a whole is never replaced.

        Args:
            run: finished.
            light: without its large files.

        Returns:
            ``"replaced"`` if what was there was damaged; ``"different"`` if a run with other
            results is there, and stays, as does a light one of a run that is not.

        Raises:
            UserError: the run is no result, or damaged.
        """
        path, data = _path(run.hash), packed(run, light)
        if self._archives.create(path, data):
            return "pushed"
        if (found := self.compared(run)) != "damaged there":
            return found
        self._archives.replace(path, data)  # by two at once: whole either way
        return "replaced"

    def compared(self, run: Run) -> Sent:
        """Whether what is there of a finished run has the same results, or others, or none."""
        try:
            there = self.pull(run.hash)
        except UserError:
            return "damaged there"
        del there[schema.PROVENANCE]  # when and where it was made is its own
        both = there.keys() - run.without(there)
        same = all((run.dir / name).read_bytes() == there[name] for name in both)
        if not same:
            return "different"
        lacks = schema.LARGE.intersection(run.digests).difference(there, run.without(schema.LARGE))
        return "there, light" if lacks else "there"

    def pull(self, hash_: str) -> dict[str, bytes]:
        """The files of a run by name, its record last, as they were pushed.

        Raises:
            FileNotFoundError: it is not there.
            UserError: it is damaged.
        """
        return unpacked(self._archives.read(_path(hash_)), hash_)

    def leases(self, hash_: str) -> Leases:
        """Where leases of a run lie."""
        return Leases(self.objects, f"leases/{hash_}/")


@dataclass(frozen=True)
class Leases:
    """Objects ``leases/HASH/N``; see `harness.store.place.Place`.

    A request whose answer was lost is sent again, and then finds what it made itself: so each
    object says which of these made it.
    """

    objects: Objects
    prefix: str
    poll_s: float = 2.0
    _maker: str = field(default_factory=secrets.token_hex)

    def numbers(self) -> list[int]:
        """See `Place`."""
        return numbered(self.objects.listed(self.prefix), self.prefix)

    def read(self, number: int) -> str:
        """See `Place`."""
        return self.objects.read(self._at(number)).decode(errors="replace").partition("\n")[0]

    def make(self, number: int, text: str) -> bool:
        """See `Place`."""
        if self.objects.create(self._at(number), made := self._signed(text)):
            return True
        with suppress(FileNotFoundError):
            return self.objects.read(self._at(number)) == made
        return False

    def write(self, number: int, text: str) -> None:
        """Made again if it was taken over, which disturbs nobody: a higher number holds."""
        self.objects.replace(self._at(number), self._signed(text))

    def remove(self, number: int) -> None:
        """See `Place`."""
        self.objects.remove(self._at(number))

    def _at(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def _signed(self, text: str) -> bytes:
        return f"{text}\n{self._maker}".encode()


def _path(hash_: str) -> str:
    return f"{RUNS}{hash_}.tar"
