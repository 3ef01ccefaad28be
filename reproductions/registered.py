"""What a paper fixes before the first run of a verdict: its ``registered.toml``, and its digest.

The file has corpus, seeds and number of looks by scale, the bands of every claim, the conditions
(`harness.judge.conditions`), how a report lists the claims, and the curves over scale::

    order = ["p1.one-pass-close"]    # claims by importance; those not named follow as declared
    by_construction = ["p1.switch"]  # claims listed apart, in no total and no correction

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

A run keeps the digest in its provenance; a report says whether all of its runs carry today's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, name_error
from harness.judge.results import Claim
from harness.store import Run
from harness.store.schema import UNDER

REGISTRATION = "registration"
"""Key of the digest among the facts that a run was begun under, and of a report's line."""

OF_A_CURVE = ("claim", "statistic", "grows", "paper", "band", "laws", "held_out", "sizes")
OF_A_SIZE = ("at", "seeds", "corpus", "core_minutes")


class Registration:
    """The ``registered.toml`` in a paper's folder.

    Raises:
        UserError: the file cannot be read as TOML.
    """

    def __init__(self, path: Path) -> None:
        try:
            content = path.read_bytes()
            self.table: dict[str, Any] = tomllib.loads(content.decode())
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as TOML ({error})") from None
        self.path = path
        self.digest = sha256(content).hexdigest()

    def curve(self, id_: str) -> dict[str, Any]:
        """The entry of a curve over scale.

        Raises:
            UserError: it is missing, or lacks a key.
        """
        entry = self.table.get("scaling", {}).get(id_, {})
        place = f"{self.path}: scaling.{id_}"
        sizes = enumerate(entry.get("sizes", ()))
        keys = {f"{place}.{key}": key in entry for key in OF_A_CURVE} | {
            f"{place}.sizes[{i}].{key}": key in size for i, size in sizes for key in OF_A_SIZE
        }
        for key, is_there in keys.items():
            if not is_there:
                raise UserError(f"{key}: missing")
        return entry

    def arrange(self, claims: Sequence[Claim], known: Sequence[str]) -> list[Claim]:
        """The claims in the registered order, those by construction marked.

        Args:
            claims: claims of the paper.
            known: ids of all claims of the paper.

        Raises:
            UserError: the file names a claim that is not among them.
        """
        order, certain = self._ids("order", known), self._ids("by_construction", known)
        place = {id_: index for index, id_ in enumerate(order)}
        return [
            replace(claim, cannot_fail=claim.cannot_fail or "it is true by construction")
            if claim.id in certain
            else claim
            for claim in sorted(claims, key=lambda claim: place.get(claim.id, len(order)))
        ]

    def _ids(self, key: str, known: Sequence[str]) -> list[str]:
        for id_ in (ids := self.table.get(key, [])):
            if id_ not in known:
                raise name_error(f"{self.path}: {key}", id_, known)
        return ids

    def compare(self, runs: Iterable[Run]) -> str:
        """A line on whether the runs carry this file's digest."""
        digests = [run.provenance.get(UNDER, {}).get(REGISTRATION) for run in runs]
        count = sum(digest != self.digest for digest in digests)
        suffix = f"; {count} of {len(digests)} runs were begun under another" if count else ""
        return f"{self.path.parent.name}/{self.path.name}, SHA-256 {self.digest}{suffix}"
