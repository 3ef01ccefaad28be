"""Claims as data to print, and written words that must fit their verdicts."""

import math
from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.judge.claims import ABOVE, Rule
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity, claim_of
from harness.judge.results import Results
from harness.judge.statistics import mean_ci
from reports import build
from reports.claims import (
    explain_bearing,
    find_deciding,
    number_limits,
    row_of_claim,
    rows_of_conditions,
)
from reports.factors import with_factors
from reports.reference_terms import PAPER
from reports.written import read_reasons, read_summary, summarise

HIGH, LOW, WIDE = (
    mean_ci(values) for values in ([1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -2.0, 0.5])
)


def claim(*quantities, **choices):
    return claim_of("p.c", "It holds", "Table 1", "ratio; above 0", quantities, (), **choices)


def row(*quantities, **choices):
    return row_of_claim(claim(*quantities, **choices), PAPER)


def test_the_quantity_that_decides_a_claim():
    a, b, shown = (Quantity(*each) for each in (("a", None, HIGH, ABOVE), ("b", None, LOW, ABOVE),
                                                ("c", None, LOW)))  # fmt: skip
    mixed = claim(replace(b, measure="words"), replace(a, measure="frames"))
    still_open = replace(claim(a, Quantity("wide", None, WIDE, ABOVE), b), here="unclear")
    claims = claim(a, b, shown), claim(shown, a), mixed, still_open
    labels = [[part.label for part in find_deciding(each)] for each in claims]
    assert labels == [["b"], ["a"], ["a", "b"], ["wide", "b"]]
    assert row_of_claim(still_open, PAPER)["counts"] == "of 3: 1 fail, 1 unclear, 1 hold"


@pytest.mark.parametrize(
    ("printed", "rule", "shown"),
    [
        ("above 0", ABOVE, ("", "above 0")),
        (1.0, Rule(low=0.5), ("1", "at least 0.5")),
        (1.0, Rule(1 / 3, 900.0), ("1", "0.3333 to 900")),
        (None, Rule(high=0.15), ("", "at most 0.15")),
    ],
)
def test_the_papers_figure_and_what_is_needed(printed, rule, shown):
    (part,) = row(Quantity("", printed, HIGH, rule))["parts"]
    assert (part["paper"], part["needed"]) == shown


def test_every_reason_why_an_answer_does_not_bear_has_a_sentence():
    condition = Precondition(
        "averages", Interval.exact(64), Rule(low=300), unmet="only {value:.3g} averages"
    )
    unknown = Precondition("readings", Interval(math.nan), Rule(low=1))
    weak = claim(
        Quantity("", 1.0, WIDE, ABOVE, 0.1), presumes=[condition, unknown], undetermined="Open."
    )
    assert weak.reasons == ("undetermined", "conditions", "power")
    told = explain_bearing(weak, PAPER)
    assert told[0] == "Open."
    assert "only 64 averages; readings: not measured" in told[1]
    assert f"{math.floor(100 * (weak.power or 0))}%" in told[2]
    assert explain_bearing(claim(Quantity("", None, HIGH, ABOVE)), PAPER) == []
    unmet = claim(Quantity("", None, HIGH, ABOVE), presumes=[unknown, condition])
    rows = [row_of_claim(one, PAPER) for one in (weak, unmet, unmet)]
    names = number_limits(rows)
    assert names == {"Open.": "L1", "readings: not measured": "L2", "only 64 averages": "L3"}


def test_conditions_are_listed_once_and_notes_have_what_the_correction_changes():
    count = Precondition("averages", Interval.exact(640.0), Rule(low=300))
    noted = claim(Quantity("", None, HIGH, ABOVE), presumes=[count], cannot_fail="an identity.")
    data = row_of_claim(replace(noted, corrected="unclear"), PAPER, "A reason.")
    assert data["notes"] == [
        "A reason.",
        "Cannot fail: an identity.",
        "After the correction for the number of claims: unclear.",
    ]
    assert (data["place"], data["survives"]) == ("certain", "no")
    assert rows_of_conditions([noted]) == [["averages", "at least 300", "640.0", "holds", ""]]


def test_logarithms_are_printed_as_factors_with_the_same_answer():
    quantity = Quantity("", "above 0", mean_ci([1.0, 1.1, 0.9]), ABOVE, is_log2=True)
    results = Results("p", "laptop", "c", (), {}, (), (claim(quantity),))
    (part,) = row_of_claim(with_factors(results).claims[0], PAPER)["parts"]
    assert (part["needed"], part["measured"], part["here"]) == ("above 1", "2.00", "holds")


def results_of(folder, text, verdict="contradicted"):
    (folder / "summary.toml").write_text(f'found = "{text}"\n[verdicts]\n"p.c" = "{verdict}"\n')
    quantity = Quantity("words", 1.0, mean_ci([1.2, 1.25, 1.23]), Rule(high=1.0))
    return Results("p", "laptop", "c", (), {}, (), (claim(quantity),))


def test_written_sentences_take_their_figures_from_the_results(tmp_path):
    results = results_of(tmp_path, "{p.c/words:~} more, {p.c/words} times.")
    assert read_summary(tmp_path, results) == "23% more, 1.23 times."


@pytest.mark.parametrize(
    ("text", "verdict", "named"),
    [
        ("x", "reproduced", "'reproduced'; measured: 'contradicted'"),
        ("{p.c/frames}", "contradicted", "frames"),
        ("{p.d/words}", "contradicted", "p.d"),
    ],
)
def test_sentences_that_no_longer_fit_are_refused(tmp_path, text, verdict, named):
    with pytest.raises(UserError, match=named):
        read_summary(tmp_path, results_of(tmp_path, text, verdict))


def test_without_written_sentences_they_are_made_of_the_claims():
    good, bad = claim(Quantity("", None, HIGH, ABOVE)), claim(Quantity("", None, LOW, ABOVE))
    results = Results("p", "laptop", "c", (), {}, (), (bad, good))
    assert summarise(results).count("“It holds”") == 2


@pytest.mark.parametrize(
    ("reasons", "named"),
    [
        ("", "p.c: missing"),
        ('["p.c"]\nverdict = "unclear"\nwhy = "x"', "'unclear'; measured: 'contradicted'"),
        ('["p.c"]\nverdict = "contradicted"\nwhy = "x"\n["p.d"]\nverdict = "x"\nwhy = "x"', "p.d"),
    ],
)
def test_a_reason_for_another_verdict_or_a_missing_one_is_refused(tmp_path, reasons, named):
    bad = claim(Quantity("", None, LOW, Rule(low=0.0)))
    results = Results("p", "laptop", "c", (), {}, (), (bad,))
    assert read_reasons(tmp_path, results) == {}
    (tmp_path / "reasons.toml").write_text(reasons)
    with pytest.raises(UserError, match=named):
        read_reasons(tmp_path, results)


def test_reasons_must_fit_a_report_that_is_built(out):
    (out / "reasons.toml").write_text('["p1.switch"]\nverdict = "unclear"\nwhy = "x"\n')
    with pytest.raises(UserError, match=r"reasons\.toml"):
        build(out)
