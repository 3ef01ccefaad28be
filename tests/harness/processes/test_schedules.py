"""Real workers' own code under a seeded adversary; `schedules` says what must hold."""

import math

import pytest

from harness.processes.transport import SILENT_AFTER_S
from tests.harness.processes.schedules import KINDS, Schedule, play
from tests.nightly import runs


@pytest.mark.parametrize("schedules", runs(8, 200))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_each_contribution_is_folded_once_and_the_record_replays(
    kind: str, schedules: int
) -> None:
    for seed in range(1000, 1000 + schedules):
        try:
            play(kind, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_a_schedule_is_the_same_twice() -> None:
    assert play("a server", 21) == play("a server", 21)


def test_a_worker_that_stops_for_ever_is_done_without_in_seconds() -> None:
    def stop(schedule: Schedule) -> None:
        worker = schedule.places[1]
        schedule.town.at(3.0, lambda: worker.stop(math.inf))

    schedule = Schedule(5, disturb=stop)
    assert schedule.workers > 1
    outcome = schedule.play()
    assert [line for line in outcome.told if line.startswith("worker 0 is ")]
    assert outcome.attempts == 1
    assert schedule.town.now < 3.0 + SILENT_AFTER_S + 15.0
