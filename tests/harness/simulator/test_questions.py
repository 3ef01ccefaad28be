"""A protocol that asks while it is simulated, of another application than speech."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from harness.base.settings import Spec
from harness.simulator import Contributions, Folds, Simulation, Timeline, concat
from harness.simulator.protocols.contract import ASKS, CLOCK_FIELDS, DONE, FULL, TimingProtocol
from tests.harness.simulator.conftest import UNIT_JOB, make_cluster

OPEN = -1


class Begun(NamedTuple):
    worker: np.ndarray
    rollout: np.ndarray


class State(NamedTuple):
    clock: np.ndarray
    length: np.ndarray


@dataclass(frozen=True)
class Lengths(Spec, TimingProtocol):
    """One generator makes a rollout after another; only a policy knows how long each will be."""

    name = "rollouts"
    can = frozenset({"questions"})

    def start(self, cluster, workers):
        return State(np.zeros(1, np.dtype([*CLOCK_FIELDS])), np.full(1, OPEN))

    def wake(self, state):
        state.clock[0]["busy"] = 1

    def advance(self, state, costs, limits, room, spans):
        clock, ends_s, first, why = state.clock[0], [], int(state.clock[0]["version"]), DONE
        while clock["version"] < limits.version:
            why = FULL if len(ends_s) == room else ASKS if state.length[0] == OPEN else DONE
            if why != DONE:
                break
            clock["now_s"] += costs.compute_s[0] * state.length[0]
            clock["version"] += 1
            clock["dispatched"] += 1
            state.length[0] = OPEN
            ends_s.append(float(clock["now_s"]))
        numbers = np.arange(first, first + len(ends_s), dtype=np.int64)
        return why, Timeline(folds=Folds(numbers, np.array(ends_s)))

    def in_flight(self, state):
        return Contributions()

    def asked(self, state):
        workers = np.flatnonzero(state.length == OPEN)
        return Begun(workers, state.clock["version"][workers])

    def answer(self, state, who, values):
        if np.any(state.length[who] != OPEN):
            raise ValueError("the length of a rollout is answered once")
        state.length[who] = values


def test_segments_end_where_an_answer_is_needed_and_go_on_with_it_also_after_a_restore():
    simulation, lengths = Simulation(make_cluster(1), Lengths(), UNIT_JOB), [3, 0, 5, 2]
    segments = []
    for number, length in enumerate(lengths):
        segments.append(simulation.advance(folds=len(lengths) - simulation.version))
        assert len(segments[-1].folds) == (number > 0)
        begun = simulation.asked()
        assert [column.tolist() for column in begun] == [[0], [number]]
        simulation = simulation.with_state(simulation.state())
        simulation.answer(begun.worker, np.array([length]))
        assert len(simulation.asked().worker) == 0
    segments.append(simulation.advance(folds=1))
    whole = concat(segments)
    assert whole.folds.time_s.tolist() == [3.0, 3.0, 8.0, 10.0]
    assert whole.folds.fold.tolist() == [0, 1, 2, 3]


def test_what_is_answered_was_asked():
    simulation = Simulation(make_cluster(1), Lengths(), UNIT_JOB)
    simulation.answer(np.array([0]), np.array([4]))
    with pytest.raises(ValueError, match="answered once"):
        simulation.answer(np.array([0]), np.array([4]))
