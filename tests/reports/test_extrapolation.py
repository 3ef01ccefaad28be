"""Curves over scale as reports tell and draw them, whole and partly run."""

from dataclasses import replace
from io import BytesIO

import matplotlib.image
import numpy as np
import pytest

from harness.judge.claims import Rule
from harness.judge.curve import Curve
from harness.judge.results import Exhibit, Row
from harness.judge.scaling import Size, follow
from harness.judge.statistics import ratio_ci
from reports import extrapolation, style

PLANNED = {1.0: 6, 3.0: 6, 10.0: 6, 30.0: 6, 100.0: 3}
"""Seeds by size."""


def make(run, factors=(1.5, 0.9), scatter=0.01):
    """A curve whose ratios are 1 + factor n^-0.5, with the seeds of ``run`` by size."""
    rng = np.random.default_rng(0)
    missing = {f"{at:g}": n - run.get(at, 0) for at, n in PLANNED.items() if n != run.get(at, 0)}
    rows, trends = [], []
    for label, factor, paper in zip(("clean", "noise"), factors, (1.034, None), strict=True):
        sizes = []
        for at, count in run.items():
            below = 0.2 * np.exp(rng.normal(0.0, 0.1, count))
            above = below * (1 + factor * at**-0.5) * np.exp(rng.normal(0.0, scatter, count))
            pairs = tuple(zip(above.tolist(), below.tolist(), strict=True))
            sizes.append(Size(at, tuple(range(count)), pairs))
            rows.append(Row.from_interval(label, at, None, ratio_ci(above, below), ("a" * 64,)))
        rows.append(Row(label, 500.0, paper))
        trends.append(follow(label, sizes, (500.0, paper), Rule(high=1.08), not missing, 400))
    curve = Curve(
        "p9.close", "error of one over many", "speech", "h", 500.0, (None, 1.08), tuple(trends),
        missing,
    )  # fmt: skip
    axes = {"x": "speech (h)", "y": "error of one over many"}
    return Exhibit("p9.scaling", "figure", "A ratio by hours", tuple(rows), axes=axes, curve=curve)


@pytest.fixture(scope="module")
def whole():
    return make(PLANNED)


def test_a_whole_curve_is_told_with_value_range_and_answer(whole):
    told = extrapolation.summarise(whole, "One is close")
    assert told.startswith(
        "“One is close”, followed over speech on seeds of its own, extrapolated from 1 to 100 h to "
        "the paper's 500 h: clean 1.0"
    )
    assert "; paper 1.034), " in told
    assert "the band (at most 1.08)" in told
    assert "law" not in told


def test_an_answer_that_is_unclear_says_why(whole):
    def answer(trend, curve):
        found = replace(curve, trends=(trend,))
        return extrapolation.summarise(replace(whole, curve=found), "It")

    trend = whole.curve.trends[0]
    assert trend.law is not None
    assert trend.law.held_out is not None
    missed = replace(trend.law, held_out=replace(trend.law.held_out, holds=False))
    unclear = replace(trend, word="unclear")
    assert "unclear, as the range reaches over an end of the band" in answer(unclear, whole.curve)
    lost = replace(unclear, laws=(missed,), chosen=missed.name)
    assert "the curve through the smaller sizes misses 100 h." in answer(lost, whole.curve)
    inside = answer(trend, replace(whole.curve, paper_size=50.0))
    assert "run from 1 to 100 h and read off at the paper's 50 h" in inside


def test_a_partial_curve_is_told_by_what_is_missing_alone():
    some = replace(make({1.0: 6, 3.0: 4}), note="Seeds are missing.")
    assert extrapolation.summarise(some, "It").endswith("of its own. Seeds are missing.")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run", [PLANNED, {1.0: 6, 3.0: 4}, {}], ids=["whole", "two", "none"])
def test_the_figure_has_runs_laws_bands_and_the_paper_at_its_size(run):
    exhibit = make(run)
    drawn = dict(extrapolation.draw_curve(exhibit, "printed in the paper"))
    assert set(drawn) == {"svg", "png"}
    pixels = matplotlib.image.imread(BytesIO(drawn["png"]))
    for colour, there in (
        (style.COLOURS[0], len(run) > 0),
        (style.COLOURS[1], len(run) > 1),
        (style.COLOURS[2], len(run) > 2),
    ):
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        # The key of the legend stands at the top: below it only what is drawn counts.
        below = pixels[pixels.shape[0] // 5 :, :, :3]
        assert bool((abs(below - rgb).max(axis=-1) < 0.02).any()) == there, colour
    assert ("power above a floor" in str(exhibit.curve)) == (len(run) > 2)


def test_an_interval_of_few_seeds_does_not_set_the_scale():
    wide = make({1.0: 6, 3.0: 6})
    first = wide.rows[0]
    stretched = replace(wide, rows=(replace(first, ci95=(-90.0, 90.0)), *wide.rows[1:]))
    low, high = extrapolation._limits(stretched, wide.curve)
    assert -2.0 < low < 1.0 < 2.5 < high < 5.0
