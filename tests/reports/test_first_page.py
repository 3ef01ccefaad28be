"""The first page: one line a claim, factors as factors, and two sentences of what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.judge import ABOVE, BELOW, Interval, Results, mean_ci, rule_at_least, rule_at_most
from harness.judge.claims import Rule
from harness.judge.parts import Precondition, Quantity, claim_of
from reports.factors import with_factors
from reports.first_page import deciding_parts, format_claim, most_important_reason, picture
from reports.summary import read_summary, summarise

HIGH, LOW = mean_ci([1.0, 1.1, 0.9]), mean_ci([-1.0, -1.1, -0.9])


def claim(*quantities, **choices):
    return claim_of("p.c", "It holds", "Table 1", "ratio; above 0", quantities, (), **choices)


def test_a_claim_is_told_by_the_quantity_that_decides_it():
    a, b, shown = (Quantity(*each) for each in (("a", None, HIGH, ABOVE), ("b", None, LOW, ABOVE),
                                                ("c", None, LOW)))  # fmt: skip
    assert [part.label for part in deciding_parts(claim(a, b, shown))] == ["b"]
    assert [part.label for part in deciding_parts(claim(shown, a))] == ["a"]
    corrected = replace(claim(a, b), here="unclear")
    assert [part.label for part in deciding_parts(corrected)] == ["b"]
    assert "one of 2 does so by chance" in format_claim(replace(corrected, power=0.9))["why"]
    mixed = claim(replace(b, measure="words"), replace(a, measure="frames"))
    assert [part.label for part in deciding_parts(mixed)] == ["b", "a"]


def test_a_line_has_both_figures_and_no_more_digits_than_are_read():
    exact = Quantity("", 9.32, Interval(9.55021, 9.5491, 9.5513), rule_at_most(10.0))
    (line,) = format_claim(claim(exact))["lines"]
    assert (line["paper"], line["measured"], line["interval"]) == (
        "9.32",
        "9.550",
        "9.549 to 9.551",
    )
    assert (line["label"], line["needed"]) == ("ratio", "at most 10")


@pytest.mark.parametrize(
    ("printed", "rule", "shown"),
    [
        ("above 0", ABOVE, ("", "above 0")),
        ("at most 0.15", rule_at_most(0.15), ("", "at most 0.15")),
        ("a few hundred", Rule(200.0, 900.0), ("a few hundred", "200 to 900")),
        (1.0, rule_at_least(0.5), ("1", "at least 0.5")),
        ("equal", Rule(1.0, 1.0), ("equal", "")),
    ],
)
def test_the_papers_figure_and_what_is_needed_are_told_apart(printed, rule, shown):
    (line,) = format_claim(claim(Quantity("", printed, HIGH, rule)))["lines"]
    assert (line["paper"], line["needed"]) == shown


def test_of_several_conditions_the_one_that_is_missed_most_is_told():
    near = Precondition("readings", Interval.exact(9.0), rule_at_least(10))
    far = Precondition("averages", Interval.exact(645.0), rule_at_least(2000))
    quantity = Quantity("", None, HIGH, ABOVE)
    assert most_important_reason(claim(quantity)) == ""
    assert most_important_reason(claim(quantity, presumes=[near, far])) == (
        "condition not met: averages is 645 (needed: at least 2000)"
    )
    plain = replace(far, unmet="a run has only {value:.3g} averages")
    assert most_important_reason(claim(quantity, presumes=[near, plain])) == (
        "condition not met: a run has only 645 averages (needed: at least 2000)"
    )
    left = claim(quantity, undetermined="No machine is named: both follow. Really.")
    assert most_important_reason(left) == "No machine is named"


def test_a_verdict_that_was_another_says_so_beside_it():
    found = replace(claim(Quantity("", None, HIGH, ABOVE)), before="contradicted, then mixed")
    assert format_claim(found)["marks"] == ["was contradicted, then mixed"]
    changed = replace(found, changed_after_runs="its bands")
    assert format_claim(changed)["marks"] == [
        "was contradicted, then mixed",
        "changed after its runs",
    ]


def test_logarithms_are_told_as_factors_with_the_same_answer():
    logs = Quantity("", "below 0", LOW, BELOW, is_log2=True)
    results = Results("p", "laptop", "c", (), {}, (), (claim(logs),))
    (found,) = with_factors(results).claims
    (part,) = found.parts
    assert (part.paper, part.measured, part.band) == ("below 1", 0.5, (None, 1.0))
    assert (found.here, found.measured) == ("holds", 0.5)
    assert part.ci95 == pytest.approx([2**end for end in LOW.ci95])


def test_a_picture_has_band_interval_and_the_papers_value_in_their_order():
    part = claim(Quantity("", 1.03, Interval(1.79, 1.74, 1.84), rule_at_most(1.08))).parts[0]
    drawn = picture(part)
    assert drawn is not None
    assert drawn["band"][0] == 0.0 < drawn["paper"] < drawn["band"][1] < drawn["interval"][0]
    assert drawn["interval"][0] < drawn["measured"] < drawn["interval"][1] < 1.0


def summary(tmp_path, found, verdict="contradicted"):
    (tmp_path / "summary.toml").write_text(f'found = "{found}"\n[verdicts]\n"p.c" = "{verdict}"\n')
    one = claim(Quantity("words", 1.0, mean_ci([1.2, 1.25, 1.23]), rule_at_most(1.0)))
    return Results("p", "laptop", "c", (), {}, (), (one,))


def test_written_sentences_take_their_figures_from_the_results(tmp_path):
    results = summary(tmp_path, "{p.c/words:~} more, {p.c/words} times.")
    assert read_summary(tmp_path, results) == "23% more, 1.23 times."


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        ("x", "reproduced", "speaks of 'reproduced'; measured: 'contradicted'"),
        ("{p.c/frames}", "contradicted", "frames"),
        ("{p.d/words}", "contradicted", "its verdict is missing"),
    ],
)
def test_sentences_that_no_longer_fit_are_refused(tmp_path, found, verdict, told):
    results = summary(tmp_path, found, verdict)
    with pytest.raises(UserError, match=told):
        read_summary(tmp_path, results)


def test_without_written_sentences_they_are_made_of_the_claims():
    good, bad = claim(Quantity("", None, HIGH, ABOVE)), claim(Quantity("", None, LOW, ABOVE))
    results = Results("p", "laptop", "c", (), {}, (), (bad, good))
    assert summarise(results) == "Holds here: “It holds”. Fails here: “It holds”."
