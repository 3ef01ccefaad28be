from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Cluster, Device, Jitter, WorkerGroup, Workload
from harness.simulator.costs import compute_seconds
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline, concat

LOGNORMAL = Jitter("lognormal", 0.3)
BUSY = {"copy_s": 0.2, "fold_s": 0.1, "jitter": LOGNORMAL}
SHARING = pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])


def test_a_saved_state_is_plain_arrays_that_later_steps_do_not_touch(simulate):
    simulation = simulate(3, **BUSY)
    saved = simulation.state()
    copies = {name: array.copy() for name, array in saved.items()}
    simulation.advance(folds=10)
    assert all(array.dtype.names is None for array in saved.values())
    assert all(np.array_equal(saved[name], copies[name]) for name in saved)


@pytest.mark.parametrize("change", [{"seed": 1}, {"workers": 4}])
def test_a_state_of_other_settings_is_refused(simulate, change):
    simulation = simulate(5, **BUSY)
    arguments = {"workers": 5, "seed": 0} | change
    with pytest.raises(UserError, match="another cluster"):
        Simulation.restore(simulation.cluster, "parameter_server", simulation.state(), **arguments)


def test_a_state_that_another_version_wrote_is_refused_in_one_line(simulate):
    simulation = simulate(5, sharing="fifo", **BUSY)
    saved = simulation.state()
    for other in ({"state.events.time_s": np.zeros(7)}, {}):
        whole = {name: array for name, array in saved.items() if name != "state.events.time_s"}
        with pytest.raises(UserError, match="another version"):
            simulation.with_state(whole | other)


def test_draining_by_time_hands_out_nothing_after_it(simulate):
    simulation = simulate(4, **BUSY)
    timeline = simulation.advance(seconds=10.0, drain=True)
    assert simulation.drained
    assert timeline.folded().read_time_s.max() <= 10.0 < simulation.now_s


def test_after_draining_all_workers_read_at_once(simulate):
    simulation = simulate(4, **BUSY)
    simulation.advance(folds=20, drain=True)
    start_s = simulation.now_s
    rows = simulation.advance(folds=4, drain=True).folded()
    assert rows.read_time_s.tolist() == [start_s] * 4
    assert rows.read_version.tolist() == [20] * 4
    assert sorted(rows.worker.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", [ParameterServer(), ParameterServer(bound=9)], ids=str)
def test_too_many_under_way_to_drain_in_so_few_folds_is_an_error(cluster, unit_job, protocol):
    simulation = Simulation(cluster(4, **BUSY), protocol, unit_job)
    simulation.advance(folds=1)
    with pytest.raises(ValueError, match="in flight"):
        simulation.advance(folds=1, drain=True)


def test_a_pause_costs_time_and_shows_as_a_span_of_the_server(simulate):
    simulation = simulate(2)
    segments = [simulation.advance(folds=4, drain=True), simulation.pause(2.5, "search")]
    segments.append(simulation.advance(folds=2))
    whole = concat(segments)
    assert whole.folds.time_s.tolist() == [1.0, 1.0, 2.0, 2.0, 5.5, 5.5]
    search = whole.spans.where(whole.spans.kind == whole.kinds.index("search"))
    assert (search.worker[0], search.start_s[0], search.end_s[0]) == (-1, 2.0, 4.5)


def test_only_a_drained_simulation_can_pause(simulate):
    simulation = simulate(2)
    simulation.pause(1.0, "warm-up")
    for segment in ({"seconds": 0.5}, {"folds": 2}):
        simulation.advance(**segment)
        with pytest.raises(ValueError, match="drained"):
            simulation.pause(1.0, "search")


@pytest.mark.parametrize(("protocol", "workers"), [("parameter_server", 1), (Averaging(1), 2)])
def test_a_change_of_workload_holds_for_what_is_read_afterwards(simulate, protocol, workers):
    simulation = simulate(workers, protocol=protocol)
    simulation.advance(seconds=0.5)
    simulation.change(Workload(minibatch_frames=3, flops_per_frame=1.0, parameter_bytes=0.0))
    assert simulation.advance(folds=3).folds.time_s.tolist() == [1.0, 4.0, 7.0]


def test_a_changed_workload_survives_a_restore(simulate):
    simulation = simulate(1)
    simulation.change(Workload(3, 1.0, 0.0))
    again = Simulation.restore(simulation.cluster, "parameter_server", simulation.state(), 1)
    assert again.workload == simulation.workload
    assert again.advance(folds=1).folds.time_s.tolist() == [3.0]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"folds": 1, "seconds": 1.0}, {"folds": -1}, {"seconds": -1.0}, {"seconds": float("nan")}],
)
def test_a_segment_needs_one_sensible_length(simulate, arguments):
    with pytest.raises(ValueError, match=r"folds|seconds"):
        simulate(2).advance(**arguments)


def test_a_misspelt_protocol_is_named_with_the_nearest(cluster, unit_job):
    with pytest.raises(UserError, match="did you mean 'parameter_server'"):
        Simulation(cluster(2), "parameter_sever", unit_job, 2)


@pytest.mark.parametrize("workers", [0, -1, 10**9])
def test_a_senseless_number_of_workers_is_refused(cluster, unit_job, workers):
    with pytest.raises(UserError, match="workers"):
        Simulation(cluster(2), "parameter_server", unit_job, workers)


def test_what_would_take_longer_than_a_number_can_say_is_refused():
    with pytest.raises(UserError, match=r"flops_per_frame: 1e\+300 is not allowed"):
        Workload(2**40, 1e300, 1.0)
    slowest = Cluster("slow", {"d": Device(1e-6)}, (WorkerGroup(1, "d", 1e-6),))
    assert math.isfinite(compute_seconds(slowest, Workload(2**40, 1e21, 1e21)))


def test_ten_simulations_of_one_seed_give_one_trace(simulate):
    traces = {simulate(6, seed=4, **BUSY).advance(folds=300).sha256() for _ in range(10)}
    assert len(traces) == 1
    assert simulate(6, seed=5, **BUSY).advance(folds=300).sha256() not in traces


def test_recording_no_spans_changes_nothing_else(cluster, unit_job):
    machine = cluster(4, **BUSY)
    full, lean = (
        Simulation(machine, "parameter_server", unit_job, 4, spans=spans).advance(folds=50)
        for spans in (True, False)
    )
    assert len(lean.spans) == 0
    assert lean.sha256() == Timeline(full.folds, full.contributions).sha256()


PROGRAM = """
import sys
from harness.simulator.cluster import Cluster, Device, Jitter, WorkerGroup, Workload
from harness.simulator.simulation import Simulation
cluster = Cluster("c", {"d": Device(1.0)}, (WorkerGroup(4, "d"),), jitter=Jitter("gamma", 0.7))
timeline = Simulation(cluster, "parameter_server", Workload(1, 1.0, 1.0), seed=9).advance(folds=500)
print(timeline.sha256())
"""


def test_another_process_gives_the_same_bytes_and_loads_no_torch(capsys):
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}assert 'torch' not in sys.modules"],
        env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    exec(PROGRAM, {})
    assert capsys.readouterr().out == other.stdout != ""


@SHARING
def test_a_segment_just_before_a_drain_hands_out_no_more_than_the_drain_needs(simulate, sharing):
    whole = simulate(4, sharing=sharing, **BUSY).advance(folds=20, drain=True)
    parts = simulate(4, sharing=sharing, **BUSY)
    segments = [parts.advance(folds=19, handing_out=20), parts.advance(folds=1, drain=True)]
    assert parts.drained
    assert concat(segments).sha256() == whole.sha256()


def test_fewer_minibatches_than_folds_are_refused(simulate):
    with pytest.raises(ValueError, match="3 minibatches cannot make 4 folds"):
        simulate(4, **BUSY).advance(folds=4, handing_out=3)


def test_a_segment_of_known_length_is_one_part(simulate, monkeypatch):
    """Unlike `parts`, of which each is shown as it ends."""
    rooms, advance = [], ParameterServer.advance
    monkeypatch.setattr(ParameterServer, "advance", lambda *at: rooms.append(at) or advance(*at))
    whole = simulate(2, **BUSY).advance(folds=200_000)
    assert len(rooms) == 1
    assert concat([*simulate(2, **BUSY).parts(folds=200_000)]).sha256() == whole.sha256()
    assert len(rooms) > 3
