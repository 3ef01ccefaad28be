"""Why a claim was not reproduced: what its intervals say, and what somebody found out.

Beside a published ``results.json`` lies ``reasons.toml``: for every claim that is contradicted or
undecided, the verdict it explains and why. One that is reproduced may have an entry too: with what
reservation. A reason for another verdict than the measured one is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.judge import Claim, Part, Results
from reports import judged, numbers
from reports.reference_terms import PAPER, Words

NAME = "reasons.toml"
EMPHASIS = re.compile(r"(?<!\w)\*(\S(?:[^*]*\S)?)\*")
"""A pair of stars and what is between; a star behind a letter, as T*'s, is part of a name."""
NEEDS_REASON = ("contradicted", "undecided")
"""Verdicts that somebody must explain; why a claim is not testable follows from its runs."""


def given(folder: Path, results: Results) -> dict[str, str]:
    """Claim id -> why, as ``reasons.toml`` in ``folder`` has it; nothing where there is no file.

    Raises:
        UserError: the reasons do not fit the verdicts.
    """
    path = folder / NAME
    if not path.exists():
        return {}
    reasons = tomllib.loads(path.read_text(encoding="utf-8"))
    verdicts = {claim.id: claim.verdict for claim in results.claims}
    needed = {id_ for id_, verdict in verdicts.items() if verdict in NEEDS_REASON}
    if missing := needed - reasons.keys():
        every = f"a reason for each claim {' or '.join(NEEDS_REASON)}"
        raise UserError(f"{path}: {', '.join(sorted(missing))}: not there; allowed: {every}")
    if odd := reasons.keys() - verdicts.keys():
        raise UserError(f"{path}: {min(odd)}: no claim; allowed: {', '.join(verdicts)}")
    for id_, reason in reasons.items():
        if reason["verdict"] != verdicts[id_]:
            raise UserError(
                f"{path}: {id_}: explains {reason['verdict']!r}; measured: {verdicts[id_]!r}"
            )
    return {id_: " ".join(reason["why"].split()) for id_, reason in reasons.items()}


def why(claim: Claim, said: Words = PAPER) -> str:
    """What the intervals say of a claim that was not reproduced, or why it is not testable.

    Args:
        claim: as it was judged.
        said: what it is held against.
    """
    if claim.verdict not in NEEDS_REASON:
        return claim.because
    parts = claim.parts or (Part("", claim.paper, claim.measured, claim.ci95, claim.verdict),)
    of = len(parts)
    against = [part for part in parts if part.verdict == "contradicted"]
    if claim.verdict == "contradicted":
        return _told(against, f"No value of its interval agrees with {said.the}", of, said)
    crossing = [part for part in parts if part.verdict == "undecided"]
    told = [
        _told(crossing, "Its interval crosses an end", of, said),
        _told(against, "By itself contradicted, after the correction for the parts not", of, said),
        _unmeasured(parts),
    ]
    return " ".join(filter(None, told)) or "It was not measured."


def heading(verdict: str) -> str:
    """What a reason is: of a verdict as claimed a reservation.

    Example:
        >>> heading("undecided"), heading("reproduced")
        ('Why undecided', 'With a reservation')
    """
    return "With a reservation" if verdict == "reproduced" else f"Why {verdict}"


def plain(text: str) -> str:
    """Without the emphasis that Markdown has: a report's letters say the same.

    Example:
        >>> plain("*Hand* is level with `search`, and T* is 0.3")
        'Hand is level with search, and T* is 0.3'
    """
    return EMPHASIS.sub(r"\1", text).replace("`", "")


def _told(parts: Sequence[Part], what: str, of: int, said: Words) -> str:
    known = [_interval(part, said, named=of > 1) for part in parts if part.measured is not None]
    return f"{what}: {'; '.join(known)}." if known else ""


def _unmeasured(parts: Sequence[Part]) -> str:
    missing = [part.label for part in parts if part.verdict and part.measured is None]
    return f"No estimate: {'; '.join(missing)}." if any(missing) else ""


def _interval(part: Part, said: Words, *, named: bool) -> str:
    band = f" ({said.the} holds {judged.band(part.band)})" if part.band else ""
    label = f"{part.label}, " if named and part.label else ""
    return f"{label}{numbers.interval(part.measured, part.ci95)}{band}"
