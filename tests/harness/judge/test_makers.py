from functools import partial

from harness.judge.builders import DidNotEnd, Maker, build_claim


def claimed(subject, runs, *, problem):
    """Rates fall with staleness.

    Further lines are for whoever reads the code.
    """
    raise DidNotEnd


def test_a_claim_whose_runs_did_not_end_is_stated_also_where_its_maker_is_partial():
    for make in (partial(claimed, problem="x"), partial(partial(claimed), problem="x")):
        found = build_claim(Maker("x.claim", (), make), None, {})
        assert (found.id, found.statement) == ("x.claim", "Rates fall with staleness.")
        assert found.verdict == "unclear"
