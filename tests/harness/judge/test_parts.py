import math
from dataclasses import replace

import pytest

from harness.judge.claims import ABOVE, Rule
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity, claim_of, correct_verdicts
from harness.judge.statistics import mean_ci

CLEAR = Quantity("clear", 1.0, mean_ci([1.0, 1.01, 0.99]), ABOVE, 1.0)
AGAINST = Quantity("against", 1.0, mean_ci([-1.0, -1.01, -0.99]), ABOVE, 1.0)


def claim(*quantities, **choices):
    return claim_of("c", "it holds", "Table 1", "x", quantities, ("run",), **choices)


def test_a_precondition_of_runs_that_did_not_end_is_unknown_and_not_denied():
    unknown = Precondition("readings", Interval(math.nan), Rule(low=10.0))
    found = claim(CLEAR, presumes=[unknown])
    assert not found.bears
    assert found.reasons == ("conditions",)


def test_what_the_paper_leaves_open_comes_before_everything():
    assert claim(CLEAR, undetermined="No machine is named.").reasons == ("undetermined",)


def test_one_seed_cannot_test_a_size_that_the_paper_gives():
    alone = Quantity("", 1.0, mean_ci([1.0]), ABOVE, 1.0)
    assert (claim(alone).verdict, claim(alone).bears, claim(alone).power) == ("unclear", False, 0.0)


def test_without_a_size_in_the_paper_power_is_unknown_and_the_effect_it_finds_is_told():
    found = claim(replace(CLEAR, true=None))
    assert found.power is None


def test_a_part_that_is_only_shown_is_not_judged():
    found = claim(CLEAR, Quantity("shown", 3.0, mean_ci([9.0, 9.1])))
    assert found.here == "holds"
    assert (found.parts[1].here, found.parts[1].band) == (None, None)


def test_one_weak_part_of_many_does_not_contradict_a_claim():
    values = [-0.30, -0.02, -0.16, -0.25, -0.10]  # its own p-value is 0.03
    weak = Quantity("weak", 1.0, mean_ci(values), ABOVE, None)
    assert claim(weak).here == "fails"
    found = claim(weak, CLEAR, CLEAR)
    assert found.parts[0].here == "fails"
    assert found.here == "unclear"


def test_a_correction_over_all_claims_leaves_alone_what_is_clear():
    family = [replace(claim(CLEAR), id="a"), replace(claim(AGAINST), id="b")]
    assert [c.corrected for c in correct_verdicts(family)] == ["holds", "fails"]


def test_every_look_at_verdicts_counts_in_the_correction():
    weak = replace(claim(CLEAR), id="a", p_value=0.03)
    assert [correct_verdicts([weak], looks)[0].corrected for looks in (1, 2)] == [
        "holds",
        "unclear",
    ]


def test_what_cannot_fail_is_no_part_of_the_correction():
    sure = replace(claim(CLEAR, cannot_fail="by definition"), id="a")
    weak = replace(claim(CLEAR), id="b", p_value=0.04)
    assert [c.corrected for c in correct_verdicts([sure, weak])] == ["holds", "holds"]


def test_a_quantity_that_was_not_measured_has_no_power():
    assert Quantity("", 1.0, Interval(math.nan), ABOVE, 1.0).power is None
    assert claim(replace(CLEAR, true=math.nan)).power is None  # the paper's figure at our level


def test_power_is_a_reason_for_an_unclear_answer_alone():
    """An interval wholly outside of the band has seen its effect, whatever its power."""
    scattered = mean_ci([-3.0, -5.0, -4.0, -9.0])
    against = claim(Quantity("", 0.1, scattered, ABOVE, 0.1))
    assert (against.power or 0.0) < 0.5
    assert (against.verdict, against.reasons) == ("contradicted", ())
    unsure = claim(Quantity("", 0.1, mean_ci([-3.0, 5.0, -4.0, 9.0]), ABOVE, 0.1))
    assert (unsure.verdict, unsure.bears) == ("unclear", False)


@pytest.mark.parametrize(
    ("here", "unmet", "verdict"),
    [
        (CLEAR, False, "reproduced"),
        (CLEAR, True, "holds here"),
        (AGAINST, False, "contradicted"),
        (AGAINST, True, "fails here"),
    ],
)
def test_a_condition_takes_the_bearing_of_either_answer_and_leaves_the_answer(here, unmet, verdict):
    condition = Precondition("averages", Interval.exact(1.0 - unmet), Rule(low=1.0))
    found = claim(here, presumes=[condition])
    assert found.here == claim(here).here
    assert (found.bears, found.verdict) == (not unmet, verdict)


def test_measures_that_contradict_each_other_are_mixed():
    words, frames = replace(AGAINST, measure="words"), replace(CLEAR, measure="frames")
    assert claim(words, frames).verdict == "mixed"
    assert claim(words, replace(AGAINST, measure="frames")).here == "fails"
    unsure = Quantity("", 1.0, mean_ci([-1.0, 1.0, 0.1]), ABOVE, measure="frames")
    assert claim(replace(CLEAR, measure="words"), unsure).here == "unclear"


def test_a_quantity_without_a_measure_belongs_to_every_one():
    words, frames = (replace(AGAINST, measure=each) for each in ("words", "frames"))
    assert claim(words, frames, CLEAR).here == "fails"
    words, frames = (replace(CLEAR, measure=each) for each in ("words", "frames"))
    assert claim(words, frames, AGAINST).here == "fails"
