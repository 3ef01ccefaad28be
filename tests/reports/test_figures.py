import re
from dataclasses import replace
from itertools import count

import pytest
from matplotlib import colors

from harness.base.errors import UserError
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci
from harness.simulator.timeline import Timeline, concat
from harness.simulator.timeline_file import load_timeline
from reports import figures, gantt, style

ROWS = tuple(Row(label, x, x + 1, x * x, (x, None)) for label in "ab" for x in range(5))
CURVES = Exhibit(
    "e", "figure", "t", ROWS, axes={"x": "epochs", "y": "error (%)"}, draw={"as": "curves"}
)


def test_a_figure_is_the_same_bytes_every_time(tmp_path):
    once, again = figures.draw(CURVES, tmp_path), figures.draw(CURVES, tmp_path)
    assert once == again
    assert once["png"].startswith(b"\x89PNG")
    assert b"dc:date" not in once["svg"]


def test_axes_carry_their_labels_and_a_dollar_sign_is_one(tmp_path):
    exhibit = replace(CURVES, axes={"x": "cost ($a_b^c$)", "y": "error (%)"})
    svg = figures.draw(exhibit, tmp_path)["svg"].decode()
    comments = re.findall(r"<!-- (.*?) -->", svg)
    assert "cost ($a_b^c$)" in comments
    assert "error (%)" in comments


@pytest.mark.parametrize(
    ("xs", "marked"), [((0.015, 0.2), {"0.02", "0.05", "0.1", "0.2"}), ((1.0, 1e4), {"1", "100"})]
)
def test_a_logarithmic_axis_is_marked_in_digits_also_within_a_decade(xs, marked, tmp_path):
    rows = tuple(Row("a", x, None, x) for x in xs)
    exhibit = replace(CURVES, rows=rows, draw={"as": "curves", "x_scale": "log"})
    svg = figures.draw(exhibit, tmp_path)["svg"].decode()
    assert marked <= set(re.findall(r"<!-- (.*?) -->", svg))
    assert "mathdefault" not in svg


def test_missing_and_unbounded_points_leave_gaps(tmp_path):
    rows = (Row("a", 0, None, None), Row("a", 1, None, 2.0), Row("b", 0, None, None, None))
    for kind in figures.SERIES.keys() - {"messages"}:  # drawn from its own list, not from rows
        assert figures.draw(replace(CURVES, rows=rows, draw={"as": kind}), tmp_path)["svg"]


def test_an_exhibit_that_says_nothing_about_drawing_is_not_drawn(tmp_path):
    assert figures.draw(replace(CURVES, draw={}), tmp_path) == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"draw": {"as": "curvs"}}, "did you mean 'curves'"),
        ({"rows": (Row("a", "one"),)}, "to float: 'one'; allowed: numbers"),
    ],
)
def test_what_cannot_be_drawn_is_named(change, complaint, tmp_path):
    with pytest.raises(UserError, match=re.escape(complaint)):
        figures.draw(replace(CURVES, **change), tmp_path)


def test_neighbouring_series_differ_in_grey_by_more_than_colour():
    assert len(set(style.MARKERS)) == len(style.MARKERS)
    lightness = [colors.rgb_to_hsv(colors.to_rgb(colour))[2] for colour in style.COLOURS]
    assert len(set(lightness)) == len(lightness)


def seeded(labels, xs, apart=1.0):
    return tuple(
        Row.from_interval(label, x, None, mean_ci([x + i, x + i + 0.5, x + i - 0.4]), ("r",))
        for i, label in zip(count(step=apart), labels, strict=False)
        for x in xs
    )


def test_no_legend_lies_on_the_data():
    exhibit = replace(CURVES, rows=seeded(["a long name of a curve " * 2, "b"], range(5)))
    with style.canvas() as (figure, axes):
        figures.curves(axes, exhibit)
        figures.legend(axes, exhibit.rows, "printed")
        figure.draw_without_rendering()
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1


def test_few_curves_have_bands_and_more_have_whiskers_find_changed():
    three, four = (replace(CURVES, rows=seeded("abcd"[:n], range(5), apart=3.0)) for n in (3, 4))
    assert figures.caption(three).startswith("Bands: 95% intervals over 3 seeds.")
    assert figures.caption(four).startswith("Whiskers: 95% intervals over 3 seeds.")


def test_a_curve_that_goes_back_has_whiskers():
    onward, back = (replace(CURVES, rows=seeded("a", xs)) for xs in ((4, 3, 2, 1), (4, 1, 2, 3)))
    assert figures.caption(onward).startswith("Bands")
    assert figures.caption(back).startswith("Whiskers")


def test_whiskers_find_changed_lie_within_the_axes():
    exhibit = replace(CURVES, rows=seeded("abcd", range(5)))
    with style.canvas() as (figure, axes):
        figures.curves(axes, exhibit)
        figure.draw_without_rendering()
        low, high = axes.get_ylim()
        assert low <= min(row.ci95[0] for row in exhibit.rows)
        assert high >= max(row.ci95[1] for row in exhibit.rows)


def test_points_without_an_interval_have_no_caps():
    known = (0, 2)
    told = (replace(row, ci95=row.ci95 if row.column in known else None)
            for row in seeded("abcd", range(5)))  # fmt: skip
    with style.canvas() as (_, axes):
        figures.curves(axes, replace(CURVES, rows=tuple(told)))
        bars = [each for each in axes.containers if each.has_yerr]
        assert len(bars) == 4
        for bar in bars:
            _, caps, _ = bar.lines
            assert all(tuple(cap.get_xdata()) == known for cap in caps)


def test_single_seeds_are_dots_of_few_points_and_lines_of_many(tmp_path):
    few, many = (replace(CURVES, rows=seeded("ab", range(n))) for n in (5, figures.FEW + 1))
    assert figures.caption(few).endswith("Dots: single seeds.")
    assert figures.caption(many).endswith("Thin lines: single seeds.")
    assert figures.draw(few, tmp_path) != figures.draw(replace(few, rows=ROWS), tmp_path)


def test_a_figure_without_intervals_has_nothing_to_explain():
    bare = tuple(Row("a", x, None, 1.0) for x in range(3))
    assert figures.caption(replace(CURVES, rows=bare)) == ""
    assert figures.caption(replace(CURVES, draw={})) == ""


def test_differences_seed_by_seed_are_drawn_below_and_explained(tmp_path):
    exhibit = replace(CURVES, rows=seeded("ab", range(5)))
    against = replace(exhibit, draw={"as": "curves", "against": "b"})
    plain, paired = (figures.draw(each, tmp_path)["svg"].decode() for each in (exhibit, against))
    assert "<!-- minus b (points) -->" in paired
    assert "<!-- minus b" not in plain
    assert "Below: differences to b seed by seed" in figures.caption(against)


def test_a_figure_whose_seeds_are_not_known_has_no_differences(tmp_path):
    exhibit = replace(CURVES, draw={"as": "curves", "against": "b"})
    assert "<!-- minus b" not in figures.draw(exhibit, tmp_path)["svg"].decode()
    assert "Below" not in figures.caption(exhibit)


def test_a_window_keeps_only_what_folds_inside_it(built):

    whole = load_timeline(built / "timelines" / "fig1.parquet")
    view = gantt.window(whole)
    rows = view.timeline.contributions
    is_inside = (whole.folds.time_s > view.start_s) & (whole.folds.time_s < view.end_s)
    assert is_inside[rows.fold].all()
    assert len(rows) == is_inside.sum()
    assert (view.workers, view.servers) == (4, 1)
    assert [view.lane(worker) for worker in (0, 3, -1, -2)] == [0, 3, 4, 5]


def test_a_report_keeps_the_first_folds_of_a_timeline_and_all_that_led_to_them(built):
    whole = load_timeline(built / "timelines" / "fig1.parquet")
    assert gantt.beginning(whole) is whole
    many = concat([whole] + [moved(whole, i) for i in range(1, 8)])
    kept = gantt.beginning(many)
    assert len(kept.folds) == gantt.KEPT
    assert set(kept.contributions.fold) == set(kept.folds.fold)
    assert kept.spans.end_s.max() == kept.folds.time_s[-1]


def moved(timeline, times):
    """The same timeline again, after so many of it."""
    shift, step = times * timeline.folds.time_s[-1], times * len(timeline.folds)
    folds, rows, spans = timeline.folds, timeline.contributions, timeline.spans
    return Timeline(
        replace(folds, fold=folds.fold + step, time_s=folds.time_s + shift),
        replace(rows, fold=rows.fold + step, read_time_s=rows.read_time_s + shift),
        replace(spans, start_s=spans.start_s + shift, end_s=spans.end_s + shift),
    )


def test_a_timeline_has_one_staleness_for_each_fold_in_its_window(built):
    draw = {"as": "timeline", "file": "timelines/fig1.parquet"}
    svg = figures.draw(replace(CURVES, draw=draw), built)["svg"].decode()
    view = gantt.window(load_timeline(built / "timelines" / "fig1.parquet"))
    folds = set(view.timeline.contributions.fold.tolist())
    assert set(map(int, re.findall(r'id="fold-(\d+)"', svg))) == folds
    assert "worker 4" in svg
    assert "server" in svg
