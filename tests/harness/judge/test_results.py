import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.judge.claims import ABOVE, Rule
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity, claim_of, correct_verdicts
from harness.judge.results import Claim, Exhibit, Part, Results, Row, read_results, write_results
from harness.judge.statistics import mean_ci, rank_correlation_ci

numbers = st.none() | st.floats() | st.integers(-(10**9), 10**9)
bounds = st.none() | st.tuples(numbers, numbers)
rows = st.builds(
    Row, st.text(), st.text() | st.floats(-1e9, 1e9), numbers, numbers, bounds, st.tuples(st.text())
)


def some_results(**changes):
    claim = Claim(
        id="p1.noise-harder", statement="noise is harder", where="Table 2",
        statistic="CER noise - clean > 0", paper="holds", measured=11.5, ci95=(-math.inf, math.inf),
        here="unclear", runs=("ab",), parts=(Part("hand", "holds", 1.0, (0.5, 1.5), "holds"),),
    )  # fmt: skip
    table = Exhibit("p1.table2", "table", "CER (%)", (Row("SGD", "clean", 7.63, 8.0, (7, 9)),))
    given = {
        "paper": "paper1",
        "scale": "smoke",
        "corpus": "parametric",
        "seeds": (0, 1),
        "provenance": {"git": "abc", "wall_s": 1.5},
        "exhibits": (table,),
        "claims": (claim,),
    }
    return Results(**(given | changes))


def test_what_is_written_is_what_is_read(tmp_path):
    write_results(tmp_path / "results.json", some_results())
    assert read_results(tmp_path / "results.json") == some_results()


@given(st.lists(rows, max_size=4))
def test_any_row_survives_the_file_without_nan_or_infinity(tmp_path_factory, items):
    path = tmp_path_factory.getbasetemp() / "rows.json"
    results = some_results(exhibits=(Exhibit("e", "figure", "t", tuple(items)),))
    write_results(path, results)
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert read_results(path) == results


def test_a_judged_claim_survives_the_file_with_all_that_it_rests_on(tmp_path):
    pairs = [Quantity(str(i), 1.0, mean_ci([1.0, 1.5, 0.5 + i]), ABOVE, 1.0) for i in (0, 1)]
    order = Quantity("order", "above 0", rank_correlation_ci([1, 2, 3], [[1, 2, 3]] * 2), ABOVE)
    unknown = Quantity("unknown", "x", Interval(math.nan), Rule(high=2.0), 1.0)
    presumes = [Precondition("passes", Interval.exact(3), Rule(low=2))]
    asked = ("c", "it holds", "Table 1", "x")
    claims = (
        claim_of(*asked, pairs, ("ab",), presumes=presumes, cannot_fail="it is one"),
        claim_of(*asked, [order, unknown], ()),
        claim_of(*asked, [order], (), undetermined="It is not said."),
    )
    results = some_results(claims=correct_verdicts(claims))
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results


def test_a_verdict_of_other_answers_than_stand_beside_it_is_refused(tmp_path):
    file = tmp_path / "results.json"
    write_results(file, some_results())
    data = json.loads(file.read_text())
    data["claims"][0]["verdict"] = "reproduced"
    file.write_text(json.dumps(data))
    with pytest.raises(UserError, match="verdict: unknown 'reproduced'"):
        read_results(file)


def test_numbers_that_are_not_finite_become_null():
    row = Row("a", "b", 1.0, math.inf, (math.nan, np.float64(2)))
    assert (row.measured, row.ci95) == (None, (None, 2.0))
    assert type(Row("a", np.float64(3)).column) is float


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["schema"], 3, "schema: 3 is not allowed; allowed: 2"),
        (["claims", 0, "verdict"], "reproducd", "verdict: unknown 'reproducd'; allowed: unclear"),
        (["claims", 0, "parts", 0, "here"], "fine", "here: unknown 'fine'"),
        (
            ["exhibits", 0, "rows", 0, "sample"],
            {"statistic": "mean", "values": [["8"]]},
            "values[0][0]: '8' is not allowed; allowed: a number",
        ),
        (["exhibits", 0, "kind"], "picture", "kind: unknown 'picture'"),
        (["exhibits", 0, "rows", 0, "ci95"], [1], "ci95: [1] is not allowed; allowed: a list of 2"),
        (["exhibits", 0, "rows", 0, "mesured"], 1, "did you mean 'measured'"),
        (["provenance"], [], "provenance: [] is not allowed; allowed: a table"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, path, value, complaint):
    file = tmp_path / "results.json"
    write_results(file, some_results())
    data = json.loads(file.read_text())
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(UserError) as caught:
        read_results(file)
    assert complaint in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_key_and_a_missing_file_are_named(tmp_path):
    file = tmp_path / "results.json"
    with pytest.raises(UserError, match="missing"):
        read_results(file)
    write_results(file, some_results())
    data = json.loads(file.read_text())
    del data["claims"][0]["statement"]
    file.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"claims\[0\]\.statement: missing"):
        read_results(file)
