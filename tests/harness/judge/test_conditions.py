"""Conditions of a paper: asked of every claim of their kinds, whichever way it came out."""

import math
from importlib import import_module
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.registry import entries
from harness.judge.claims import ABOVE
from harness.judge.conditions import read_conditions
from harness.judge.interval import Interval
from harness.judge.parts import Digits, Quantity, claim_of
from harness.judge.results import read_results
from harness.judge.statistics import mean_ci

TABLE = """
[kinds]
"word error" = ["a", "b"]
"time" = ["c"]

[conditions.averages]
statistic = "averages in a run"
at_least = 300
source = "Section 5"
unmet = "a run has only {value:.3g} averages"
concerns = ["word error"]
"""
FOR, AGAINST = ([1.0, 1.01, 0.99], [-1.0, -1.01, -0.99])
JUDGED = [*Path("reports/published").glob("paper*/overnight/results.json")]
JUDGED += [Path("reports/published/paper4/laptop/results.json")]
"""Published results that the present judge made from runs, not from the values of an older file."""
PAPERS = (
    "paper1_async_asgd",
    "paper2_ng_averaging",
    "paper3_async_mmi",
    "paper4_async_rl",
    "staleness",
)


@pytest.fixture
def conditions(tmp_path):
    (tmp_path / "registered.toml").write_text(TABLE)
    return read_conditions(tmp_path / "registered.toml")


def claim(id_, values, **choices):
    quantity = Quantity("", 1.0, mean_ci(values), ABOVE)
    return claim_of(id_, "it holds", "Table 1", "x", [quantity], ("run",), **choices)


def test_a_condition_that_fails_takes_the_bearing_of_favourable_claims_too(conditions):
    """One claim of the kind measures it; the others of its kind are asked as well."""
    planted = conditions.measure("averages", Interval.exact(64.0))
    asked = conditions.ask(
        [claim("a", AGAINST, presumes=[planted]), claim("b", FOR), claim("c", FOR)]
    )
    assert [each.verdict for each in asked] == ["fails here", "holds here", "reproduced"]
    (told,) = asked[1].conditions
    assert (told.name, told.measured, told.band, told.source) == (
        "averages",
        64,
        (300, None),
        "Section 5",
    )
    assert told.unmet == "a run has only 64 averages"
    met = conditions.measure("averages", Interval.exact(645.0))
    assert not met.condition.unmet
    asked = conditions.ask([claim("a", AGAINST), claim("b", FOR, presumes=[met]), claim("c", FOR)])
    assert [each.verdict for each in asked] == ["contradicted", "reproduced", "reproduced"]


@pytest.mark.parametrize(
    ("value", "text"), [(117_238.0, "117,000"), (999.6, "1,000"), (0.164, "0.164")]
)
def test_a_sentence_has_a_number_in_digits(value, text):
    assert f"{Digits(value):.3g}" == text


@pytest.mark.parametrize("name", PAPERS)
def test_a_planted_condition_takes_the_bearing_of_all_its_kind_in_every_paper(name):
    """Each condition of a paper is missed once, on one claim alone, and all others are met."""
    paper = import_module(f"reproductions.{name}").PAPER
    ids = [maker.id for maker in paper.claims]

    def measure(key, end):
        return paper.conditions.measure(key, Interval.exact(end))

    for planted, condition in paper.conditions.named.items():
        met = [
            measure(key, each.rule.low if math.isfinite(each.rule.low) else each.rule.high)
            for key, each in paper.conditions.named.items()
            if key != planted
        ]
        low, high = condition.rule.low, condition.rule.high
        missed = measure(planted, low - 1.0 if math.isfinite(low) else high + 1.0)
        first = next(id_ for id_ in ids if id_ in condition.claims)
        for others in (FOR, AGAINST):
            asked = paper.conditions.ask(
                [
                    claim(id_, FOR, presumes=[*met, missed])
                    if id_ == first
                    else claim(id_, others, presumes=met)
                    for id_ in ids
                ]
            )
            assert {each.id for each in asked if not each.bears} == condition.claims
            here = "holds here" if others is FOR else "fails here"
            told = {each.verdict for each in asked if each.id in condition.claims - {first}}
            assert told <= {here}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", sorted(JUDGED), ids=str)
def test_published_claims_have_every_condition_of_their_kinds(path):
    results = read_results(path)
    paper = entries("papers")[results.paper].load()
    if {each.id for each in results.claims} != {maker.id for maker in paper.claims}:
        pytest.skip("of claims that were registered anew since")
    for each in results.claims:
        asked = {name for name, of in paper.conditions.named.items() if each.id in of.claims}
        assert {one.name for one in each.conditions} == asked, each.id


def test_a_condition_measured_on_several_sets_is_asked_of_each(conditions):
    sets = [
        conditions.measure("averages", Interval.exact(n), of) for n, of in ((64, "x"), (900, "y"))
    ]
    _, other = conditions.ask([claim("a", FOR, presumes=sets), claim("b", FOR)])
    assert [each.what for each in other.conditions] == [
        "x, averages in a run",
        "y, averages in a run",
    ]
    assert not other.bears


def test_a_condition_that_no_run_tells_is_unknown(conditions):
    (alone,) = conditions.ask([claim("b", FOR)])
    assert (alone.verdict, alone.conditions[0].unmet) == ("holds here", "")
    assert alone.reasons == ("conditions",)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("at_least = 300", "", r"averages: no limit"),
        ("at_least = 300", "at_least = 3\nat_most = 4", r"averages: at_least, at_most"),
        ('source = "Section 5"', "", r"averages: source: missing"),
        ("{value:.3g}", "{value}", r"averages: unmet: .*needed: one '{value:.3g}'"),
        ("{value:.3g}", "{value:.3g} or {value:.0%}", r"averages: unmet"),
        ('concerns = ["word error"]', 'concerns = ["word eror"]', r"did you mean 'word error'"),
    ],
)
def test_a_mistake_in_the_table_is_one_line(tmp_path, old, new, complaint):
    (tmp_path / "registered.toml").write_text(TABLE.replace(old, new))
    with pytest.raises(UserError, match=complaint):
        read_conditions(tmp_path / "registered.toml")


@pytest.mark.parametrize("name", PAPERS)
def test_every_kind_is_of_claims_that_there_are_and_has_a_condition(name):
    paper = import_module(f"reproductions.{name}").PAPER
    claims = {maker.id for maker in paper.claims}
    named = paper.conditions.named
    assert named
    assert all(condition.claims and condition.claims <= claims for condition in named.values())
