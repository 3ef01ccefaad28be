import math
from itertools import pairwise

import torch

from harness.algorithms.schedules import (
    Exponential,
    Halving,
    Hand,
    Pace,
    Search,
    trial_losses,
)
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout


def test_hand_keeps_the_rate_while_the_held_out_loss_falls():
    hand, pace = Hand(0.1, gain=0.01), Pace(0.1)
    hand.after_test(pace, 2.0)
    hand.after_test(pace, 1.97)
    assert pace == Pace(0.1, held_out=1.97)


def test_hand_without_gains_reaches_exp_minus_seven_in_one_pass():
    schedule, pace = Hand(1.0), Pace(1.0, held_out=2.0)
    for _ in range(schedule.tests_a_pass):
        schedule.after_test(pace, 2.0)
    assert math.isclose(pace.rate, 0.999**7000)
    assert 0.0009 < pace.rate < 0.00092


def test_exponential_falls_to_its_last_share_in_equal_ratios_and_stays():
    schedule, pace = Exponential(0.32, passes=15), Pace(0.32)
    rates = [pace.rate]
    for done in range(1, 17):
        schedule.after_pass(pace, done, None)
        rates.append(pace.rate)
    assert math.isclose(rates[14], 0.0032)
    assert rates[14] == rates[15] == rates[16]
    ratios = [b / a for a, b in pairwise(rates[:15])]
    assert all(math.isclose(ratio, 0.01 ** (1 / 14)) for ratio in ratios)


def test_an_exponential_schedule_of_one_pass_keeps_its_rate():
    schedule, pace = Exponential(0.32, passes=1), Pace(0.32)
    schedule.after_pass(pace, 1, None)
    assert pace == Pace(0.32)


def test_search_takes_the_rate_of_the_lowest_trial_loss():
    assert Search(clear=0.0).choose([4, 8, 2], [5.0, 6.0, 4.0]) == 2


def test_search_keeps_the_last_rate_unless_another_is_clearly_better():
    search = Search(clear=0.1)
    assert search.choose([4, 8, 2], [5.0, 6.0, 4.6]) == 4
    assert search.choose([4, 8, 2], [5.0, 6.0, 4.4]) == 2


def test_search_leaves_a_rate_that_diverges_in_its_trial():
    search = Search()
    assert search.choose([4, 8, 2], [math.nan, math.inf, 4.4]) == 2
    assert search.choose([4, 8, 2], [math.nan, math.inf, math.nan]) == 2


def test_search_tries_the_last_rate_and_rungs_on_both_sides():
    assert Search(factor=2.0, rungs=2).ladder(1.0) == [1.0, 2.0, 0.5, 4.0, 0.25]
    assert Search(factor=2.0, rungs=2, rises=False).ladder(1.0) == [1.0, 0.5, 0.25]


def test_halving_begins_with_small_gains_and_stops_on_smaller_ones():
    schedule, pace = Halving(1.0), Pace(1.0)
    seen = []
    for passes, accuracy in enumerate([0.5, 0.52, 0.523, 0.543, 0.5435], start=1):
        schedule.after_pass(pace, passes, accuracy)
        seen.append((pace.rate, pace.halving, pace.stop))
    assert seen == [
        (1.0, False, False),
        (1.0, False, False),
        (0.5, True, False),
        (0.25, True, False),
        (0.25, True, True),
    ]


def test_trial_descents_equal_descents_one_at_a_time_and_leave_the_model_alone():
    layout = Layout((3, 4, 2))
    net = Dnn(layout)
    draw = torch.Generator().manual_seed(0)
    model = torch.randn(layout.parameters, dtype=torch.float64, generator=draw)
    before = model.clone()
    data = [
        Minibatch(
            torch.randn(1, 5, 3, dtype=torch.float64, generator=draw),
            torch.randint(0, 2, (1, 5), generator=draw),
        )
        for _ in range(4)
    ]
    rates = [0.0, 0.3, 0.01]
    together = trial_losses(net.gradient, model, rates, data)
    for rate, loss in zip(rates, together, strict=True):
        theta, alone = model.clone().unsqueeze(0), 0.0
        for minibatch in data:
            out = torch.empty_like(theta)
            alone += float(net.gradient(theta, *minibatch, out))
            theta = theta - rate * out
        assert math.isclose(alone, loss, rel_tol=1e-12)
    assert torch.equal(model, before)


def test_a_chunk_shorter_than_a_trial_is_searched_only_if_trials_need_not_be_whole():
    strict, lenient = Search(whole_trials=True), Search()
    assert [strict.tries(117, left) for left in (41, 42, 200)] == [False, True, True]
    assert strict.tries(10_000, 299) is False  # 3% of a large chunk are 300
    assert lenient.tries(117, 1)
