# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""A claim's ratio over scale: its figure, its laws, and a sentence for the first page.

The figure has a panel for each ratio: the runs with their intervals and seeds, both laws with their
bands from the smallest size to the paper's, the paper's own ratio at its own size, and the band of
the claim.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from harness.judge.curve import Curve, Law, Trend
from harness.judge.results import Exhibit, Results, Row
from reports import numbers, style
from reports.claims import format_band
from reports.style import COLOURS, DASHES, INK, MUTED

HEIGHT_IN = 2.7
FORMULA = "At size n a law is 1 + c / n^a, or 1 + floor + c / n^a with a floor of at least 0."
BAND = "#E69F00"


def sentences(results: Results) -> list[str]:
    """One for each claim that is followed over scale: its value at the paper's size, or progress.

    Args:
        results: with the curves among the exhibits.
    """
    statements = {claim.id: claim.statement.rstrip(".") for claim in results.claims}
    return [
        summarise(exhibit, statements.get(curve.claim, curve.claim))
        for exhibit in results.exhibits
        if (curve := exhibit.curve) is not None
    ]


def summarise(exhibit: Exhibit, statement: str) -> str:
    """Sentence on a claim's ratio at the paper's size; on the runs so far if some are missing."""
    curve = exhibit.curve
    assert curve is not None
    ending = f". {exhibit.note}" if curve.missing else _tell_value(exhibit, curve)
    return f"“{statement}”, followed over {curve.grows} on seeds of its own{ending}"


def _tell_value(exhibit: Exhibit, curve: Curve) -> str:
    values = [values for trend in curve.trends if (values := _tell_trend(curve, trend))]
    paper = numbers.with_unit(curve.paper_size, curve.unit)
    sizes = [float(row.column) for row in exhibit.rows if row.sample is not None]
    if not values:
        return f": no law can be drawn to the paper's {paper}."
    run = f"{min(sizes):,g} to {numbers.with_unit(max(sizes), curve.unit)}"
    way = (
        f"extrapolated from {run} to the paper's {paper}"
        if curve.paper_size > max(sizes)
        else f"run from {run} and read off at the paper's {paper}"
    )
    return f", {way}: {'; '.join(values)}."


def _tell_trend(curve: Curve, trend: Trend) -> str:
    law = trend.law
    if law is None or law.value is None:
        return ""
    ratio = numbers.format_measured(law.value, law.ci95)
    paper = f"; paper {numbers.format_number(trend.paper)}" if trend.paper is not None else ""
    answer = _answer(curve, trend, law)
    return f"{trend.label} {ratio} ({numbers.interval(law.value, law.ci95)}{paper}), {answer}"


def _answer(curve: Curve, trend: Trend, law: Law) -> str:
    band, check = format_band(curve.band), law.held_out
    if trend.word != "unclear":
        return f"{trend.word.removesuffix(' the band')} the band ({band})"
    if check is None:
        return "unclear, as no size is left to check the curve"
    if not check.holds:
        size = numbers.with_unit(check.at, curve.unit)
        return f"unclear, as the curve through the smaller sizes misses {size}"
    return f"unclear, as the range reaches over an end of the band ({band})"


def describe_laws(curve: Curve) -> str:
    """Sentences on both laws of each ratio, and on the one that gives the value."""
    ratios = [
        f"{trend.label}: {'; '.join(_tell_law(curve, law) for law in trend.laws)}; "
        f"{f'used is “{trend.chosen}”' if trend.chosen else 'neither is used'}."
        for trend in curve.trends
        if trend.laws
    ]
    return " ".join([*ratios, FORMULA] if ratios else ["Too few sizes with three seeds for a law."])


def _tell_law(curve: Curve, law: Law) -> str:
    value = (
        f"{numbers.format_measured(law.value, law.ci95)} ({numbers.interval(law.value, law.ci95)})"
    )
    paper, bound = numbers.with_unit(curve.paper_size, curve.unit), ", at its bound" * law.at_bound
    text = f"{law.name}, {value} at {paper}, exponent {law.exponent:.2g}{bound}"
    check = law.held_out
    if check is None or check.predicted is None or check.measured is None:
        return text
    verb = "predicts" if check.holds else "misses"
    there = f"the {check.measured:.3g} run at {numbers.with_unit(check.at, curve.unit)}"
    return f"{text}, {verb} {there} from smaller sizes ({check.predicted:.3g})"


def draw_curve(exhibit: Exhibit, printed: str) -> Iterator[tuple[str, bytes]]:
    """The figure's files by extension.

    Args:
        exhibit: with a curve.
        printed: label of the paper's own ratio.
    """
    curve = exhibit.curve
    assert curve is not None
    with style.use_style():
        figure = style.empty_figure(HEIGHT_IN, style.COLUMN_IN)
        panels = figure.subplots(1, len(curve.trends), sharey=True, squeeze=False)[0]
        limits = _limits(exhibit, curve)
        for axes, trend in zip(panels, curve.trends, strict=True):
            _draw_trend(axes, exhibit, curve, trend, printed)
            axes.set_ylim(limits)
            _mark_beyond(axes, [row for row in exhibit.rows if row.label == trend.label])
            ends = (limits[i] if end is None else end for i, end in enumerate(curve.band))
            axes.axhspan(*ends, color=BAND, alpha=0.13, lw=0, label="the claim holds here")
        figure.supxlabel(exhibit.axes.get("x", ""), size="medium", color=INK)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
        for form in ("svg", "png"):
            yield form, style.render_figure(figure, form)


def _draw_trend(axes: Any, exhibit: Exhibit, curve: Curve, trend: Trend, printed: str) -> None:
    title = f"{curve.ratio}, {trend.label}"
    style.set_y_title(axes, textwrap.fill(title, style.ACROSS // len(curve.trends)))
    style.set_log_scale(axes.xaxis)
    rows = [row for row in exhibit.rows if row.label == trend.label and row.measured is not None]
    for index, law in enumerate(trend.laws, start=1):
        _draw_law(axes, law, index)
    x = np.array([float(row.column) for row in rows])
    y = np.array([row.measured for row in rows], float)
    ends = np.array([row.ci95 or (None, None) for row in rows], float).reshape(-1, 2)
    reach = np.nan_to_num(np.abs(ends.T - y))
    axes.errorbar(
        x, y, reach, fmt="o", color=COLOURS[0], capsize=2.5, elinewidth=1.0, zorder=4,
        label="runs, 95% interval",
    )  # fmt: skip
    for at, row in zip(x, rows, strict=True):
        values = [a / b for a, b in row.sample.values] if row.sample else []
        axes.plot([at] * len(values), values, ".", ms=2.6, color=COLOURS[0], alpha=0.5)
    if trend.paper is not None:
        axes.plot(curve.paper_size, trend.paper, "D", label=printed, **style.PRINTED)
    axes.axvline(curve.paper_size, color=MUTED, lw=0.6, ls=(0, (2, 2)))


def _mark_beyond(axes: Axes, rows: Sequence[Row]) -> None:
    """Heads of arrows at the frame, where an interval reaches beyond it."""
    for sign, end, mark in zip((-1, 1), axes.get_ylim(), "v^", strict=True):
        reach = {row.column: row.ci95[sign > 0] for row in rows if row.ci95}
        beyond = [float(x) for x, to in reach.items() if to is not None and sign * (to - end) > 0]
        look: dict[str, Any] = {"color": COLOURS[0], "clip_on": False, "in_layout": False}
        axes.plot(beyond, [end] * len(beyond), mark, **look)


def _draw_law(axes: Any, law: Law, index: int) -> None:
    line = np.array(law.line, float)  # None is NaN
    if not line.size:
        return
    x, ratio, low, high = line.T
    axes.fill_between(x, low, high, color=COLOURS[index], alpha=0.15, lw=0)
    axes.plot(x, ratio, color=COLOURS[index], ls=DASHES[index - 1], label=f"law: {law.name}")


def _limits(exhibit: Exhibit, curve: Curve) -> tuple[float, float]:
    """Ends of the y axis: what was measured, the paper's ratios, 1, and laws at the paper's size.

    An interval or a law's band may be far wider than everything that was measured, and is then cut
    off.
    """
    values = [1.0, *(ratio for row in exhibit.rows for ratio in (row.measured, row.paper))]
    values += [law.value for trend in curve.trends for law in trend.laws]
    figures = [value for value in values if value is not None]
    low, high = min(figures), max(figures)
    ends = [end for row in exhibit.rows for end in row.ci95 or () if end is not None]
    reach = high - low  # few seeds have intervals beside which the ratios would be one line
    low = max(min((low, *ends)), low - reach)
    high = min(max((high, *ends)), high + reach)
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room
