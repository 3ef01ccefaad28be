"""How a report's claims were judged, in four lines: verdicts, runs, bearing and chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.judge import Claim, Results
from harness.judge.claims import VERDICTS
from harness.judge.parts import LOOKS
from harness.judge.results import ENOUGH
from reports import reference_terms, verdict_notes
from reports.provenance import cited_runs

EARLIER = (
    "These results are of an earlier judge, which asked neither for the chance of finding what the "
    "paper reports nor whether its conditions hold."
)


def lines(results: Results) -> list[str]:
    """Verdicts; runs, seeds and corpus; why answers do not bear; chance.

    Results without claims have the runs, seeds and corpus alone.
    """
    told = [
        _counts(results),
        _basis(results),
        _describe_bearing(results),
        _describe_correction(results.claims, results.provenance.get(LOOKS, 1)),
    ]
    return [line for line in told if line]


def answer(results: Results) -> str:
    """The first of the lines: the number of claims with each verdict."""
    return _counts(results) or _basis(results)


def has_power(results: Results) -> bool:
    """Whether these results have bands, power and conditions; those of earlier judges do not."""
    return not results.claims or any(
        part.band is not None for claim in results.claims for part in claim.parts
    )


def _counts(results: Results) -> str:
    if not results.claims:
        return ""
    found = Counter(claim.verdict for claim in results.claims)
    each = _join_items([f"{found[verdict]} {verdict}" for verdict in VERDICTS])
    alone = ", each judged by itself" if any(map(_is_changed_by_correction, results.claims)) else ""
    return f"Of {len(results.claims)} claims at {results.scale} scale{alone}: {each}."


def _basis(results: Results) -> str:
    runs = len({run for claim in results.claims for run in claim.runs} or cited_runs(results))
    seeds = len(results.seeds)
    speech = [
        f", training speech {each['here']}"
        for each in results.provenance.get("differences", [])
        if each.get("what") == "training speech"
    ]
    return (
        f"They rest on {runs} run{'s' * (runs != 1)} with {seeds} seed{'s' * (seeds != 1)}; "
        f"corpus {verdict_notes.corpus_of(results)}{''.join(speech)}."
    )


def _is_changed_by_correction(claim: Claim) -> bool:
    return claim.corrected not in (None, claim.here)


def _describe_bearing(results: Results) -> str:
    if not has_power(results):
        return EARLIER
    apart = [claim for claim in results.claims if not claim.bears]
    unmet = sum(any(not each.holds for each in claim.conditions) for claim in apart)
    weak = sum(
        all(each.holds for each in claim.conditions)
        and claim.here == "unclear"
        and claim.power is not None
        and claim.power < ENOUGH
        for claim in apart
    )
    left_open = len(apart) - unmet - weak
    known = [claim.power for claim in results.claims if claim.power is not None]
    told, said = list[str](), reference_terms.words_of(results)
    if apart:
        told.append(f"{len(apart)} of the answers do not bear on {said.whole}: {unmet} for "
                    f"conditions that do not hold here, {left_open} for what it leaves open, "
                    f"{weak} for too few seeds.")  # fmt: skip
    if known:
        told.append(
            f"Of {len(known)} claims with a printed figure, {_count_powerful(known)} would be seen "
            f"to hold at least four times in five if {said.the} is right."
        )
    return " ".join(told)


def _count_powerful(chances: Sequence[float]) -> int:
    return sum(chance >= 0.8 for chance in chances)


def _describe_correction(claims: Sequence[Claim], looks: int) -> str:
    if all(claim.corrected is None for claim in claims):
        return ""
    decided = [claim for claim in claims if claim.decided and not claim.cannot_fail]
    if not decided:
        return ""
    kept = sum(claim.corrected == claim.here for claim in decided)
    often = f" and for the {looks} looks at them while seeds were added" if looks > 1 else ""
    return (
        f"Of the {len(decided)} answers that hold or fail, and could have been others, {kept} stay "
        f"after a correction for the number of claims (Holm's){often}."
    )


def _join_items(items: Sequence[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}"
