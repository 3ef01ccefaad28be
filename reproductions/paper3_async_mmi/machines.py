"""The machines that paper 3 may have had, timed by what it prints."""

from __future__ import annotations

from harness.simulator.cluster import Cluster, Workload
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.speech.lags import outer_lag
from harness.speech.protocol import Sequence
from reproductions.machine_scan import Figures, MachinesConfig, minibatches_per_s, simulate
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.exhibits import SECONDS, STEP, UPDATES
from reproductions.paper3_async_mmi.experiments import FOLDER, LAYERS, PAPER

REPLICAS, STEPS = 50, 240
"""Replicas, and folds of each."""


def time_machine(cluster: Cluster, run: Figures) -> Figures:
    """The printed timings on a machine: an MMI step over a CE step, and ages at fifty replicas."""
    spread, kept, cost = (run[name] for name in ("frames_cv", "kept", "decode_cost"))
    mmi = Sequence(PAPER["minibatch"], frames_cv=spread, kept=kept, decode_cost=cost)
    job, ce_job = (Workload.of_network(LAYERS, PAPER[n]) for n in ("minibatch", "minibatch_ce"))
    timeline = simulate(cluster, mmi, job, REPLICAS, STEPS)
    # Neither of the start nor of the end, where only short utterances are folded yet.
    updates, seconds = (age[len(age) // 4 : 5 * len(age) // 8] for age in outer_lag(timeline))
    ce = simulate(cluster, ParameterServer(), ce_job, 1, STEPS)
    mmi_s = REPLICAS / minibatches_per_s(timeline)
    ages = {SECONDS: float(seconds.mean()), UPDATES: float(updates.mean())}
    return {STEP: mmi_s * minibatches_per_s(ce), **ages}


def scan_machines(subject: Subject) -> MachinesConfig:
    """The scan; fewer machines at smoke scale."""
    count = 60 if subject.scale == "smoke" else 1000
    return MachinesConfig(FOLDER / "machines.toml", time_machine, count)
