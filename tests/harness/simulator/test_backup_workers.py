import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Fault, Jitter
from harness.simulator.protocols.backup_workers import BackupWorkers

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.05, "jitter": EXPONENTIAL}


def test_a_synchronous_round_lasts_as_long_as_the_slowest(simulate):
    """The largest of N exponential times has mean 1 + 1/2 + … + 1/N."""
    simulation = simulate(8, protocol=BackupWorkers(0), jitter=EXPONENTIAL)
    simulation.advance(folds=40_000)
    expected = sum(1.0 / k for k in range(1, 9))
    assert simulation.now_s / 40_000 == pytest.approx(expected, rel=0.01)


def test_backups_make_rounds_shorter(simulate):
    ends = [
        simulate(10, protocol=BackupWorkers(backups), **BUSY).advance(folds=500).folds.time_s[-1]
        for backups in (0, 1, 3)
    ]
    assert ends[0] > 1.2 * ends[1] > 1.2 * ends[2]


def test_as_many_backups_as_workers_are_refused_and_one_worker_alone_is_waited_for(simulate):
    def run(workers, backups):
        return simulate(workers, protocol=BackupWorkers(backups), **BUSY)

    for backups in (5, 7):
        with pytest.raises(UserError, match=f"backups: {backups} .* 5 workers; allowed: at most 4"):
            run(5, backups)
    assert len(run(5, 4).advance(folds=50).folded()) == 50
    assert run(1, 3).advance(folds=50).sha256() == run(1, 0).advance(folds=50).sha256()


def test_copies_of_a_round_follow_one_another_on_a_shared_link(simulate):
    """Of N workers the last has the model after N copies; its push, and its fold, come last."""
    durations = {"copy_s": 0.25, "fold_s": 0.125, "sharing": "fifo"}
    simulation = simulate(5, protocol=BackupWorkers(0), **durations)
    assert simulation.advance(folds=3).folds.time_s.tolist() == [2.625, 5.25, 7.875]


def test_rounds_of_the_only_worker_that_is_present_are_all_recorded(simulate):
    absent = (Fault("late", workers=tuple(range(1, 8)), at_s=(1e9,)),)
    simulation = simulate(8, protocol=BackupWorkers(0), faults=absent)
    assert len(simulation.advance(seconds=200_000.0).folds) == 200_000


def test_a_round_takes_a_lost_message_when_it_is_sent_again(simulate):
    lossy = (Fault("message", probability=0.3, retry_s=0.5),)
    simulation = simulate(4, protocol=BackupWorkers(0), copy_s=0.2, faults=lossy)
    segment = simulation.advance(folds=200)
    assert len(segment.lost()) == 0
    durations = np.diff(segment.folds.time_s, prepend=0.0)
    # each further try lasts the pause and another copy
    assert set(np.unique(np.round((durations - 1.4) / 0.7, 9))) <= set(range(20))
    # all four arrive at once with probability 0.7⁴
    assert np.mean(durations < 1.5) == pytest.approx(0.7**4, abs=0.1)
