"""Problems against naive solvers, and the split into training and held-out prompts."""

import itertools

import pytest

from harness.base.errors import UserError
from harness.rollouts.problems import END, Addition, Problem, Reaching, Sorting, decode, encode

KINDS = [Addition(), Addition(digits=12, tail=2.0), Reaching(), Reaching(2, 2), Sorting()]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_solutions_are_right_and_fit_the_context(kind):
    drawn = [kind.train(number, seed=1) for number in range(200)] + kind.held_out(100)
    for each in drawn:
        assert kind.reward(each, each.solution) == 1.0, decode(each.prompt + each.solution)
        assert kind.reward(each, each.solution[:-1]) == 0.0
        assert len(each.prompt) + len(each.solution) <= kind.context
        assert max(each.prompt + each.solution) < kind.vocabulary
    assert len({each.difficulty for each in drawn}) > (kind != Reaching(2, 2))


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_no_prompt_is_both_trained_on_and_held_out(kind):
    trained = {kind.train(number, seed).prompt for number in range(300) for seed in (0, 1)}
    assert not trained & {each.prompt for each in kind.held_out(300)}


def test_a_problem_is_the_same_each_time_and_another_with_another_seed():
    kind = Addition()
    assert kind.train(7, seed=3) == kind.train(7, seed=3)
    assert [kind.train(k, 3) for k in range(5)] != [kind.train(k, 4) for k in range(5)]
    assert kind.held_out(4) == kind.held_out(9)[:4]


def test_an_addition_is_written_in_columns_with_carries():
    kind = Addition()
    assert kind.solve("75+68=") == "763>584>=341"
    assert kind.solve("21+30=") == "235|101|=51"
    assert kind.is_right("75+68=", "=341")
    assert kind.is_right("75+68=", "1=2=341")
    for wrong in ("341", "=143", "=3411", "=", "", "=34", "=3+1"):
        assert not kind.is_right("75+68=", wrong)


@pytest.mark.parametrize("first", range(0, 100, 7))
def test_every_sum_of_two_digits_and_no_other_is_right(first):
    kind = Addition()
    for second in (0, 5, 38, 99):
        prompt = f"{f'{first:02}'[::-1]}+{f'{second:02}'[::-1]}="
        right = [k for k in range(250) if kind.is_right(prompt, f"={str(k)[::-1]}")]
        assert right == [first + second]


def test_digits_have_a_heavy_tail():
    drawn = [Addition(digits=6, tail=1.0).train(k, 0).difficulty for k in range(2000)]
    weights = [1 / d for d in range(2, 7)]
    for digits, weight in zip(range(2, 7), weights, strict=True):
        assert drawn.count(digits) / 2000 == pytest.approx(weight / sum(weights), abs=0.04)


def reachable(given):
    """Every number that some order of the given ones reaches, with one sign between two."""
    found = set()
    for count in range(2, len(given) + 1):
        for order in itertools.permutations(given, count):
            for signs in itertools.product("+-*", repeat=count - 1):
                value = order[0]
                for sign, second in zip(signs, order[1:], strict=True):
                    value = {"+": value + second, "-": value - second, "*": value * second}[sign]
                found.add(value)
    return found


def test_a_number_is_reached_where_it_can_be():
    kind = Reaching()
    for target in sorted(reachable((2, 3, 7))):
        assert kind.is_right(f"2,3,7={target}", kind.solve(f"2,3,7={target}"))
    missing = next(k for k in itertools.count(1) if k not in reachable((2, 3, 7)))
    with pytest.raises(ValueError, match="cannot be reached"):
        kind.solve(f"2,3,7={missing}")


def test_each_step_to_a_number_is_verified():
    wrong = """3*4=12,5+12=17 3*4=12 3*4=13,13+4=17 3*4=12,12+5=17, 4*4=16,16+1=17
        3*4=12,12+5=18 3*4=012,12+5=17 17 =17"""  # a step begins with the result of the one before
    right = ["3*4=12,12+5=17", "4*3=12,12+5=17"]
    answers = [*right, "", *wrong.split()]
    assert [each for each in answers if Reaching().is_right("3,4,5=17", each)] == right


def test_a_number_with_a_sign_is_written_and_read():
    assert Reaching().is_right("2,5,9=6", "2-5=-3,-3+9=6")


def test_sorting_wants_all_digits():
    kind = Sorting()
    assert kind.is_right("3,1,2,1=", "1,1,2,3")
    assert not kind.is_right("3,1,2,1=", "1,2,3")


def test_an_answer_without_an_end_or_without_tokens_is_wrong():
    kind, problem = Sorting(), Problem(encode("2,1="))
    assert kind.reward(problem, (*encode("1,2"), END)) == 1.0
    assert kind.reward(problem, encode("1,2")) == 0.0
    assert kind.reward(problem, ()) == 0.0
    assert kind.reward(problem, (END, *encode("1,2"), END)) == 0.0


def test_limits():
    with pytest.raises(UserError, match="allowed"):
        Addition(digits=0)
    with pytest.raises(UserError, match="least: 3 is above digits, 2"):
        Addition(digits=2, least=3)
    with pytest.raises(UserError, match="least: 3 is above most, 2"):
        Sorting(most=2)
    with pytest.raises(UserError, match="least: 4 is above most, 3"):
        Reaching(least=4, most=3)
