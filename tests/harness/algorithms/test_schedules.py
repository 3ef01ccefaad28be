from __future__ import annotations

import math

import torch

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout
from harness.algorithms.contract import Minibatch
from harness.algorithms.rate_search import trial_losses
from harness.algorithms.schedules import Halving, Hand, Search


def test_hand_keeps_the_rate_while_the_held_out_loss_falls():
    assert Hand(0.1, gain=0.01).after_test(0.1, before=2.0, now=1.97) == 0.1


def test_hand_without_gains_reaches_exp_minus_seven_in_one_pass():
    schedule, rate = Hand(1.0), 1.0
    for _ in range(schedule.tests_a_pass):
        rate = schedule.after_test(rate, before=2.0, now=2.0)
    assert math.isclose(rate, 0.999**7000)
    assert 0.0009 < rate < 0.00092


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


def test_halving_begins_with_small_gains_and_stops_on_smaller_ones():
    schedule = Halving(1.0)
    assert schedule.after_pass(1.0, False, gain=0.02) == (1.0, False, False)
    assert schedule.after_pass(1.0, False, gain=0.003) == (0.5, True, False)
    assert schedule.after_pass(0.5, True, gain=0.02) == (0.25, True, False)
    assert schedule.after_pass(0.5, True, gain=0.0005) == (0.5, True, True)


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
