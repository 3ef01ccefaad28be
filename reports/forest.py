"""The forest plot of a page: every judged quantity beside where the paper has it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge import Claim, Part
from harness.judge.claims import VERDICTS
from reports import judged, numbers
from reports.reference_terms import PAPER, Words
from reports.specs import MARK, SCHEMA, Spec

COLOURS = ("#009E73", "#D55E00", "#8a8a9e", "#b5b5bd")
"""Of the verdicts, in their order."""
BAND, EDGE = "#9db8cf", 0.08
"""Colour of where the paper holds; the share of a row that is left at both its ends."""


def about(said: Words) -> str:
    """What the plot shows, for somebody who does not see it."""
    return (
        f"Every judged quantity with its 95% interval, where it must lie for {said.the} to hold, "
        f"and {said.the}'s value. The table below has the figures."
    )


def forest(rows: Sequence[Spec], said: Words = PAPER) -> Spec:
    """Every judged quantity on a line of its own scale: value, interval, band, printed value.

    Args:
        rows: what `forest_rows` gives; the lines' order is theirs.
        said: what the quantities are held against.
    """
    names = [row["name"] for row in rows]
    across = {"type": "quantitative", "axis": None, "scale": {"domain": [0, 1]}}

    def at(field: str) -> Spec:
        return {"field": field, **across}

    colour = {
        "field": "verdict", "type": "nominal", "legend": None,
        "scale": {"domain": list(VERDICTS), "range": list(COLOURS)},
    }  # fmt: skip
    tips = ("claim", "quantity", "measured", "interval", "holds", "paper", "verdict")
    called = {"paper": said.noun}
    return {
        "$schema": SCHEMA,
        "description": about(said),
        "data": {"name": "forest"},
        "params": [{"name": "shown", "value": list(VERDICTS)}],
        "transform": [{"filter": "indexof(shown, datum.verdict) >= 0"}],
        "height": {"step": 18},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": names, "title": None},
            "tooltip": [
                {"field": tip, "type": "nominal", "title": called.get(tip, tip)} for tip in tips
            ],
        },
        "layer": [
            {"mark": {"type": "bar", "color": BAND, "opacity": 0.4, "height": 13},
             "encoding": {"x": at("band_low"), "x2": {"field": "band_high"}}},
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"x": at("low"), "x2": {"field": "high"}, "color": colour}},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"x": at("value"), "color": colour}},
            {"mark": MARK, "encoding": {"x": at("printed")}},
        ],
    }  # fmt: skip


def forest_rows(claims: Sequence[Claim]) -> list[Spec]:
    """A line for each judged quantity, its figures as shares of its own width."""
    return [
        _line(place, claim, part)
        for place, claim in enumerate(claims)
        for part in (claim.parts or (Part("", claim.paper, claim.measured, claim.ci95),))
        if part.measured is not None and (part.verdict or not claim.parts)
    ]


def _line(place: int, claim: Claim, part: Part) -> Spec:
    low, high = part.ci95 or (None, None)
    paper = part.paper if isinstance(part.paper, int | float) else None
    band = judged.ends(part)
    banded = band != (None, None)
    known = [x for x in (part.measured, low, high, paper, *band) if x is not None]
    least, most = min(known), max(known)
    width = (most - least) or 1.0

    def share(value: float | None) -> float | None:
        if value is None:
            return None
        return round(EDGE + (1 - 2 * EDGE) * (value - least) / width, 4)

    ends = (0.0 if band[0] is None else share(band[0]), 1.0 if band[1] is None else share(band[1]))
    label = f" · {part.label}" if part.label and len(claim.parts) > 1 else ""
    return {
        "name": f"{claim.id.partition('.')[2] or claim.id}{label}",
        "place": place,
        "claim": claim.statement,
        "quantity": part.label or claim.statistic,
        "measured": numbers.measured(part.measured, part.ci95),
        "interval": numbers.interval(part.measured, part.ci95),
        "holds": judged.band(band) if banded else "",
        "paper": numbers.printed(part.paper),
        "verdict": claim.verdict,
        "value": share(part.measured),
        "low": share(low),
        "high": share(high),
        "printed": share(paper),
        "band_low": ends[0] if banded else None,
        "band_high": ends[1] if banded else None,
    }
