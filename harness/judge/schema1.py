"""Results of schema 1, whose verdicts had one answer, judged anew with two.

Intervals are computed again from the values of each seed. A condition, a choice that the paper
leaves open and a power are taken from the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.judge.claims import Here, Rule
from harness.judge.interval import Interval, Sample
from harness.judge.parts import LOOKS, correct_verdicts, judge_quantities
from harness.judge.results import SCHEMA, Claim, Condition, Part
from harness.judge.statistics import interval_of

__all__ = ["judge_again"]

Table = Mapping[str, Any]

ANSWERS: dict[str, Here] = {
    "reproduced": "holds",
    "contradicted": "fails",
    "undecided": "unclear",
    "not testable": "unclear",
}
"""The answer of a claim without bands, by its verdict."""

FOUND_AGAIN = (
    "Its conditions do not hold",
    "The paper's conditions do not hold",
    "Runs that did not end",
    "If the stated figure",
    "If the paper's figure",
)
"""Beginnings of the reasons of ``not testable`` that are computed here; others are kept."""


def judge_again(path: Path, data: Table) -> dict[str, Any]:
    """The content of a results file of schema 1 as of the present schema.

    Args:
        path: the file, for messages.
        data: its content.

    Raises:
        UserError: a claim lacks an entry, or has one of a wrong type.
    """
    try:
        claims = [_claim(each) for each in data["claims"]]
        judged = correct_verdicts(claims, data["provenance"].get(LOOKS, 1))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: not of schema 1: {error!r}") from error
    plain = json.loads(json.dumps([asdict(claim) for claim in judged]))
    return {**data, "schema": SCHEMA, "claims": plain}


def _claim(old: Table) -> Claim:
    old_parts = old.get("parts", [])
    parts = [_part(each) for each in old_parts]
    judged = [(_interval(each), _rule(each["band"]), "") for each in old_parts if each.get("band")]
    if judged:
        here, p = judge_quantities(judged)
    else:  # of runs that did not end, or of a judge that kept no bands
        here, p = ANSWERS[old["verdict"]], old.get("p_value")
    conditions = tuple(
        Condition(each["what"], each["measured"], each["ci95"], each["band"], each["holds"])
        for each in old.get("preconditions", [])
    )
    because = str(old.get("because", ""))
    kept = "" if because.startswith(FOUND_AGAIN) else because
    named = {name: old[name] for name in ("id", "statement", "where", "statistic", "paper")}
    made = Claim(
        **named,
        measured=old["measured"],
        ci95=old["ci95"],
        here=here,
        undetermined=kept,
        conditions=conditions,
        cannot_fail=old.get("cannot_fail", ""),
        runs=tuple(old.get("runs", ())),
        note=old.get("note", ""),
        parts=tuple(parts),
        power=old.get("power"),
        p_value=p,
    )
    same = (made.verdict, "undecided" if made.verdict == "unclear" else "")
    return replace(made, before="" if old["verdict"] in same else old["verdict"])


def _part(old: Table) -> Part:
    rule = None if old.get("band") is None else _rule(old["band"])
    made = Part(old["label"], old["paper"], old["measured"], old["ci95"], sample=_sample(old))
    if rule is None:
        return made
    return replace(
        made,
        here=rule.judge(_interval(old)),
        band=tuple(old["band"]),
        power=old["power"],
        finds=old["finds"],
    )


def _rule(band: Sequence[float | None]) -> Rule:
    low, high = band
    return Rule(-math.inf if low is None else low, math.inf if high is None else high)


def _interval(old: Table) -> Interval:
    """The interval of an entry, from its seeds' values where the file has them."""
    sample = _sample(old)
    if sample is not None:
        return interval_of(sample)
    low, high = old["ci95"] or (None, None)
    return Interval(
        math.nan if old["measured"] is None else old["measured"],
        -math.inf if low is None else low,
        math.inf if high is None else high,
    )


def _sample(old: Table) -> Sample | None:
    told = old.get("sample")
    if told is None:
        return None
    values, tests = (tuple(tuple(row) for row in told[name]) for name in ("values", "tests"))
    return Sample(told["statistic"], values, tests, told["utterances"], tuple(told["at"]))
