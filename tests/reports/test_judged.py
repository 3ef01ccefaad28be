"""What a reader is told beside a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.judge import (
    ABOVE,
    Condition,
    Interval,
    Part,
    Results,
    mean_ci,
    rule_at_least,
    rule_at_most,
    rule_near,
)
from harness.judge.parts import Precondition, Quantity, claim_of
from reports import verdict_notes

CLEAR = Quantity("", 1.0, mean_ci([1.0, 1.01, 0.99]), ABOVE, 1.0)


def claim(*quantities, **choices):
    return claim_of("c", "it holds", "Table 1", "x", quantities, ("run",), **choices)


def told(what, value, rule):
    (line,) = verdict_notes.remarks(claim(CLEAR, presumes=[Precondition(what, value, rule)]))[:1]
    return line


def test_a_precondition_that_is_counted_is_told_as_a_count():
    line = told("averages", Interval.exact(64.0), rule_at_least(300))
    assert line == "Condition, averages: 64 (from 300), does not hold."


def test_a_precondition_that_varies_is_told_with_its_interval():
    line = told("passes", mean_ci([1.0, 1.1, 0.9]), rule_at_most(2.0))
    assert line == "Condition, passes: 1.00 [0.75 to 1.25] (up to 2), holds."


def test_a_precondition_of_runs_that_did_not_end_is_told_as_unknown():
    line = told("passes", Interval(math.nan), rule_at_most(2.0))
    assert line == "Condition, passes: – (up to 2), unknown."


def test_why_a_claim_cannot_fail_ends_in_one_full_stop():
    for given in ("it is an identity", "it is an identity."):
        assert verdict_notes.remarks(claim(CLEAR, cannot_fail=given)) == [
            "Cannot fail: it is an identity."
        ]


def test_parts_are_told_their_power_one_by_one_and_together():
    assert not verdict_notes.remarks(claim(CLEAR))
    weak = Quantity("", 1.0, mean_ci([1.0, 2.0, 0.1, 0.9]), ABOVE, 1.0)
    (together, *_) = verdict_notes.remarks(claim(CLEAR, weak))
    assert together.startswith("If the claim is true, all are seen to hold: ")


def test_a_chance_below_even_is_never_told_as_even():
    weak = Quantity("", 1.0, mean_ci([1.0, 2.4, -0.4]), ABOVE, 1.6)
    found = claim(weak)
    assert 0 < (found.power or 0) < 0.5
    assert f" {math.floor(100 * (found.power or 0))}%" in " ".join(found.reasons)


@pytest.mark.parametrize(
    ("rule", "words"),
    [(rule_near(10.07, 0.05), "from 9.566 to 10.57"), (rule_at_most(1e-12), "up to 1e-12")],
)
def test_ends_of_a_band_that_were_computed_have_four_digits(rule, words):
    assert verdict_notes.band((rule.low if math.isfinite(rule.low) else None, rule.high)) == words


def test_a_quantity_of_one_seed_says_that_its_scatter_is_not_known():
    (part,) = claim(Quantity("", 1.0, mean_ci([1.0]), ABOVE, 1.0)).parts
    assert verdict_notes.test_of(part) == "holds from 0 · one seed: no interval"
    assert verdict_notes.test_of(Part("shown")) == ""


def test_what_is_found_is_told_of_what_scatters_by_more_than_rounding():
    rounded = Part("", measured=0.9, ci95=(0.9, 0.9 + 2e-16), band=(0.7, 1.3), finds=4e-16)
    assert "0.1 beyond an end" in verdict_notes.test_of(
        replace(rounded, ci95=(0.8, 1.0), finds=0.1)
    )
    assert "beyond" not in verdict_notes.test_of(rounded)


def test_a_condition_is_made_of_plain_numbers():
    found = Condition("x", math.inf, (math.nan, 1.0), (None, 2.0), holds=False)
    assert (found.measured, found.ci95) == (None, (None, 1.0))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "speech"),
        ({"corpora": {"11": "ab", "12": "cd"}}, "speech, synthetic, another for each seed"),
        ({"corpora": {"recorded": "ab"}}, "speech, recorded, the same for all seeds"),
    ],
)
def test_the_corpus_says_whether_seeds_share_it(facts, words):
    results = Results("paper1", "laptop", "speech", (11, 12), facts, (), ())
    assert verdict_notes.corpus_of(results) == words


def test_parts_keep_their_answers_whether_or_not_the_claim_bears():
    against = Quantity("against", 1.0, mean_ci([-1.0, -1.01, -0.99]), ABOVE, 1.0)
    for undetermined in ("", "No machine is named."):
        found = claim(CLEAR, against, undetermined=undetermined)
        assert [p.here for p in verdict_notes.parts_of(found)] == ["holds", "fails"]


def test_a_claim_of_which_a_weak_part_alone_fails_says_why_it_is_unclear():
    weak = Quantity("weak", 1.0, mean_ci([-0.30, -0.02, -0.16, -0.25, -0.10]), ABOVE)
    assert verdict_notes.remarks(claim(weak, CLEAR, CLEAR))[-1].startswith("A part alone fails")
    assert not [told for told in verdict_notes.remarks(claim(weak)) if "part alone" in told]
