"""Laws of a ratio over scale against closed forms; their intervals against Student's and truth."""

import math

import numpy as np
import pytest

from harness.judge.claims import Rule
from harness.judge.scaling import Size, draw_ratios, fit, follow, weights_of
from harness.judge.statistics import mean_ci

AT = (1.0, 3.0, 10.0, 30.0, 100.0)
SEEDS = tuple(range(6))


def exact(law: dict[float, float], seeds: tuple[int, ...] = SEEDS) -> list[Size]:
    """Sizes whose seeds have one ratio, over denominators that differ."""
    return [
        Size(at, seeds, tuple((ratio * (1.0 + seed), 1.0 + seed) for seed in seeds))
        for at, ratio in law.items()
    ]


def fitted(sizes: list[Size], law: str):
    found = fit([s.at for s in sizes], np.array([[s.ratio for s in sizes]]), weights_of(sizes), law)
    assert found is not None
    return found


def test_power_law_without_noise_is_found():
    sizes = exact({at: 1.0 + 1.7 * at**-0.35 for at in AT})
    found = fitted(sizes, "power")
    assert found.factor[0] == pytest.approx(1.7, rel=1e-6)
    assert found.exponent[0] == pytest.approx(0.35, rel=1e-6)
    assert found.predict(500.0)[0] == pytest.approx(1.0 + 1.7 * 500.0**-0.35, rel=1e-8)


def test_two_sizes_give_the_line_through_their_logarithms():
    # Closed form: ln(ratio - 1) is linear in ln n.
    a = math.log(0.9 / 0.4) / math.log(10.0 / 2.0)
    found = fitted(exact({2.0: 1.9, 10.0: 1.4}), "power")
    assert found.exponent[0] == pytest.approx(a, rel=1e-6)
    assert found.predict(50.0)[0] == pytest.approx(1.0 + 0.4 * 5.0**-a, rel=1e-7)


@pytest.mark.parametrize(("floor", "factor"), [(0.2, 1.1), (0.1, -0.3)])
def test_floor_without_noise_is_found(floor, factor):
    found = fitted(exact({at: 1.0 + floor + factor * at**-0.6 for at in AT}), "power above a floor")
    assert found.floor[0] == pytest.approx(floor, abs=1e-6)
    assert found.exponent[0] == pytest.approx(0.6, rel=1e-5)
    assert found.predict(1e9)[0] == pytest.approx(1.0 + floor, abs=1e-5)
    assert not found.is_at_bound("power above a floor")


def test_weighted_fit_is_that_of_a_general_minimiser():
    from scipy.optimize import minimize  # pyright: ignore[reportMissingTypeStubs]

    rng = np.random.default_rng(3)
    ratios = 1.0 + 1.2 * np.array(AT) ** -0.4 + 0.05 * rng.normal(size=5)
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0])

    def misfit(parameters):
        c, a = parameters
        return float((weights * (ratios - 1.0 - c * np.array(AT) ** -a) ** 2).sum())

    oracle = minimize(misfit, (1.0, 0.5), method="Nelder-Mead", options={"xatol": 1e-9})
    found = fit(AT, ratios[None], weights, "power")
    assert found is not None
    assert (found.factor[0], found.exponent[0]) == pytest.approx(tuple(oracle.x), rel=1e-4)


def test_too_few_sizes_have_no_law():
    ratios = np.ones((1, 2))
    assert fit(AT[:1], ratios[:, :1], np.ones(1), "power") is None
    assert fit(AT[:2], ratios, np.ones(2), "power above a floor") is None


def test_draws_of_one_size_have_students_interval():
    values = (1.3, 1.5, 1.1)
    (size,) = [Size(1.0, (1, 2, 3), tuple((value, 1.0) for value in values))]
    low, high = np.quantile(draw_ratios([size], 200_000)[:, 0], [0.025, 0.975])
    student = mean_ci(values)
    assert (low, high) == pytest.approx(student.ci95, abs=0.02 * (student.high - student.low))


def test_seeds_that_two_sizes_share_move_together():
    pairs = tuple((1.0 + 0.1 * seed, 1.0) for seed in SEEDS)
    shared = draw_ratios([Size(1.0, SEEDS, pairs), Size(2.0, SEEDS, pairs)], 4000)
    others = tuple(seed + 100 for seed in SEEDS)
    apart = draw_ratios([Size(1.0, SEEDS, pairs), Size(2.0, others, pairs)], 4000)
    assert np.corrcoef(shared.T)[0, 1] > 0.7
    assert abs(np.corrcoef(apart.T)[0, 1]) < 0.1


@pytest.mark.nightly
def test_interval_at_the_papers_size_contains_the_truth_as_often_as_it_says():
    rng, truth, inside = np.random.default_rng(11), 1.0 + 1.6 * 500.0**-0.4, 0
    for _ in range(100):
        sizes: list[Size] = []
        for at, count in zip(AT, (6, 6, 6, 6, 3), strict=True):
            under = 0.1 * np.exp(0.1 * rng.normal(size=count))
            over = under * (1.0 + 1.6 * at**-0.4) * np.exp(0.03 * rng.normal(size=count))
            pairs = tuple(zip(over.tolist(), under.tolist(), strict=True))
            sizes.append(Size(at, SEEDS[:count], pairs))
        law = fit(AT, draw_ratios(sizes, 300), weights_of(sizes), "power")
        assert law is not None
        low, high = np.quantile(law.predict(500.0), [0.025, 0.975])
        inside += low <= truth <= high
    # 95% of 100 are 95, with a standard deviation of 2.2.
    assert inside >= 89


def answer(law: dict[float, float], **more) -> str:
    # A little scatter, or intervals have no width.
    apart = [1.0 + 1e-4 * (-1) ** seed for seed in SEEDS]
    noisy = [
        Size(at, SEEDS, tuple((ratio * factor, 1.0) for factor in apart))
        for at, ratio in law.items()
    ]
    return follow("", noisy, (500.0, 1.03), Rule(high=1.08), draws=400, **more).word


def test_word_follows_the_interval_and_never_a_curve_that_is_not_whole():
    falling = {at: 1.0 + 1.6 * at**-0.8 for at in AT}
    level = {at: 1.3 + 0.1 * at**-0.5 for at in AT}
    assert answer(falling) == "in the band"
    assert answer(level) == "outside"
    assert answer(level, whole=False) == "unclear"


def test_law_that_misses_the_size_held_out_answers_nothing():
    # A kink that neither law has: flat, and then a fall at the largest size alone.
    kink = {1.0: 1.9, 3.0: 1.89, 10.0: 1.88, 30.0: 1.87, 100.0: 1.02}
    trend = follow("", exact(kink), (500.0, None), Rule(high=1.08), draws=400)
    assert trend.law is not None
    assert trend.law.held_out is not None
    assert not trend.law.held_out.holds
    assert trend.word == "unclear"


def test_a_floor_below_zero_is_held_at_zero_and_such_a_law_is_not_chosen():
    # The ratio falls to 0.9 far out: a floor that is allowed leaves the power law's own fit.
    sizes = exact({at: 0.9 + 0.9 * at**-0.3 for at in AT})
    trend = follow("", sizes, (500.0, None), Rule(high=1.08), draws=400)
    power, law = trend.laws
    assert (law.floor, law.at_bound, power.at_bound, trend.chosen) == (0.0, True, False, "power")
    assert (law.factor, law.exponent) == pytest.approx((power.factor, power.exponent), rel=1e-6)


@pytest.mark.parametrize("ratio", [lambda at: 1.3, lambda at: 1.0 + 0.5 * at**-4.0])
def test_an_exponent_at_the_end_of_its_search_is_marked_and_answers_nothing(ratio):
    sizes = exact({at: ratio(at) for at in AT})
    trend = follow("", sizes, (500.0, None), Rule(high=1.08), draws=400)
    assert trend.laws[0].at_bound
    assert trend.chosen != "power"


def test_a_size_with_two_seeds_is_left_out_and_the_answer_is_unclear():
    ratios = {at: 1.0 + 1.6 * at**-0.8 for at in AT}
    few = [*exact(ratios)[:-1], *exact({AT[-1]: 9.0}, (1, 2))]
    trend = follow("", few, (500.0, None), Rule(high=1.08), draws=400)
    (power, _), word = trend.laws, trend.word
    assert (power.value, word) == (pytest.approx(1.0 + 1.6 * 500.0**-0.8, rel=1e-6), "unclear")
    assert follow("", exact(ratios, (1, 2)), (500.0, None), Rule(high=1.08)).laws == ()
