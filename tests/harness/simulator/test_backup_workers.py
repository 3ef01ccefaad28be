import json

import pytest

from harness.base.errors import UserError
from harness.cli import main
from harness.simulator.cluster import Jitter
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.simulation import Simulation

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.05, "jitter": EXPONENTIAL}


@pytest.fixture
def run(cluster, unit_job):
    def build(workers=5, backups=1, durations=BUSY, seed=0):
        machine = cluster(workers, **durations)
        return Simulation(machine, BackupWorkers(backups), unit_job, workers, seed)

    return build


def test_a_synchronous_round_lasts_as_long_as_the_slowest(run):
    """The largest of N exponential times has mean 1 + 1/2 + … + 1/N."""
    simulation = run(8, 0, {"jitter": EXPONENTIAL})
    simulation.advance(folds=40_000)
    expected = sum(1.0 / k for k in range(1, 9))
    assert simulation.now_s / 40_000 == pytest.approx(expected, rel=0.01)


def test_backups_make_rounds_shorter(run):
    ends = []
    for backups in (0, 1, 3):
        simulation = run(10, backups)
        simulation.advance(folds=500)
        ends.append(simulation.now_s)
    assert ends[0] > 1.2 * ends[1] > 1.2 * ends[2]


def test_time_that_cannot_pass_is_an_error(cluster, free_job):
    machine = cluster(3, compute_s=0.0)
    with pytest.raises(UserError, match="no time passes"):
        Simulation(machine, BackupWorkers(1), free_job, 3).advance(seconds=1.0)


def test_as_many_backups_as_workers_are_refused_and_one_worker_alone_is_waited_for(run):
    for backups in (5, 7):
        with pytest.raises(UserError, match=f"backups: {backups} .* 5 workers; allowed: at most 4"):
            run(5, backups)
    assert len(run(5, 4).advance(folds=50).folded()) == 50
    assert run(1, 3).advance(folds=50).sha256() == run(1, 0).advance(folds=50).sha256()


def test_default_worker_counts_leave_room_for_the_backups(capsys):
    cluster = [
        "simulate",
        "reproductions/clusters/wide-area-10.toml",
        "--protocol",
        "backup_workers",
    ]
    asked = [*cluster, "--backups", "3", "--folds", "9", "--network", "10-10", "--json", "-"]
    assert main(asked) == 0
    assert [row["workers"] for row in json.loads(capsys.readouterr().out)] == [1, 4, 8, 10]


def test_workers_on_a_shared_link_are_refused(run):
    with pytest.raises(UserError, match="sharing"):
        run(durations={"copy_s": 1.0, "sharing": "fifo"})
