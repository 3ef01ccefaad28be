"""The parameter server on a link that workers share, beside processes of SimPy."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from harness.simulator import Jitter, Server, Simulation

SPEC = importlib.util.spec_from_file_location("k", Path(__file__).parent / "simpy_link.py")
simpy_link = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simpy_link)

LOGNORMAL = Jitter("lognormal", 0.3)


@pytest.mark.parametrize("duplex", ["full", "half"])
@pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])
@pytest.mark.parametrize(("workers", "busy"), [(6, 0.3), (40, 0.9), (40, 3.0)])
def test_the_sequence_on_a_shared_link_is_simpys(cluster, unit_job, workers, busy, sharing, duplex):
    copy_s = busy / workers
    machine = cluster(
        workers, copy_s=copy_s, latency_s=1e-3, jitter=LOGNORMAL, sharing=sharing, duplex=duplex
    )
    machine = replace(machine, server=Server(0.5 / workers, 0.0, Jitter("gamma", 0.5)))
    timeline = Simulation(machine, "parameter_server", unit_job, workers, 3).advance(folds=600)
    expected = simpy_link.LinkedModel(machine, unit_job, workers, 3).run(600)
    rows = (timeline.folds.time_s, timeline.folded().worker, timeline.staleness())
    found = list(zip(*(column.tolist() for column in rows), strict=True))
    exact = 600 if sharing != "fair" else 100  # rounding of fair parts grows
    assert [row[1:] for row in found[:exact]] == [row[1:] for row in expected[:exact]]
    times_s = [row[0] for row in expected[:exact]]
    assert [row[0] for row in found[:exact]] == pytest.approx(times_s, rel=1e-12)
    assert sharing == "fair" or found == expected
