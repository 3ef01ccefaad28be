"""Conditions of a paper's regime, declared once in its ``registered.toml``.

A condition has a statistic, a limit, the place in the paper that it is from, and the kinds of claim
that it concerns. It is asked of every claim of those kinds, whichever way the claim came out, so no
answer loses its bearing by a condition that its siblings are not asked. ::

    [kinds]
    "settings of parallel training" = ["p2.frequency", "p2.minibatch"]

    [conditions.averages]
    statistic = "averages in a run with 1024"
    at_least = 300
    source = "8,910 averages: Section 5.2"
    unmet = "a run has only {value:.3g} averages"
    concerns = ["settings of parallel training"]

A claim measures the conditions that its own runs tell (`Conditions.measure`); `Conditions.ask`
hands every measured one to the claims that it concerns and whose own runs do not tell it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, name_error
from harness.base.settings import load_toml
from harness.judge.claims import Rule
from harness.judge.interval import Interval
from harness.judge.parts import Precondition
from harness.judge.results import Claim, Condition

LIMITS = ("at_least", "at_most", "between")
VALUE = re.compile(r"\{value:\.\d[g%]\}")


@dataclass(frozen=True)
class PaperCondition:
    """One condition of a paper's regime.

    Attributes:
        name: its key in ``registered.toml``.
        statistic: the measured statistic in words, with the unit.
        rule: its limit.
        source: where the paper has the limit from.
        claims: ids of the claims that it concerns.
        unmet: plain words on a value that does not hold, in which ``{value:…}`` takes its place.
    """

    name: str
    statistic: str
    rule: Rule
    source: str
    claims: frozenset[str]
    unmet: str


@dataclass(frozen=True)
class Conditions:
    """The conditions of one paper, by name."""

    named: Mapping[str, PaperCondition]

    def measure(self, name: str, value: Interval, of: str = "") -> Precondition:
        """A condition with its measured value.

        Args:
            name: of the condition.
            value: measured value.
            of: what it is measured on, where there are several, e.g. a test set.
        """
        entry = self.named[name]
        text = f"{of}, {entry.statistic}" if of else entry.statistic
        return Precondition(text, value, entry.rule, name, entry.source, entry.unmet)

    def ask(self, claims: Sequence[Claim]) -> list[Claim]:
        """The claims, each with every condition of its kinds.

        A claim that measured one on its own runs keeps to that. A condition that none has measured
        is unknown: then none of its kind bears.
        """
        measured: dict[str, dict[str, Condition]] = {}
        for claim in claims:
            for condition in claim.conditions:
                measured.setdefault(condition.name, {}).setdefault(condition.what, condition)
        return [
            replace(claim, conditions=self._attach_conditions(claim, measured)) for claim in claims
        ]

    def _attach_conditions(
        self, claim: Claim, measured: Mapping[str, Mapping[str, Condition]]
    ) -> tuple[Condition, ...]:
        conditions = {entry.what: entry for entry in claim.conditions}
        names = {entry.name for entry in claim.conditions}
        for name, condition in self.named.items():
            if claim.id in condition.claims and name not in names:
                unknown = self.measure(name, Interval(math.nan)).condition
                conditions |= measured.get(name) or {unknown.what: unknown}
        return tuple(conditions.values())


def read_conditions(path: Path) -> Conditions:
    """Read a paper's conditions.

    Raises:
        UserError: a kind that is not declared, a condition without exactly one limit, without a
            source or its plain words, or that concerns no kind.
    """
    table = load_toml(path)
    kinds: dict[str, list[str]] = table["kinds"]
    conditions = {
        name: _read_condition(f"{path}: conditions.{name}", name, entry, kinds)
        for name, entry in table["conditions"].items()
    }
    return Conditions(conditions)


def _read_condition(
    where: str, name: str, entry: Mapping[str, Any], kinds: Mapping[str, Sequence[str]]
) -> PaperCondition:
    limits = [key for key in LIMITS if key in entry]
    if len(limits) != 1:
        raise UserError(f"{where}: {', '.join(limits) or 'no limit'}; allowed: one of {LIMITS}")
    for key in ("statistic", "source", "concerns", "unmet"):
        if not entry.get(key):
            raise UserError(f"{where}: {key}: missing")
    for kind in entry["concerns"]:
        if kind not in kinds:
            raise name_error(f"{where}: concerns", kind, kinds)
    low, high = entry.get("at_least", -math.inf), entry.get("at_most", math.inf)
    rule = Rule(*entry.get("between", (low, high)))
    claims = frozenset(claim for kind in entry["concerns"] for claim in kinds[kind])
    if len(VALUE.findall(entry["unmet"])) != 1:
        raise UserError(f"{where}: unmet: {entry['unmet']!r}; needed: one '{{value:.3g}}'")
    return PaperCondition(name, entry["statistic"], rule, entry["source"], claims, entry["unmet"])
