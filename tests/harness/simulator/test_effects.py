"""What is named as without effect is what leaves a timeline as it was, and nothing else does."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UserError
from harness.simulator import Averaging, ParameterServer, Simulation
from harness.simulator.cluster import cluster_from
from harness.simulator.effects import without_effect
from harness.simulator.keys import at, put
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.protocols.sequence import Sequence

EVERYTHING = """
name = "everything"
heterogeneity_cv = 0.2
workers = [{count = 3, device = "d", speed = 1.5}, {count = 2, device = "e"}]
[devices.d]
achieved_flops_per_s = 10.0
half_rate_frames = 2.0
launch_s = 0.1
[devices.e]
achieved_flops_per_s = 7.0
[link]
latency_s = 0.01
bandwidth_bytes_per_s = 50.0
duplex = "half"
[host]
memory_bytes_per_s = 300.0
staging_bytes_per_s = 90.0
[server]
fold_s = 0.02
fold_traffic = 2.0
jitter = {law = "gamma", cv = 0.4}
[jitter]
law = "lognormal"
cv = 0.3
[stragglers]
probability = 0.3
slowdown = 4.0
[parallel]
slowdown = 1.2
average_s = 0.03
epoch_minibatches = 70
epoch_s = 0.5
first_average_s = 0.2
backward_share = 0.5
overlap_slowdown = 1.5
[compression]
ratio = 0.5
encode_bytes_per_s = 70.0
decode_bytes_per_s = 60.0
[workload]
minibatch_frames = 4
flops_per_frame = 1.0
parameter_bytes = 10.0
"""
NETWORK = """
[network]
core_bandwidth_bytes_per_s = 40.0
[[network.levels]]
bandwidth_bytes_per_s = 30.0
latency_s = 0.02
[[network.levels]]
workers_per_link = 2
bandwidth_bytes_per_s = 9.0
latency_s = 0.03
"""
SERVER = """
[network.server]
bandwidth_bytes_per_s = 35.0
latency_s = 0.015
"""
FAULTS = """
[[faults]]
kind = "death"
mean_s = 5.0
down_s = 2.0
down_law = "lognormal"
down_cv = 0.5
%s
[[faults]]
kind = "late"
workers = [1]
at_s = [3.0]
down_s = 2.0
[[faults]]
kind = "preemption"
workers = [2, 3]
mean_s = 7.0
down_s = 1.0
down_cv = 0.5
"""
OF_SERVER = """
[[faults]]
kind = "server"
mean_s = 6.0
checkpoint_s = 2.0
down_s = 0.5
down_law = "gamma"
down_cv = 0.5
[[faults]]
kind = "message"
probability = 0.3
retry_s = 0.5
"""
FILES = {"link": EVERYTHING, "network": EVERYTHING + NETWORK}
FILES |= {"server": EVERYTHING + NETWORK + SERVER}
PROTOCOLS = (ParameterServer(), Averaging(2), Averaging(2, buckets=(4.0, 6.0)), BackupWorkers(1))
PROTOCOLS += (Sequence(slots=2, frames=6.0), ClientSampling(sampled=3, needed=2))


def numbers(table, before=""):
    """Dotted keys of all numbers in a file."""
    items = table.items() if isinstance(table, dict) else enumerate(table)
    for name, value in items:
        key = f"{before}[{name}]" if isinstance(name, int) else f"{before}.{name}".lstrip(".")
        if isinstance(value, dict | list):
            yield from numbers(value, key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key


def timeline(table, protocol):
    cluster = cluster_from(copy.deepcopy(table), Path("c.toml"))
    assert cluster.workload is not None
    simulation = Simulation(cluster, protocol, cluster.workload, 9)
    return simulation.advance(folds=40).sha256()


def moved(table, key):
    """The file with other values of a number: a little, and so much that a link is narrow."""
    value = at(table, key, "test")
    for other in (value * 2,) if isinstance(value, int) else (value * 0.875, value * 0.05):
        changed = copy.deepcopy(table)
        put(changed, key, max(other, 1.0) if "slowdown" in key else other, "test")
        yield changed


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_a_number_is_named_if_and_only_if_moving_it_changes_nothing(file, protocol):
    table = tomllib.loads(FILES[file])
    if isinstance(protocol, ClientSampling):
        table["link"]["duplex"] = "full"  # which it refuses, and the others compression
    elif not isinstance(protocol, Averaging):
        del table["compression"]
    try:
        known = timeline(table, protocol)
    except UserError:
        pytest.skip("this protocol refuses such a file")
    assert not wrongly_named(table, protocol, known, numbers(table))


def wrongly_named(table, protocol, known, keys):
    """The keys that are named and move the timeline, or neither."""
    cluster = cluster_from(copy.deepcopy(table), Path("c.toml"))
    named = [key for key, _ in without_effect(cluster, protocol, cluster.workload, 9)]
    wrong = []
    for key in keys:
        moves = any(timeline(changed, protocol) != known for changed in moved(table, key))
        if moves == any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in named):
            wrong.append(f"{key}: {'moves' if moves else 'moves nothing'}")
    return wrong


@pytest.mark.parametrize(
    ("protocol", "faults"),
    [
        (ParameterServer(), FAULTS % "" + OF_SERVER),
        (BackupWorkers(1), FAULTS % ""),
        (Averaging(2), FAULTS % "notice_s = 0.7"),
        (ClientSampling(sampled=3, needed=2), FAULTS % "notice_s = 0.7"),
    ],
    ids=("parameter_server", "backup_workers", "averaging", "client_sampling"),
)
def test_a_number_of_a_fault_is_named_if_and_only_if_moving_it_changes_nothing(protocol, faults):
    table = tomllib.loads(EVERYTHING + faults)
    table["link"]["duplex"] = "full"
    del table["compression"]
    keys = [key for key in numbers(table) if key.startswith("faults") and not key.endswith("]")]
    assert not wrongly_named(table, protocol, timeline(table, protocol), keys)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('jitter = {law = "gamma"}', "jitter.law"),
        ("jitter = {cv = 0.5}", "jitter.cv"),
        ("stragglers = {probability = 0.5}", "stragglers.probability"),
        ("stragglers = {slowdown = 5}", "stragglers.slowdown"),
        ('link = {sharing = "fair"}', "link.sharing"),
        ('link = {bandwidth_bytes_per_s = 1e9, duplex = "half"}', "link.duplex"),
        ("host = {staging_bytes_per_s = 1e9}", "host.staging_bytes_per_s"),
        ("server = {fold_traffic = 5}", "server.fold_traffic"),
        ('server = {jitter = {law = "gamma", cv = 1}}', "server.jitter"),
        ("parallel = {slowdown = 2}", "parallel.slowdown"),
        ("network = {levels = [{latency_s = 1}]}", "network"),
        (
            "network = {levels = [{latency_s = 1}, {latency_s = 2}], server = {}}",
            "network.levels[1].workers_per_link",
        ),
        ("devices = {d = {launch_s = 1}, e = {}}", "devices.e"),
        ('faults = [{kind = "message", retry_s = 1}]', "faults[0]"),
        ('faults = [{kind = "death", mean_s = 1, down_s = 1, retry_s = 2}]', "faults[0].retry_s"),
        ('faults = [{kind = "death", mean_s = 1, down_s = 1, workers = [7]}]', "faults[0]"),
        ('faults = [{kind = "death", mean_s = 1e9, down_law = "gamma"}]', "faults[0].down_law"),
    ],
)
def test_a_key_without_effect_is_named_on_a_line(tmp_path, capsys, text, key):
    path = tmp_path / "c.toml"
    devices = "" if text.startswith("devices") else "devices = {d = {launch_s = 1}}\n"
    path.write_text(
        f'name = "n"\nworkers = [{{count = 2, device = "d"}}]\n{devices}{text}\n'
        "workload = {minibatch_frames = 1, flops_per_frame = 1, parameter_bytes = 1}\n"
    )
    assert main(["simulate", str(path), "--folds", "20"]) == 0
    assert f"no effect: {key} (" in capsys.readouterr().out


def test_what_is_not_among_the_workers_asked_for_is_named(capsys):
    assert (
        main(
            [
                "simulate",
                "reproductions/runs/clusters/unequal.toml",
                "--workers",
                "2",
                "--network",
                "10-10",
                "--folds",
                "20",
            ]
        )
        == 0
    )
    assert "no effect: workers[1] (is not among the first 2 workers)" in capsys.readouterr().out


def test_what_happens_at_the_start_is_named_in_the_long_run_only(tmp_path, capsys):
    cluster = "reproductions/runs/clusters/failing.toml"
    text = Path(cluster).read_text(encoding="utf-8")
    path = tmp_path / "late.toml"
    path.write_text(text[: text.index("[[faults]]")] + text[text.rindex("[[faults]]") :])
    for folds, named in (([], True), (["--folds", "50"], False)):
        assert main(["simulate", str(path), "--network", "10-10", "--workers", "4", *folds]) == 0
        told = "no effect: faults[0] (the long run is without its start)"
        assert (told in capsys.readouterr().out) == named
