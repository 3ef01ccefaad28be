from __future__ import annotations

from dataclasses import replace

from harness.judge import ABOVE, Claim, Part, Results, mean_ci, read_results
from harness.judge.claims import rule_at_least
from harness.judge.parts import LOOKS, Precondition, Quantity, claim_of
from reports.abstract import EARLIER, answer, has_power, lines

FACTS = {"differences": [{"what": "training speech", "paper": "500 h", "here": "18 min"}]}


def results(*claims):
    return Results("paper1", "laptop", "speech", (11, 12), FACTS, (), claims)


def claim(id_, values, **choices):
    quantity = Quantity("", 1.0, mean_ci(values), ABOVE, 1.0)
    return claim_of(id_, f"{id_} holds", "Table 1", "x", [quantity], (id_,), **choices)


CLEAR, CLEARER = claim("clear", [1.0, 1.1, 0.9]), claim("clearer", [1.0, 1.01, 0.99])


def test_the_first_line_counts_every_verdict(built):
    told = answer(read_results(built / "results.json"))
    assert told == (
        "Of 5 claims at laptop scale: 1 reproduced, 1 holds here, 2 unclear, 0 mixed, 0 fails here "
        "and 1 contradicted."
    )


def test_runs_seeds_corpus_and_speech_are_told():
    assert lines(results(CLEAR, CLEARER))[1] == (
        "They rest on 2 runs with 2 seeds; corpus speech, training speech 18 min."
    )


def test_answers_that_the_correction_takes_back_are_told_as_judged_by_themselves():
    fallen = [replace(each, corrected="unclear") for each in (CLEAR, CLEARER)]
    told = lines(results(*fallen))
    assert "2 claims at laptop scale, each judged by itself: 2 reproduced" in told[0]
    assert told[-1].startswith("Of the 2 answers that hold or fail, and could have been others, 0")
    kept = [replace(each, corrected="holds") for each in (CLEAR, CLEARER)]
    assert lines(results(*kept))[:3] == lines(results(CLEAR, CLEARER))[:3]


def test_several_looks_are_told_with_why_p_values_count_more_than_once():
    seen = replace(CLEAR, corrected="holds")
    twice = replace(results(seen), provenance={**FACTS, LOOKS: 2})
    assert "the 2 looks at them while seeds were added" in lines(twice)[-1]


def test_why_answers_do_not_bear_on_the_paper_is_counted_by_its_three_reasons():
    unmet = Precondition("passes", mean_ci([1.0, 1.1, 0.9]), rule_at_least(2.0))
    one = claim("unmet", [1.0, 1.1, 0.9], presumes=[unmet])
    other = claim("open", [1.0, 1.1, 0.9], undetermined="No machine is named.")
    weak = claim("weak", [9.0, -7.0, 1.0])
    assert [each.verdict for each in (one, other, weak)] == ["holds here", "holds here", "unclear"]
    assert lines(results(one, other, weak, weak))[2].startswith(
        "4 of the answers do not bear on the paper: 1 for conditions that do not hold here, "
        "1 for what it leaves open, 2 for too few seeds."
    )


def test_results_of_an_earlier_judge_say_so():
    part = Part("a − b", "above 0", 2.0, (1.0, 3.0), "holds")
    old = Claim("c", "s", "w", "x", "above 0", 2.0, (1.0, 3.0), "holds", parts=(part,))
    assert lines(results(old))[2] == EARLIER
    assert not has_power(results(old))


def test_four_lines_at_most_and_none_of_what_is_not_there():
    assert len(lines(results(CLEAR, CLEARER))) <= 4
    assert lines(Results("paper1", "laptop", "speech", (), {}, (), ())) == [
        "They rest on 0 runs with 0 seeds; corpus speech."
    ]
