"""A claim made of judged quantities: what every paper's claims end in."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge.claims import Side, Verdict, all_of, judge_direction
from harness.judge.results import Claim, Part
from harness.judge.statistics import Interval

__all__ = ["Quantity", "claim_of", "side_of_zero"]

Quantity = tuple[str, float | str | None, Interval, Verdict | None]
"""A label, the paper's figure, ours, and its verdict; None for what is shown and not judged."""


def side_of_zero(label: str, difference: Interval, side: Side) -> Quantity:
    """A difference that the paper has below or above zero, judged by where it lies."""
    return label, f"{side} 0", difference, judge_direction(difference, side)


def claim_of(
    id_: str,
    statement: str,
    where: str,
    statistic: str,
    quantities: Sequence[Quantity],
    runs: tuple[str, ...],
    note: str = "",
) -> Claim:
    """A claim of one quantity, or of several whose judged ones must all hold.

    The first quantity is the headline; more than one are told one by one.

    Args:
        id_: as in the list of claims.
        statement: what the paper says.
        where: section, table or page.
        statistic: what is measured.
        quantities: at least one.
        runs: hashes of the runs behind them.
        note: a sentence for the reader.
    """
    _, paper, headline, _ = quantities[0]
    parts = tuple(Part(label, p, i.estimate, i.ci95, v) for label, p, i, v in quantities)
    return Claim(
        id_, statement, where, statistic, paper, headline.estimate, headline.ci95,
        all_of(verdict for *_, verdict in quantities if verdict is not None),
        runs, note, parts if len(parts) > 1 else (),
    )  # fmt: skip
