import numpy as np
import pytest
from scipy import stats

from harness.simulator.cluster import JITTER_LAWS
from harness.simulator.costs import Law, factor, lognormal, normal, philox, purpose_key

DRAWS = 20_000
NONE = np.zeros(0)
WORD = np.uint64


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers published with Random123
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_published_answers(counter, key, expected):
    assert philox(*map(WORD, counter), WORD(key)) == expected


def draws(law: str, cv: float, values: np.ndarray = NONE, purpose: str = "test") -> np.ndarray:
    key = purpose_key(7, purpose)
    code = JITTER_LAWS.index(law)
    return np.array([factor(Law(code, cv, values, key), 3, step) for step in range(DRAWS)])


@pytest.mark.parametrize(
    ("law", "cv", "exact"),
    [
        ("lognormal", 0.5, stats.lognorm(s=np.sqrt(np.log(1.25)), scale=1 / np.sqrt(1.25))),
        ("gamma", 0.5, stats.gamma(a=4.0, scale=0.25)),
        ("gamma", 2.0, stats.gamma(a=0.25, scale=4.0)),
        ("shifted-exponential", 0.4, stats.expon(loc=0.6, scale=0.4)),
        ("shifted-exponential", 1.0, stats.expon()),
    ],
)
def test_draws_follow_the_named_law_with_mean_one(law, cv, exact):
    assert exact.mean() == pytest.approx(1.0)
    assert exact.std() == pytest.approx(cv)
    assert stats.kstest(draws(law, cv), exact.cdf).pvalue > 0.01


def test_the_empirical_law_draws_each_value_equally_often():
    values = np.array([0.5, 1.0, 1.5])
    counts = np.unique(draws("empirical", 0.0, values), return_counts=True)
    assert counts[0].tolist() == values.tolist()
    assert stats.chisquare(counts[1]).pvalue > 0.01


def test_a_constant_law_and_a_law_without_spread_are_exactly_one():
    assert set(draws("constant", 0.0)) == {1.0}
    for law in ("lognormal", "gamma", "shifted-exponential"):
        assert set(draws(law, 0.0)) == {1.0}


def test_a_draw_depends_on_worker_step_and_purpose_and_on_no_other_draw():
    key, other = purpose_key(0, "jitter"), purpose_key(0, "straggler")
    forward = [lognormal(key, 0, step, 0.3) for step in range(50)]
    backward = [lognormal(key, 0, step, 0.3) for step in reversed(range(50))]
    assert forward == backward[::-1]
    assert len({*forward, lognormal(key, 1, 0, 0.3), lognormal(other, 0, 0, 0.3)}) == 52


def test_streams_of_two_workers_are_uncorrelated():
    key = purpose_key(0, "jitter")
    table = np.array([[normal(key, w, s, 0) for s in range(5000)] for w in range(2)])
    assert abs(np.corrcoef(table)[0, 1]) < 4 / np.sqrt(5000)
