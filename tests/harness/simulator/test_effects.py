"""Every key of a cluster file moves timelines, is named as of no effect, or is refused."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest

from harness.base.errors import UserError
from harness.base.files import cluster_file, find_bundled
from harness.base.settings import Spec, limits_of
from harness.cli import main
from harness.rollouts.protocol import Rollouts
from harness.simulator import (
    Averaging,
    Cluster,
    Device,
    Level,
    ParameterServer,
    Simulation,
    foresight,
)
from harness.simulator.cluster import Job, cluster_from, load_cluster
from harness.simulator.foresight import find_unused_keys, leave_out_untouched
from harness.simulator.keys import put
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.speech.protocol import Sequence

EVERYTHING = """
name = "everything"
heterogeneity_cv = 0.2
workers = [{count = 3, device = "d", speed = 1.5}, {count = 6, device = "e"}]
[devices.d]
achieved_flops_per_s = 10.0
half_rate_frames = 2.0
launch_s = 0.1
[devices.e]
achieved_flops_per_s = 7.0
[link]
latency_s = 0.01
bandwidth_bytes_per_s = 50.0
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
[workload]
minibatch_frames = 4
flops_per_frame = 1.0
parameter_bytes = 10.0
"""
NETWORK = """
[network]
core_bandwidth_bytes_per_s = 20.0
[[network.levels]]
bandwidth_bytes_per_s = 8.0
latency_s = 0.02
[[network.levels]]
workers_per_link = 2
bandwidth_bytes_per_s = 9.0
latency_s = 0.03
links = 2
[network.levels.shaping]
payload = 0.9
"""
SERVER = """
[network.server]
bandwidth_bytes_per_s = 15.0
latency_s = 0.015
"""
CARDS = """
[network]
rails = true
core_bandwidth_bytes_per_s = 11.0
[[network.levels]]
bandwidth_bytes_per_s = 30.0
down_bandwidth_bytes_per_s = 20.0
latency_s = 0.02
inside = true
[[network.levels]]
workers_per_link = 4
bandwidth_bytes_per_s = 9.0
latency_s = 0.03
links = 2
"""
TOP = """
[[network.levels]]
workers_per_link = 16
bandwidth_bytes_per_s = 3.0
"""
FAULTS = """
[[faults]]
kind = "death"
mean_s = 5.0
down_s = 2.0
down_law = "lognormal"
down_cv = 0.5
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
NOTICED = """
[[faults]]
kind = "death"
at_s = [2.0, 5.0]
down_s = 2.0
notice_s = 0.7
"""
OF_SERVER = """
[[faults]]
kind = "server"
mean_s = 1.0
checkpoint_s = 0.4
down_s = 0.3
down_law = "gamma"
down_cv = 0.5
[[faults]]
kind = "message"
probability = 0.3
retry_s = 0.5
"""
CHECKPOINTS = """
[checkpoints]
every_folds = 3
write_s = 0.3
restart_s = 0.4
"""
COMPRESSION = """
[compression]
ratio = 0.5
encode_bytes_per_s = 70.0
decode_bytes_per_s = 60.0
"""
JOBS = """
[[jobs]]
first = 1
workers = 2
every = 2
[jobs.workload]
minibatch_frames = 4
flops_per_frame = 1.0
parameter_bytes = 10.0
"""
MEASURED = EVERYTHING.replace(
    'law = "lognormal"', 'law = "empirical"\nvalues = [0.5, 1.5]'
).replace('law = "gamma"', 'law = "empirical", values = [0.5, 1.5]')
SHARED = EVERYTHING.replace("[link]", '[link]\nsharing = "fifo"')
FILES = {
    "link": (EVERYTHING, ""),
    "network": (EVERYTHING + NETWORK, ""),
    "server": (EVERYTHING + NETWORK + SERVER, ""),
    "cards": (EVERYTHING + CARDS, "network workers"),
    "cards below one link": (EVERYTHING + CARDS + TOP, "network.levels[2] network.r network.c"),
    "cards and a server": (EVERYTHING + CARDS + SERVER, "network.levels[0] network.r workers"),
    "a shared link": (SHARED, "link"),
    "measured": (MEASURED, "jitter server"),
    "faults": (EVERYTHING + FAULTS, "faults"),
    "notice": (EVERYTHING + NOTICED, "faults"),
    "faults of the server": (EVERYTHING + OF_SERVER, "faults"),
    "checkpoints": (EVERYTHING + NOTICED + CHECKPOINTS, "checkpoints"),
    "checkpoints alone": (EVERYTHING + CHECKPOINTS, "checkpoints"),
    "compression": (EVERYTHING + NETWORK + COMPRESSION, "compression"),
    "jobs": (EVERYTHING + NETWORK + JOBS, "jobs network.sending"),
}
"""Cluster files, and how keys begin that are moved in them: of the first three all are."""

PROTOCOLS = (
    ParameterServer(),
    Averaging(2),
    Averaging(2, buckets=(4.0, 6.0)),
    BackupWorkers(1),
    Sequence(slots=2, frames=6.0),
    ClientSampling(sampled=6, needed=5, every=2),
    Rollouts(slots=2, tokens=6.0, group=2, batch=4),
)
ASKED = 9
NOTES = {(Cluster, "name"), (Level, "name"), (Job, "name"), (Device, "source")}
NOTES |= {(Device, "peak_flops_per_s"), (Device, "memory_bytes_per_s")}
"""Settings from which nothing is computed, as they say themselves."""


ELSEWHERE = {(ClientSampling, "duplex")}
"""Moved by a test of its own: here all models of a round arrive before the first answer is sent."""


class Key(NamedTuple):
    """A setting in a file: its name there, the class and the field, and what it stands at."""

    name: str
    owner: type
    field: str
    value: Any


def keys_of(settings, before=""):
    """Every key that a file has or could have, but those of tables that it has not."""
    for entry in fields(settings):
        value, name = getattr(settings, entry.name), f"{before}.{entry.name}".lstrip(".")
        below = {name: value}
        if isinstance(value, dict):
            below = {f"{name}.{place}": item for place, item in value.items()}
        elif isinstance(value, tuple) and any(isinstance(item, Spec) for item in value):
            below = {f"{name}[{place}]": item for place, item in enumerate(value)}
        for inner, item in below.items():
            if isinstance(item, Spec):
                yield from keys_of(item, inner)
                continue
            is_table = classes_in(get_type_hints(type(settings))[entry.name])
            if not is_table and (type(settings), entry.name) not in NOTES:
                yield Key(inner, type(settings), entry.name, item)


@cache
def keys_in(file):
    return list(keys_of(cluster_of(file)))


def classes_in(hint):
    """The settings classes that a type is made of."""
    if isinstance(hint, type) and issubclass(hint, Spec):
        return {hint}
    return {kind for part in get_args(hint) for kind in classes_in(part)}


def classes_below(kind):
    """A settings class and all that its fields lead to."""
    found = {kind}
    for hint in get_type_hints(kind).values():
        found |= {inner for below in classes_in(hint) for inner in classes_below(below)}
    return found


def others(key, cluster):
    """Other values that a key may have."""
    entry = next(entry for entry in fields(key.owner) if entry.name == key.field)
    limits, hint = limits_of(entry), get_type_hints(key.owner)[key.field]
    if limits.one_of:
        return [word for word in limits.one_of if word != key.value]
    if key.field == "device":
        return [name for name in cluster.devices if name != key.value]
    if hint is bool:
        return [not key.value]
    if hint is str:
        return ["another"]
    if hint in (float, float | None):
        factors = (0.875, 0.05, 1.0) if key.field.endswith("bytes_per_s") else (0.875, 3.0, 1.0)
        found = [(key.value or 0.4) * factor for factor in factors]
        return [number for number in found if limits.admits(number) and number != key.value]
    if hint in (int, int | None):
        found = [2 * key.value, key.value + 1, key.value // 2, 1]
        return [number for number in found if limits.admits(number) and number != key.value]
    assert hint in (tuple[float, ...], tuple[int, ...]), f"no other value of {key.name} is known"
    first, *rest = key.value or (0,)
    known = [first + 1] if hint == tuple[int, ...] else [first / 2, 4 * first if not rest else 0.1]
    return [[number, *rest] for number in known]


@cache
def cluster_of(file, change=()):
    """The cluster of a file, or why it is refused: built once for all protocols.

    Args:
        file: its name in ``FILES``.
        change: of one key, its name and another value; none where the file is as it is.
    """
    table = tomllib.loads(FILES[file][0])
    if change:
        name, other = change
        put(table, name, list(other) if isinstance(other, tuple) else other, "test")
    try:
        return cluster_from(table, Path("c.toml"))
    except UserError as error:
        return error


def timeline(cluster, protocol):
    """What comes of a cluster, and what is named as of no effect."""
    if isinstance(cluster, UserError):
        raise cluster
    simulation = Simulation(cluster, protocol, cluster.workload, ASKED)
    named = [key for key, _ in find_unused_keys(cluster, protocol, cluster.workload, ASKED)]
    # a server folds what one worker sends, a round what all do
    folds = 30 if isinstance(protocol, ParameterServer) else 12
    return simulation.advance(folds=folds).sha256(), named


def is_named(key, named):
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in named)


def names(error, key):
    """Whether what is said to a refused file is said of a key, or of a table it is in."""
    steps = re.split(r"[.\[]", key)
    return any(re.search(rf"\b{re.escape(step)}\b", str(error)) for step in steps)


def fate(file, key, protocol, known):
    """What becomes of a key that moves; None where every other value is refused for another's sake.

    Args:
        file: its name.
        key: of it.
        protocol: under which.
        known: its timeline, and what is named as of no effect in it.
    """
    fates = set()
    for other in others(key, cluster_of(file)):
        value = tuple(other) if isinstance(other, list) else other
        try:
            found, named = timeline(cluster_of(file, (key.name, value)), protocol)
        except UserError as error:
            fates |= {"refused"} if names(error, key.name) else set()
            continue
        told = [is_named(key.name, named)] if is_default(key, other) is False else []
        told += [is_named(key.name, known[1])] if is_default(key, key.value) is False else []
        if found != known[0]:
            return "named, and moves" if all(told) and told else "moves"
        fates.add("named" if all(told) else "moves nothing, and is not named")
    order = ("moves nothing, and is not named", "named", "refused")
    return next((word for word in order if word in fates), None)


def is_default(key, value):
    entry = next(entry for entry in fields(key.owner) if entry.name == key.field)
    return (tuple(value) if isinstance(value, list) else value) == entry.default


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_every_key_of_a_cluster_file_moves_time_or_is_named_or_refused(protocol):
    """Keys are those of the settings classes, so one that is added is moved here at once."""
    wrong, decided, seen = [], set(), set()
    for file, (_, tables) in FILES.items():
        keys = keys_in(file)
        seen |= {(key.owner, key.field) for key in keys}
        try:
            known = timeline(cluster_of(file), protocol)
        except UserError as error:
            decided |= {(key.owner, key.field) for key in keys if names(error, key.name)}
            continue
        for key in keys:
            if tables and not key.name.startswith(tuple(tables.split())):
                continue
            found = fate(file, key, protocol, known)
            if found in ("moves", "named", "refused") or (type(protocol), key.field) in ELSEWHERE:
                decided.add((key.owner, key.field))
            elif found is not None:
                wrong.append(f"{file}: {key.name}: {found}")
    assert {owner for owner, _ in seen} == classes_below(Cluster)
    open_ = seen - decided
    assert not wrong, wrong
    assert not open_, open_


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
        (
            'network = {levels = [{duplex = "half"}], server = {}}',
            "network.levels[0].duplex",
        ),
        ("network = {levels = [{}], server = {inside = true}}", "network.server.inside"),
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


def told_of(cluster, protocol, workers=4):
    """The keys without effect that a user is told of."""
    found = find_unused_keys(cluster, protocol, cluster.workload, workers)
    return [key for key, _ in leave_out_untouched(cluster, found)]


def test_of_a_bundled_cluster_only_changed_keys_and_tables_are_told():
    server, card = (load_cluster(cluster_file(n)) for n in ("k20m-server", "h100-16-nodes"))
    assert told_of(server, ParameterServer()) == []
    host = replace(server.host, staging_bytes_per_s=1e9)
    assert told_of(replace(server, host=host), ParameterServer()) == ["host.staging_bytes_per_s"]
    assert told_of(replace(server, name="mine"), ParameterServer()) == ["host.staging_bytes_per_s"]
    assert told_of(card, ParameterServer()) == ["network"]
    assert list(find_unused_keys(card, Averaging(), card.workload, 4))
    assert told_of(card, Averaging()) == []


def test_a_plugins_file_that_is_wrong_hides_no_bundled_cluster(tmp_path, monkeypatch):
    """It is looked at before the bundled one; a cluster of no bundled name has all keys told."""
    (tmp_path / "broken.toml").write_text("name = ")
    files = {"broken": tmp_path / "broken.toml", **find_bundled("cluster")}
    monkeypatch.setattr(foresight, "find_bundled", lambda kind: files)
    foresight._load_bundled.cache_clear()
    server = load_cluster(cluster_file("k20m-server"))
    assert told_of(server, ParameterServer()) == []
    assert told_of(replace(server, name="mine"), ParameterServer()) == ["host.staging_bytes_per_s"]
    foresight._load_bundled.cache_clear()


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
        told = "no effect: faults[0] (the long run excludes the start-up)"
        assert (told in capsys.readouterr().out) == named
