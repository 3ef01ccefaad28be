"""Timelines are equal bytes on every machine: what they were on one is pinned here.

`tox -e portable` runs this file under other instruction sets and C libraries' code paths. A change
of the simulator that is meant to give other timelines prints the new hashes.
"""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from harness.rollouts.protocol import Rollouts
from harness.simulator.cluster import JITTER_LAWS, Fault, Jitter, Stragglers
from harness.simulator.costs import Law, factor, purpose_key
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.speech.protocol import Sequence

GOLDEN = json.loads(Path(__file__).with_name("golden_timelines.json").read_text())
FOLDS = 5000
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1}
LOGNORMAL = Jitter("lognormal", 0.3)
LAWS = {
    "lognormal": LOGNORMAL,
    "gamma": Jitter("gamma", 0.5),
    "gamma below shape 1": Jitter("gamma", 2.0),
    "shifted exponential": Jitter("shifted-exponential", 0.4),
    "empirical": Jitter("empirical", values=(0.7, 0.9, 1.1, 1.6)),
}
FAULTS = (
    Fault("death", mean_s=400.0, down_s=10.0),
    Fault("preemption", mean_s=300.0, down_s=5.0),
    Fault("message", probability=0.02, retry_s=0.5),
    Fault("server", mean_s=700.0, down_s=3.0, checkpoint_s=50.0),
)
ROUNDS = Network((Level(2, 100.0, 0.001), Level(4, 1000.0, 0.01)))
SERVED = Network((Level(2, 10.0), Level(4, 10.0)), server=Level(1, 20.0))
STAR = Network((Level(1, 10.0), Level(4, 12.0)), server=Level(1, 20.0))

CASES = {
    **{f"server, {name}": ("parameter_server", {"jitter": law}) for name, law in LAWS.items()},
    "server, workers differ": ("parameter_server", {"heterogeneity_cv": 0.3}),
    "server, stragglers": (
        "parameter_server",
        {"jitter": LOGNORMAL, "stragglers": Stragglers(0.02, 4.0)},
    ),
    "server, fair link": ("parameter_server", {"jitter": LOGNORMAL, "sharing": "fair"}),
    "server, faults": ("parameter_server", {"jitter": LOGNORMAL, "faults": FAULTS}),
    "server, bounded": (ParameterServer(bound=2, queue=2), {"jitter": LOGNORMAL}),
    "server, shards": (ParameterServer(shards=3), {"jitter": LOGNORMAL}),
    "server, network": ("parameter_server", {"jitter": LOGNORMAL, "network": SERVED}),
    "server, star": ("parameter_server", {"jitter": LOGNORMAL, "network": STAR}),
    "averaging": (Averaging(every=5), {"jitter": LOGNORMAL, "network": ROUNDS}),
    "averaging, overlapped": (
        Averaging(every=5, overlap=True),
        {"jitter": LAWS["gamma"], "network": ROUNDS},
    ),
    "backup workers": (BackupWorkers(backups=1), {"jitter": LOGNORMAL}),
    "rollouts": (
        Rollouts(slots=4, group=2, batch=3, tokens=20.0, rule="discard", reward_s=1.0),
        {"jitter": LOGNORMAL},
    ),
    "sequence": (Sequence(slots=4, frames=60.0, kept=0.1), {"jitter": LOGNORMAL}),
}


def _libm() -> str:
    """What the C library makes of the functions that draws are made with."""
    at = [(k + 0.5) / 5000.0 for k in range(5000)]
    told = [(math.log(x), math.exp(x), math.cos(6.0 * x), math.pow(x, 0.3)) for x in at]
    return hashlib.sha256(np.array(told).tobytes()).hexdigest()


@pytest.mark.parametrize("name", LAWS)
def test_a_law_has_the_draws_it_has_everywhere(name):
    """A timeline adds draws to times a thousand times as large, so it forgives a last bit."""
    law = LAWS[name]
    values = np.array(law.values) / np.mean(law.values or 1.0)
    if law.law != "fixed" and _libm() != GOLDEN["C library"]:
        pytest.skip("this C library rounds log, exp or pow otherwise")
    key, code = purpose_key(7, "golden"), JITTER_LAWS.index(law.law)
    found = [factor(Law(code, law.cv, values, key), 3, step) for step in range(20_000)]
    assert hashlib.sha256(np.array(found).tobytes()).hexdigest() == GOLDEN[f"draws, {name}"]


@pytest.mark.parametrize("name", CASES)
def test_a_timeline_has_the_bytes_it_has_everywhere(name, cluster, unit_job):
    protocol, machine = CASES[name]
    simulation = Simulation(cluster(5, **{**BUSY, **machine}), protocol, unit_job, 5, seed=11)
    assert simulation.advance(folds=FOLDS).sha256() == GOLDEN[name]
