"""Registrations: files that say, before the first run, how its verdicts are made.

``reproductions/PAPER/registered/SCALE.toml`` is committed before the first run of a verdict. Every
run that is begun keeps, in its provenance, the commit of the code, the digest of the file, and a
short digest of every entry (`Registration.describe`), so that a later reader sees which entries
were changed after it. Curves over scale have a file of their own, ``registered/scaling.toml``::

    [scaling."p1.scaling"]
    claim = "p1.one-pass-close"      # claim whose statistic is followed
    grows = "hours of speech"        # axis, with its unit
    sizes = [                        # each with the seeds of its runs
        { at = 1.04, seeds = [6001, 6002] },
        { at = 3.1, seeds = [6001, 6002] },
    ]
    held_out = 3.1                   # size that the laws are checked on
    paper = 500                      # size of the paper
    laws = ["power", "power above a floor"]
    band = { at_most = 1.08 }        # of the claim, at the paper's size
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError
from harness.base.seeds import identity

__all__ = ["Registration", "read_registration"]

SHORT = 8
"""Hexadecimal digits of an entry's digest."""

KINDS = ("claims", "scaling")
"""Tables with an entry for each claim or curve, by its id."""


@dataclass(frozen=True)
class Registration:
    """A registration as it was read.

    Attributes:
        path: the file.
        content: its bytes.
    """

    path: Path
    content: bytes

    @cached_property
    def table(self) -> Mapping[str, Any]:
        """The content.

        Raises:
            UserError: it is not TOML.
        """
        try:
            return tomllib.loads(self.content.decode())
        except ValueError as error:
            raise UserError(f"{self.path}: cannot be read as TOML ({error})") from None

    @property
    def digest(self) -> str:
        """SHA-256 of the file, hexadecimal."""
        return sha256(self.content).hexdigest()

    def entries(self, id_: str) -> dict[str, Any]:
        """The entries of a claim or curve by their keys; empty if the file does not have it.

        The names of settings are replaced by the settings themselves; keys that hold for all claims
        (seeds, looks) are added.
        """
        found = next((self.table[k][id_] for k in KINDS if id_ in self.table.get(k, {})), None)
        if found is None:
            return {}
        made = {k: v for k, v in self.table.items() if not isinstance(v, dict)} | found
        if "settings" in made:
            settings = self.table.get("settings", {})
            made["settings"] = {name: settings.get(name) for name in made["settings"]}
        return made

    def describe(self) -> dict[str, Any]:
        """The digest of the file, and of every entry of every claim and curve by its key."""
        ids = [id_ for kind in KINDS for id_ in cast(Mapping[str, Any], self.table.get(kind, {}))]
        parts = {
            id_: {key: identity({key: entry})[:SHORT] for key, entry in self.entries(id_).items()}
            for id_ in ids
        }
        return {"sha256": self.digest, "entries": parts}


def read_registration(path: Path) -> Registration | None:
    """Read a registration; None if there is no file.

    Raises:
        UserError: the file is not TOML.
    """
    if not path.exists():
        return None
    made = Registration(path, path.read_bytes())
    _ = made.table
    return made
