"""Figures of a page as Vega-Lite specifications: plain JSON, made from what the exhibits declare.

The data are not in them: the page takes each exhibit's rows from the results it carries, under the
exhibit's id; ``ID:differences`` are those of `harness.judge.paired`, and ``ID:seeds`` single seeds.
The forest plot has every judged quantity beside the paper's band.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.judge import Claim, Exhibit, Part
from harness.judge.claims import VERDICTS
from harness.judge.paired import seeds_of
from reports import figures, numbers, verdict_notes
from reports.reference_terms import PAPER, Words
from reports.style import COLOURS, DASHES

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

DECADES = 4  # of a logarithmic axis, from which on only powers of ten have lines

SERIES_COLOURS = [*COLOURS[:-1], "#8c6d31"]  # black is not seen on a dark page

SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke"]

MARK = {"type": "point", "shape": "diamond", "filled": False, "size": 70, "strokeWidth": 1.6}


def groups(exhibits: Sequence[Exhibit]) -> list[list[Exhibit]]:
    """Exhibits that are drawn together: curves over the same x axis, everything else alone."""
    found: dict[str, list[Exhibit]] = {}
    for exhibit in exhibits:
        if exhibit.draw.get("as", "curves") in CHARTS and exhibit.draw and exhibit.rows:
            curves = exhibit.draw.get("as", "curves") == "curves"
            axis = exhibit.axes.get("x", "") if curves else exhibit.id
            found.setdefault(axis, []).append(exhibit)
    return list(found.values())


def chart(group: Sequence[Exhibit]) -> Spec:
    """A group's charts below each other; curves are brushed together from a strip on top."""
    panels = [panel for exhibit in group for panel in _panels(exhibit)]
    long = any(
        len(rows) > figures.FEW for e in group for rows in figures.group_by_label(e.rows).values()
    )
    brushed = len(panels) > 1 and group[0].draw.get("as", "curves") == "curves"
    if brushed or (long and group[0].draw.get("as", "curves") == "curves"):
        panels = [_strip(group[0]), *(_with_brush(panel) for panel in panels)]
    return {
        "$schema": SCHEMA,
        "description": "; ".join(f"{e.paper_label or e.id}: {e.title}" for e in group),
        "vconcat": panels,
        "resolve": {"scale": dict.fromkeys(("color", "shape", "strokeDash"), "independent")},
    }


def _panels(exhibit: Exhibit) -> list[Spec]:
    made = CHARTS[exhibit.draw.get("as", "curves")](exhibit)
    if not figures.has_differences(exhibit):
        return [made]
    name, y = f"{exhibit.id}:differences", figures.title_of_differences(exhibit)
    zero = {"mark": {"type": "rule", "opacity": 0.5}, "encoding": {"y": {"datum": 0}}}
    below = _curves(exhibit, name, y, y_log=False)
    del below["title"]
    return [made, below | {"height": 120, "layer": [*below["layer"], zero]}]


def _curves(exhibit: Exhibit, name: str = "", y: str = "", *, y_log: bool = True) -> Spec:
    name = name or exhibit.id
    look = _look(exhibit)
    few = max(map(len, figures.group_by_label(exhibit.rows).values())) <= figures.FEW
    ends = {"y": _axis(exhibit, "y", "low", y, log=y_log), "y2": {"field": "high"}}
    y_axis = _axis(exhibit, "y", "measured", y, log=y_log)
    tips = [_tip("label"), _tip("x", "quantitative"), _tip("told")]
    layer: list[Spec] = [
        {"mark": {"type": "line"},
         "encoding": {"y": y_axis, "color": look["color"], "strokeDash": look["strokeDash"]}},
        {"mark": {"type": "point", "filled": True, "size": 36 if few else 8, "opacity": 1},
         "encoding": {"y": y_axis, "color": look["color"], "tooltip": tips}
         | ({"shape": look["shape"]} if few else {})},
    ]  # fmt: skip
    if any(numbers.half_width(row.ci95) for row in exhibit.rows):
        band = {"type": "area", "opacity": 0.16}
        layer.insert(0, {
            "mark": band if figures.has_bands(exhibit) else {"type": "rule"},
            "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
            "encoding": ends | {"color": look["color"]},
        })  # fmt: skip
    if name == exhibit.id and any(row.paper is not None for row in exhibit.rows):
        layer.append(_paper_layer(look["color"]))
    if name == exhibit.id and any(seeds_of(row) for row in exhibit.rows):
        layer.append(_single(name, look, few=few))
    return {
        "title": _title(exhibit),
        "data": {"name": name},
        "height": 240,
        "encoding": {"x": _axis(exhibit, "x", "x", exhibit.axes.get("x", ""))},
        "layer": layer,
    }


def _single(name: str, look: Spec, *, few: bool) -> Spec:
    """Each seed by itself: dots of few points, thin lines of many."""
    mark = {"type": "circle", "size": 12} if few else {"type": "line", "strokeWidth": 0.5}
    return {
        "data": {"name": f"{name}:seeds"},
        "mark": mark | {"opacity": 0.6},
        "encoding": {"y": {"field": "y", "type": "quantitative"}, "color": look["color"],
                     "detail": {"field": "seed"}},
    }  # fmt: skip


def _bars(exhibit: Exhibit) -> Spec:
    look = _look(exhibit)
    columns = list(dict.fromkeys(numbers.format_number(row.column) for row in exhibit.rows))
    y = _axis(exhibit, "y", "measured", exhibit.axes.get("y", ""))
    tips = [_tip("label"), _tip("column"), _tip("told")]
    layer: list[Spec] = [
        {"mark": "bar", "encoding": {"y": y, "color": look["color"], "tooltip": tips}}
    ]
    if any(numbers.half_width(row.ci95) for row in exhibit.rows):
        layer.append({
            "mark": "rule", "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
        })  # fmt: skip
    if any(row.paper is not None for row in exhibit.rows):
        layer.append(_paper_layer(None))
    return {
        "title": _title(exhibit),
        "data": {"name": exhibit.id},
        "height": 240,
        "encoding": {
            "x": {"field": "column", "type": "nominal", "sort": columns,
                  "title": exhibit.axes.get("x"), "axis": {"labelAngle": 0}},
            "xOffset": {"field": "label", "sort": look["color"]["scale"]["domain"]},
        },
        "layer": layer,
    }  # fmt: skip


def _paper_layer(colour: Spec | None) -> Spec:
    """The figures that the paper prints."""
    at = {"y": {"field": "paper", "type": "quantitative"}}
    return {
        "mark": MARK,
        "transform": [{"filter": "isValid(datum.paper)"}],
        "encoding": at | ({"color": colour} if colour else {}),
    }


CHARTS: dict[str, Any] = {"curves": _curves, "bars": _bars, "histogram": _bars}
"""Ways of drawing that a page draws itself; the others it shows as the report's pictures."""


def _strip(exhibit: Exhibit) -> Spec:
    """The whole of the first curves, to choose the part that all below show."""
    x = _axis(exhibit, "x", "x", "drag here to choose what all of these show")
    return {
        "data": {"name": exhibit.id},
        "height": 36,
        "params": [{"name": "brush", "select": {"type": "interval", "encodings": ["x"]}}],
        "mark": {"type": "line", "strokeWidth": 0.8},
        "encoding": {
            "x": x,
            "y": {"field": "measured", "type": "quantitative", "axis": None,
                  "scale": {"zero": False}},
            "color": _look(exhibit)["color"] | {"legend": None},
        },
    }  # fmt: skip


def _with_brush(panel: Spec) -> Spec:
    x = panel["encoding"]["x"]
    scale = x.get("scale", {}) | {"domain": {"param": "brush", "encoding": "x"}}
    layer = [each | {"mark": _with_clip(each["mark"])} for each in panel["layer"]]
    return panel | {"encoding": {"x": x | {"scale": scale}}, "layer": layer}


def _with_clip(mark: Any) -> Spec:
    return ({"type": mark} if isinstance(mark, str) else mark) | {"clip": True}


def _title(exhibit: Exhibit) -> Spec:
    return {"text": f"{exhibit.paper_label or exhibit.id}. {exhibit.title}", "anchor": "start"}


def _axis(exhibit: Exhibit, name: str, field: str, title: str, *, log: bool = True) -> Spec:
    scale: Spec = {"zero": False, "nice": False, "padding": 6} if name == "x" else {"zero": False}
    if log and exhibit.draw.get(f"{name}_scale") == "log":
        scale = {"type": "log"}
    if exhibit.draw.get("as") in ("bars", "histogram"):
        scale = {}
    ticks = exhibit.draw.get(f"{name}_ticks")
    axis: Spec = {"values": ticks} if ticks and log else {}
    if scale.get("type") == "log" and not ticks:
        axis = {"tickCount": DECADES}
    title = title or exhibit.axes.get(name, "")
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _look(exhibit: Exhibit) -> Spec:
    """Colour, dash and shape of each label: the same in print."""
    labels = list(figures.group_by_label(exhibit.rows))
    legend = {"orient": "top", "title": None, "labelLimit": 400, "symbolOpacity": 1}

    def scale(choices: Sequence[Any]) -> Spec:
        return {"domain": labels, "range": [choices[i % len(choices)] for i in range(len(labels))]}

    dashes = [[1, 0] if dash == "-" else [float(x) * 1.6 for x in dash[1]] for dash in DASHES]
    base = {"field": "label", "type": "nominal", "legend": legend}
    return {
        "color": base | {"scale": scale(SERIES_COLOURS)},
        "strokeDash": base | {"scale": scale(dashes)},
        "shape": base | {"scale": scale(SHAPES)},
    }


def _tip(field: str, kind: str = "nominal") -> Spec:
    return {"field": field, "type": kind}


def timeline(name: str, lanes: Sequence[str], kinds: Sequence[str]) -> Spec:
    """Bars of the spans ``name``, one lane a worker or server, with pan and zoom."""
    return {
        "$schema": SCHEMA,
        "description": "Activity of workers and server during the first folds, one lane each.",
        "data": {"name": name},
        "height": {"step": 26},
        "params": [{"name": "part", "select": {"type": "interval", "encodings": ["x"]},
                    "bind": "scales"}],
        "mark": {"type": "bar", "clip": True, "height": 16},
        "encoding": {
            "x": {"field": "start", "type": "quantitative", "title": "virtual time (s)",
                  "scale": {"nice": False}},
            "x2": {"field": "end"},
            "y": {"field": "lane", "type": "nominal", "sort": list(lanes), "title": None},
            "color": {"field": "kind", "type": "nominal",
                      "legend": {"orient": "top", "title": None},
                      "scale": {"domain": list(kinds), "range": SERIES_COLOURS[: len(kinds)]}},
            "tooltip": [_tip("lane"), _tip("kind"), _tip("start", "quantitative"),
                        _tip("end", "quantitative")],
        },
    }  # fmt: skip


VERDICT_COLOURS = ("#009E73", "#7cc4a8", "#8a8a9e", "#8266b0", "#e5a06c", "#D55E00")
"""Colours of the verdicts, in their order."""

BAND_COLOUR, EDGE = "#9db8cf", 0.08
"""Colour of the paper's band; margin at both ends of a row, as a share of its width."""


def describe_forest(said: Words) -> str:
    """Text alternative of the forest plot."""
    return (
        f"Every judged quantity with its 95% interval, where it must lie for {said.the} to hold, "
        f"and {said.the}'s value. The table below has the figures."
    )


def forest(rows: Sequence[Spec], said: Words = PAPER) -> Spec:
    """Every judged quantity on a line of its own scale: value, interval, band, printed value.

    Args:
        rows: from `forest_rows`, in the order of the lines.
        said: terms for the reference of the quantities.
    """
    names = [row["name"] for row in rows]
    across = {"type": "quantitative", "axis": None, "scale": {"domain": [0, 1]}}

    def x_channel(field: str) -> Spec:
        return {"field": field, **across}

    colour = {
        "field": "verdict", "type": "nominal", "legend": None,
        "scale": {"domain": list(VERDICTS), "range": list(VERDICT_COLOURS)},
    }  # fmt: skip
    tips = ("claim", "quantity", "measured", "interval", "holds", "paper", "verdict")
    called = {"paper": said.noun}
    return {
        "$schema": SCHEMA,
        "description": describe_forest(said),
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
            {"mark": {"type": "bar", "color": BAND_COLOUR, "opacity": 0.4, "height": 13},
             "encoding": {"x": x_channel("band_low"), "x2": {"field": "band_high"}}},
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"x": x_channel("low"), "x2": {"field": "high"}, "color": colour}},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"x": x_channel("value"), "color": colour}},
            {"mark": MARK, "encoding": {"x": x_channel("printed")}},
        ],
    }  # fmt: skip


def forest_rows(claims: Sequence[Claim]) -> list[Spec]:
    """A line for each judged quantity, its figures as shares of its own width."""
    return [
        _line(place, claim, part)
        for place, claim in enumerate(claims)
        for part in (claim.parts or (Part("", claim.paper, claim.measured, claim.ci95),))
        if part.measured is not None and (part.here or not claim.parts)
    ]


def _line(place: int, claim: Claim, part: Part) -> Spec:
    low, high = part.ci95 or (None, None)
    paper = part.paper if isinstance(part.paper, int | float) else None
    band = verdict_notes.ends(part)
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
        "measured": numbers.format_measured(part.measured, part.ci95),
        "interval": numbers.interval(part.measured, part.ci95),
        "holds": verdict_notes.band(band) if banded else "",
        "paper": numbers.format_number(part.paper),
        "verdict": claim.verdict,
        "value": share(part.measured),
        "low": share(low),
        "high": share(high),
        "printed": share(paper),
        "band_low": ends[0] if banded else None,
        "band_high": ends[1] if banded else None,
    }
