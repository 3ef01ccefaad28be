from __future__ import annotations

import pytest

from harness.base.errors import UserError
from harness.judge import ABOVE, BELOW, Claim, Part, Results, mean_ci, rule_at_most
from harness.judge.parts import Quantity, claim_of
from reports import build, verdict_notes
from reports.verdict_notes import read_reasons, why

WIDE, LOW = mean_ci([1.0, -2.0, 0.5]), mean_ci([-1.0, -1.01, -0.99])


def claim(*quantities, **choices):
    return claim_of("c", "it holds", "Table 1", "x", quantities, ("run",), **choices)


def test_of_an_unclear_claim_the_interval_and_the_band_that_it_crosses_are_told():
    told = why(claim(Quantity("x", "above 0", WIDE, ABOVE)))
    assert told == "Its interval crosses an end: −4.2 to 3.8 (the paper holds from 0)."


def test_of_several_parts_those_that_decide_are_named():
    told = why(claim(Quantity("a", 1.0, LOW, BELOW), Quantity("b", 1.0, WIDE, BELOW)))
    assert told.startswith("Its interval crosses an end: b, ")
    assert "a," not in told


def test_of_a_claim_that_fails_no_value_of_the_interval_agrees():
    told = why(claim(Quantity("", 1.0, LOW, ABOVE)))
    assert told.startswith("No value of its interval agrees with the paper: −1.025 to −0.975")


def test_what_only_the_correction_for_parts_leaves_unclear_is_told():
    weak = Quantity("weak", 1.0, mean_ci([-0.30, -0.02, -0.16, -0.25, -0.10]), ABOVE)
    clear = Quantity("clear", 1.0, mean_ci([1.0, 1.01, 0.99]), ABOVE)
    told = why(claim(weak, clear, clear))
    assert told.startswith("Fails by itself, but not after the correction for the parts: weak")


def test_a_part_that_was_not_measured_is_named():
    parts = (Part("hours", here="unclear", ci95=(None, None)),)
    missing = Claim("c", "s", "w", "x", None, None, None, "unclear", parts=parts)
    assert why(missing) == "No estimate: hours."


def test_of_an_answer_that_does_not_bear_the_reason_is_the_judges_and_reproduced_needs_none():
    told = why(claim(Quantity("", 1.0, LOW, rule_at_most(0)), undetermined="No machine is named."))
    assert told == "It does not bear on the paper: No machine is named."
    assert not why(claim(Quantity("", 1.0, LOW, BELOW)))


def test_results_of_an_earlier_judge_have_reasons_without_bands():
    old = Claim("c", "s", "w", "x", "above 0", 0.1, (-1.0, 1.2), "unclear")
    assert why(old) == "Its interval crosses an end: −1.0 to 1.2."


def test_without_a_file_there_are_no_given_reasons(tmp_path):
    assert read_reasons(tmp_path, Results("p", "laptop", "c", (), {}, (), ())) == {}


def test_given_reasons_stand_in_the_report_and_must_fit_its_verdicts(out):
    (out / verdict_notes.REASONS_TOML).write_text('["p1.switch"]\nverdict = "unclear"\nwhy = "x"\n')
    with pytest.raises(UserError, match=r"toml: .*: missing; needed: a reason for each"):
        build(out)
