"""The protocol of rollouts beside a naive walk of the same events."""

import numpy as np

from harness.rollouts.protocol import Rollouts
from tests.harness.rollouts.naive import Walk
from tests.harness.rollouts.test_event_loop import advance, length, random_settings, simulate

FOLDS = 20


def test_events_of_rollouts_over_a_naive_walk(compare):
    settings = random_settings(np.random.default_rng(0), "backpressure", "between")

    def walk() -> None:
        Walk(Rollouts(**settings), [1, 1], settings["sync_s"] or 0.25, length).walk(FOLDS)

    compare(lambda: advance(simulate(settings, 2), FOLDS), walk, at_most=3.0)
