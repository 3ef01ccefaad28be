"""Are verdicts right as often as they say? Results simulated with the paper right and wrong."""

from collections import Counter

import numpy as np
import pytest

from harness.judge.claims import ABOVE, Rule
from harness.judge.parts import Quantity, claim_of, correct_verdicts, power
from harness.judge.statistics import mean_ci, ratio_ci

TRIALS = 2000
SEEDS = 6


def shares(verdicts):
    counts = Counter(verdicts)
    return {name: count / len(verdicts) for name, count in counts.items()}


def claims(rng, rule: Rule, real: float, true: float | None, scatter: float, seeds=SEEDS, parts=1):
    """Claims about a quantity that is really ``real`` and has ``true`` in the paper."""
    for _ in range(TRIALS):
        found = [mean_ci(rng.normal(real, scatter, seeds)) for _ in range(parts)]
        quantities = [Quantity(str(i), true, each, rule, true) for i, each in enumerate(found)]
        yield claim_of("c", "", "", "", quantities, ())


@pytest.fixture
def rng():
    return np.random.default_rng(17)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("rule", "end"), [(ABOVE, 0.0), (Rule(-1.0, 1.0), 1.0), (Rule(high=1.0), 1.0)]
)
def test_a_wrong_paper_is_called_reproduced_in_at_most_one_of_forty(rng, rule, end):
    # the quantity lies at the very end of the band, where it is hardest to tell
    found = shares([c.here for c in claims(rng, rule, end, 0.5, 0.3)])
    assert found.get("holds", 0.0) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / TRIALS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("parts", [1, 3, 10])
def test_a_right_paper_is_contradicted_in_at_most_one_of_twenty_whatever_the_parts(rng, parts):
    # the paper is right by a hair in every part: the hardest case for a claim of many parts
    found = [c.here for c in claims(rng, ABOVE, 1e-9, 1.0, 0.4, parts=parts)]
    assert shares(found).get("fails", 0.0) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / TRIALS)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rule", [ABOVE, Rule(0.0, 1.2), Rule(high=1.0)])
@pytest.mark.parametrize("scatter", [0.2, 0.5, 0.9])
def test_the_power_told_is_the_share_of_right_papers_that_are_reproduced(rng, rule, scatter):
    true, hits, told = 0.6, [], []
    for _ in range(TRIALS):
        found = mean_ci(rng.normal(true, scatter, SEEDS))
        hits.append(rule.judge(found) == "holds")
        told.append(power(found, rule, true))
    # each is told from its own scatter, measured with few seeds: half of them too little
    assert np.median(told) == pytest.approx(np.mean(hits), abs=0.1)


def test_the_power_of_a_known_scatter_is_that_of_students_t(rng):
    stats = pytest.importorskip("scipy.stats")
    values = rng.normal(1.0, 1.0, SEEDS)
    found = mean_ci(values)
    error = float(np.std(values, ddof=1) / np.sqrt(SEEDS))
    t = stats.t.ppf(0.975, SEEDS - 1)
    exact = 1 - stats.nct.cdf(t, SEEDS - 1, 0.8 / error)
    assert power(found, ABOVE, 0.8) == pytest.approx(exact, abs=2e-3)


@pytest.mark.nightly
def test_over_many_claims_one_false_verdict_is_rare_after_the_correction(rng):
    false = 0
    for _ in range(400):
        family = [
            claim_of(
                str(i), "", "", "", [Quantity("", "x", mean_ci(rng.normal(0, 1, SEEDS)), ABOVE)], ()
            )
            for i in range(12)
        ]
        false += any(c.corrected in ("holds", "fails") for c in correct_verdicts(family))
    assert false / 400 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_a_ratio_close_to_the_papers_is_reproduced_as_often_as_its_power_says(rng):
    hits, told = [], []
    for _ in range(TRIALS // 4):
        many = rng.normal(1.0, 0.03, SEEDS)
        one = many * rng.normal(1.034, 0.03, SEEDS)
        found = ratio_ci(one, many)
        hits.append(Rule(high=1.08).judge(found) == "holds")
        told.append(power(found, Rule(high=1.08), 1.034))
    assert np.median(told) == pytest.approx(np.mean(hits), abs=0.1)
