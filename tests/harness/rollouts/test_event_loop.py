"""The protocol against a naive walk, on small random settings whose instants often coincide."""

from typing import Any

import numpy as np
import pytest

from harness.rollouts.protocol import PUBLICATIONS, RULES, Rollouts
from harness.simulator.cluster import Cluster, Device, Link, WorkerGroup, Workload
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from tests.harness.rollouts.naive import Walk
from tests.nightly import runs

FOLDS = 12
WORKLOAD = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=0.0)


def cluster_of(generators: int, slow: bool = False) -> Cluster:
    """Generators, one of which may be slow, with a latency of a quarter of a second."""
    cards = {"card": Device(achieved_flops_per_s=1.0)}
    groups = (WorkerGroup(generators, "card"),)
    if slow:
        groups = (WorkerGroup(generators - 1, "card"), WorkerGroup(1, "card", speed=0.5))
    return Cluster("c", cards, groups, Link(latency_s=0.25))


def length(prompt: int, member: int, attempt: int, version: int) -> int:
    """A number of tokens that depends on everything that a policy's would."""
    return 1 + (prompt * 7 + member * 5 + attempt * 3 + version * 2 + prompt * version) % 9


def random_settings(rng: np.random.Generator, rule: str, publish: str) -> dict[str, Any]:
    """Small settings of binary fractions, so that sums of seconds are exact."""

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    interval = pick(1, 1, 2)
    return {
        "rule": rule, "publish": publish, "interval": interval,
        "eta": pick(0, 1, 2) + (interval - 1) + (pick(0, 0.5) if rule == "backpressure" else 0),
        "slots": pick(1, 2, 3), "group": pick(1, 2, 3), "batch": pick(1, 2, 3),
        "room": pick(1, 2, 64), "decode_s": pick(0.25, 0.5), "sequence_s": pick(0.0, 0.125),
        "prefill_s": pick(0.0, 0.0625), "prompt_tokens": pick(0, 2), "length_scale": pick(1, 2, 3),
        "recompute": pick(True, False), "reward_s": pick(0.0, 0.5, 2.0), "reward_cv": 0.0,
        "environment_s": pick(0.0, 0.25, 3.0), "environment_cv": 0.0,
        "train_s": pick(0.0, 0.5, 4.0), "token_s": pick(0.0, 0.125), "sync_s": pick(0.0, 0.5, None),
    }  # fmt: skip


def advance(simulation: Simulation, folds: int) -> Any:
    """Advance by so many folds, answering on the way."""
    parts, last = [], simulation.version + folds
    while simulation.version < last:
        parts.append(simulation.advance(folds=last - simulation.version))
        answer(simulation)
    return concat(parts)


def answer(simulation: Simulation) -> None:
    """Answer all open questions."""
    asked = simulation.asked()
    members = asked.rollout % simulation.protocol.group
    columns = (asked.prompt, members, asked.attempt, asked.version)
    tokens = [length(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    simulation.answer(asked.rollout, np.maximum(np.array(tokens, np.int64), asked.kept + 1))


def simulate(settings: dict[str, Any], generators: int, slow: bool = False) -> Simulation:
    """A simulation whose lengths are asked for."""
    machine = cluster_of(generators, slow)
    return Simulation(machine, Rollouts(**settings).asking(), WORKLOAD)


def is_same(simulated: float, walked: Any) -> bool:
    """Whether an instant is equal; one that never came is nan in one and None in the other."""
    return np.isnan(simulated) if walked is None else simulated == walked


@pytest.mark.parametrize("cases", runs(3, 9))
@pytest.mark.parametrize("publish", PUBLICATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_equals_a_naive_walk(rule, publish, cases):
    """Instants, order, versions of every token and what is thrown away, all exactly."""
    rng = np.random.default_rng([RULES.index(rule), PUBLICATIONS.index(publish)])
    for number in range(cases):
        settings, generators = random_settings(rng, rule, publish), int(rng.integers(1, 4))
        slow = number % 3 == 0 and generators > 1
        timeline = advance(simulate(settings, generators, slow), FOLDS)
        protocol = Rollouts(**settings)
        sync = 0.25 if protocol.sync_s is None else protocol.sync_s
        paces = [1] * (generators - slow) + [2] * slow
        walk = Walk(protocol, paces, sync, length)
        walk.walk(FOLDS)
        assert timeline.folds.time_s.tolist() == walk.folds, settings
        rows = timeline.own["rollouts"]
        assert len(rows) == len(walk.rows), settings
        for place, (row, fate, decoded) in enumerate(walk.rows):
            group = row.group
            assert rows.rollout[place] == group.number * protocol.group + row.member
            assert rows.prompt[place] == group.prompt
            assert rows.attempt[place] == group.attempt
            assert (rows.generator[place], rows.slot[place]) == row.place
            assert rows.fate[place] == ("trained", "thrown away").index(fate)
            assert rows.decoded[place] == decoded
            assert rows.trained_version[place] == row.trained_version
            assert rows.oldest_version[place] == row.oldest()
            assert rows.last_version[place] == row.stretches[-1][1]
            versions = row.versions(decoded)
            if versions:
                assert rows.mean_version[place] == pytest.approx(np.mean(versions), rel=1e-12)
            for name in ("start", "end", "left", "ready", "taken"):
                assert is_same(getattr(rows, f"{name}_s")[place], getattr(row, name)), name
        stretches = timeline.own["tokens"]
        known = {group.number: group for group in walk.groups + walk.batch}
        known |= {row.group.number: row.group for row, _, _ in walk.rows}
        expected = sorted(
            (group.number * protocol.group + row.member, *stretch)
            for group in known.values()
            for row in group.members
            for stretch in row.stretches
        )
        columns = (stretches.rollout, stretches.first, stretches.version, stretches.time_s)
        assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == expected
