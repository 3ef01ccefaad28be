from __future__ import annotations

import pytest

from harness.judge import ABOVE, BELOW, Claim, Part, mean_ci, read_results, rule_between
from harness.judge.parts import Quantity, claim_of
from reports.specs import EDGE, forest, forest_rows


def rows(*quantities):
    return forest_rows([claim_of("p.c", "s", "w", "x", quantities, ("run",))])


def test_a_line_holds_value_interval_band_and_the_papers_value_on_one_scale():
    (row,) = rows(Quantity("", 5.0, mean_ci([1.0, 2.0, 3.0]), rule_between(0.0, 4.0), 5.0))
    points = sorted(
        (row[name], name) for name in ("low", "band_low", "value", "band_high", "high", "printed")
    )
    assert [name for _, name in points] == [
        "low", "band_low", "value", "band_high", "high", "printed",
    ]  # fmt: skip
    width = (row["printed"] - row["low"]) / (5.0 - -0.4841)
    assert row["value"] == pytest.approx(row["band_low"] + 2.0 * width, abs=1e-3)
    assert (row["low"], row["printed"]) == (EDGE, 1 - EDGE)


def test_an_open_band_goes_to_the_edge():
    above, below = rows(
        Quantity("a", 1.0, mean_ci([1.0, 2.0]), ABOVE),
        Quantity("b", 1.0, mean_ci([1.0, 2.0]), BELOW),
    )
    assert above["band_high"] == 1.0
    assert below["band_low"] == 0.0
    assert (above["name"], below["name"]) == ("c · a", "c · b")


def test_a_figure_without_chance_is_a_point():
    (row,) = forest_rows([Claim("p.c", "s", "w", "x", 1.0, 1.0, (1.0, 1.0), "holds")])
    assert row["value"] == row["low"] == row["high"] == row["printed"] == EDGE


def test_what_is_not_judged_or_not_measured_has_no_line():
    parts = (Part("shown", 1.0, 2.0), Part("lost", 1.0, None, (None, None), "unclear"))
    assert not forest_rows([Claim("c", "s", "w", "x", None, None, None, "unclear", parts=parts)])


def test_lines_stand_in_the_order_of_the_claims(built):
    found = forest_rows(read_results(built / "results.json").claims)
    names = [row["name"] for row in found]
    assert len(set(names)) == len(names)
    assert forest(found)["encoding"]["y"]["sort"] == names
