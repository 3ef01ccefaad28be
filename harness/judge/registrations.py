"""Registrations: files that say, before the first run, how its verdicts are made.

``reproductions/PAPER/registered/SCALE.toml`` is committed before the first run of a verdict. It has
corpus, seeds, number of looks, settings, and of every claim its statistic, bands and conditions.
The file is complete and as the code has it, or no run starts (`require_registered`).

Every run that is begun keeps, in its provenance, the commit of the code, the digest of the file,
and a short digest of every entry (`Registration.describe`), so that the judge sees which entries
were changed after it (`describe_change`). Curves over scale have a file of their own,
``registered/scaling.toml``::

    [scaling."p1.scaling"]
    claim = "p1.one-pass-close"      # claim whose statistic is followed
    statistic = "error of one pass over multi-pass"
    grows = "training speech"        # axis
    sizes = [                        # each with the seeds, the corpus and the cost of its runs
        { at = 1.04, seeds = [6001, 6002], corpus = "mandarin-like@2000", core_minutes = 2 },
        { at = 3.1, seeds = [6001, 6002], corpus = "mandarin-like@6000", core_minutes = 4 },
    ]
    held_out = 3.1                   # size that the laws are checked on
    paper = 500                      # size of the paper
    laws = ["power", "power above a floor"]
    band = { at_most = 1.08 }        # of the claim, at the paper's size
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.judge.results import Claim

__all__ = [
    "YOUNGER",
    "Registration",
    "describe_change",
    "mark_changes",
    "read_registration",
    "require_curve",
    "require_registered",
]

SHORT = 8
"""Hexadecimal digits of an entry's digest."""

KINDS = ("claims", "scaling")
"""Tables with an entry for each claim or curve, by its id."""

OF_A_CURVE = ("claim", "statistic", "grows", "paper", "band", "laws", "held_out", "sizes")
OF_A_SIZE = ("at", "seeds", "corpus", "core_minutes")

NAMED = ("settings", "conditions")
"""Tables of the file; a claim lists names of their entries."""

YOUNGER = "it was registered after its first run"


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

        The names of settings and conditions are replaced by these themselves; keys that hold for
        all claims (corpus, seeds, looks) are added.
        """
        found = next((_inner(self._inner(k), id_) for k in KINDS if id_ in self._inner(k)), None)
        if not found:
            return {}
        made = {k: v for k, v in self.table.items() if not isinstance(v, dict)} | dict(found)
        made.pop("statement", None)  # words for a reader
        for key in NAMED:
            if key in made:
                tables = self._inner(key)
                made[key] = {name: tables.get(name) for name in made[key]}
        return made

    @cached_property
    def digests(self) -> dict[str, dict[str, str]]:
        """The digest of every entry, by claim or curve and key."""
        ids = [id_ for kind in KINDS for id_ in self._inner(kind)]
        return {
            id_: {key: _digest({key: entry}) for key, entry in self.entries(id_).items()}
            for id_ in ids
        }

    def describe(self) -> dict[str, Any]:
        """The digests of the file and of its entries, as runs keep them."""
        return {"sha256": self.digest, "entries": self.digests}

    def _inner(self, key: str) -> Mapping[str, Any]:
        return _inner(self.table, key)


def _inner(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table at a key; empty if there is none."""
    found = table.get(key)
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


def _digest(entry: Mapping[str, Any]) -> str:
    return identity(_name_infinities(entry))[:SHORT]


def _name_infinities(value: Any) -> Any:
    """A value with infinite ends of bands as words, since an identity has finite numbers only."""
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return {key: _name_infinities(each) for key, each in table.items()}
    if isinstance(value, list):
        return [_name_infinities(each) for each in cast(list[Any], value)]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


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


def require_registered(registered: Registration, declared: Mapping[str, Any], mend: str) -> None:
    """Refuse a registration that is incomplete, or other than the code declares.

    Args:
        registered: as it was read.
        declared: the content according to the code.
        mend: ends the message: a command that writes the file.

    Raises:
        UserError: the first entry that is missing, differs, or is not in the code.
    """
    if told := _find_difference(registered.table, declared):
        raise UserError(f"{registered.path}: {told}; {mend}")


def require_curve(registered: Registration, id_: str) -> None:
    """Refuse a registration that lacks a curve over scale, or an entry of it.

    Args:
        registered: as it was read.
        id_: of the curve.

    Raises:
        UserError: the first entry that is missing, or another size held out than the largest.
    """
    entry, where = registered.entries(id_), f"{registered.path}: scaling.{id_}"
    if not entry:
        raise UserError(f"{where}: missing")
    for key in OF_A_CURVE:
        if not entry.get(key):
            raise UserError(f"{where}.{key}: missing")
    for place, size in enumerate(entry["sizes"]):
        for key in OF_A_SIZE:
            if not isinstance(size, Mapping) or not cast(Mapping[str, Any], size).get(key):
                raise UserError(f"{where}.sizes[{place}].{key}: missing")
    largest = max(size["at"] for size in entry["sizes"])
    if entry["held_out"] != largest:
        told = f"allowed: {largest}, the largest size"
        raise UserError(f"{where}.held_out: {entry['held_out']!r}; {told}")


def _find_difference(found: Mapping[str, Any], declared: Mapping[str, Any], at: str = "") -> str:
    """The first entry that differs, in words; empty if there is none."""
    for key, wanted in declared.items():
        where = f"{at}.{key}" if at else key
        if key not in found:
            return f"{where}: missing"
        if isinstance(wanted, Mapping) and isinstance(found[key], Mapping):
            if told := _find_difference(found[key], cast(Mapping[str, Any], wanted), where):
                return told
        elif found[key] != wanted:
            return f"{where}: {found[key]!r}; allowed: {wanted!r}, as in the code"
    odd = next((key for key in found if key not in declared), None)
    return "" if odd is None else f"{f'{at}.' if at else ''}{odd}: not in the code"


def mark_changes(
    claims: Sequence[Claim],
    registered: Registration,
    under: Mapping[str, Mapping[str, Any]],
    looked_at: Collection[str] = (),
) -> tuple[Claim, ...]:
    """The claims, each with what was changed after the first of its runs.

    Args:
        claims: judged.
        registered: the present registration.
        under: the facts that each run was begun under, by its hash.
        looked_at: hashes of runs whose results were known before the registration, so that it does
            not matter when they were made again.
    """

    def list_facts(claim: Claim) -> list[Mapping[str, Any]]:
        return [{} if run in looked_at else under.get(run, {}) for run in claim.runs]

    return tuple(
        replace(claim, changed_after_runs=describe_change(registered, claim.id, list_facts(claim)))
        for claim in claims
    )


def describe_change(registered: Registration, id_: str, under: Sequence[Mapping[str, Any]]) -> str:
    """What of a claim or curve was changed after the first of its runs; empty if nothing was.

    Args:
        registered: the present registration.
        id_: of the claim or curve.
        under: the facts that each of its runs was begun under.
    """
    present = registered.digests.get(id_)
    begun = [facts.get("registration", {}).get("entries", {}).get(id_) for facts in under]
    if present is None or None in begun:
        return YOUNGER
    changed = [
        key
        for key in dict.fromkeys([*present, *(key for each in begun for key in each)])
        if any(each.get(key) != present.get(key) for each in begun)
    ]
    *others, last = changed or [""]
    return f"its {', '.join(others)}{' and ' if others else ''}{last}" if last else ""
