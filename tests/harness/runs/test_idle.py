"""Every key of a cluster file and of a run: it counts, or it is named as without effect."""

from __future__ import annotations

import copy
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from harness.acoustics.decoder import Beam
from harness.acoustics.mmi import Criterion
from harness.acoustics.rbm import WideRandom
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.schedules import Constant, Search
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.fidelity.predict import time_full_run
from harness.runs.config import Stage
from harness.runs.idle import idle_lines
from harness.simulator import Averaging, Cluster, ParameterServer
from harness.simulator.cluster import cluster_from
from harness.simulator.keys import get, put
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.speech.frames import ForcedAlignment, RunConfig
from harness.speech.sequence import Plateau, SequenceConfig
from tests.harness.simulator import test_effects as files
from tests.keys import keys_of

WORKERS = 9
METHODS = {
    "async": (AsyncSgd(), ParameterServer()),
    "averaging": (ModelAveraging(), Averaging(2)),
    "buckets": (GradientAveraging(), Averaging(1, buckets=(40.0, 60.0))),
    "backup": (GradientAveraging(), BackupWorkers(1)),
}
ELSEWHERE = {
    "jobs": "tests/harness/simulator/test_neighbours.py",
    "devices.NAME.memory_bytes_per_s": "tests/harness/modules/test_step_time.py",
    "devices.NAME.operator_s": "tests/harness/modules/test_step_time.py",
    "workload.operators": "tests/harness/modules/test_step_time.py",
    "workload.moved_bytes": "tests/harness/modules/test_step_time.py",
    "checkpoints": "refused in training",
    "network.levels[].links": "a divisor of workers_per_link",
    "network.levels[].down_bandwidth_bytes_per_s": "as bandwidth_bytes_per_s",
    "network.levels[].shaping.limits_bytes_per_s": "tests/reproductions/test_outer_loops.py",
    "network.levels[].shaping.unused": "tests/reproductions/test_outer_loops.py",
    "network.server": "of its own, one level",
    "workers[].up_bytes_per_s": "as the bandwidth of the lowest level",
    "workers[].down_bytes_per_s": "as the bandwidth of the lowest level",
    "faults": "in files of their own",
    "jitter.values": "of the law 'empirical'",
    "server.jitter.values": "of the law 'empirical'",
}
"""Numbers of cluster files that are not moved here, and why."""


FILES = {
    "link": files.EVERYTHING,
    "compressed link": files.EVERYTHING + files.COMPRESSION,
    "compressed network": files.EVERYTHING + files.NETWORK + files.COMPRESSION,
    "server": files.EVERYTHING + files.NETWORK + files.SERVER,
}


def numbers(table, before=""):
    """Dotted keys of all numbers in a file."""
    items = table.items() if isinstance(table, dict) else enumerate(table)
    for name, value in items:
        key = f"{before}[{name}]" if isinstance(name, int) else f"{before}.{name}".lstrip(".")
        if isinstance(value, dict | list):
            yield from numbers(value, key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key


def moved(table, key):
    """The file with other values of a number: a little, and so much that a link is narrow."""
    value = get(table, key, "test")
    whole_numbers = (value * 2, max(1, value // 2))
    for other in whole_numbers if isinstance(value, int) else (value * 0.875, value * 0.05):
        changed = copy.deepcopy(table)
        put(changed, key, max(other, 1.0) if "slowdown" in key else other, "test")
        yield changed


def cluster(table: dict) -> Cluster:
    return cluster_from(copy.deepcopy(table), Path("c.toml"))


def named(config) -> list[str]:
    """The keys that are said to have no effect."""
    lines = idle_lines([config])
    return [re.fullmatch(r"no effect: (\S+) \(.*\)", line)[1] for line in lines]


def covers(name: str, key: str) -> bool:
    return key == name or key.startswith((f"{name}.", f"{name}["))


def test_every_number_of_a_cluster_file_is_asked_about():
    texts = [*FILES.values(), FILES["server"] + files.FAULTS]
    tables = [tomllib.loads(text) for text in texts]
    asked = {re.sub(r"\[\d+\]", "[]", key) for table in tables for key in numbers(table)}
    asked = {re.sub(r"devices\.\w+", "devices.NAME", key) for key in asked}
    for key in keys_of(Cluster):
        if {int, float} & {key.kind, *get_args(key.kind)}:
            left_out = any(covers(name, key.dotted) for name in ELSEWHERE)
            for_people = "for information only" in key.meaning
            assert left_out or for_people or key.dotted in asked, key.dotted


@pytest.mark.parametrize(
    ("method", "file"),
    [
        *(("async", "link"), ("async", "server"), ("averaging", "compressed network")),
        *(("buckets", "compressed link"), ("backup", "link")),
    ],
)
def test_a_number_of_a_cluster_moves_a_run_s_time_or_is_named(method, file, configure, corpus):
    table, (algorithm, protocol) = tomllib.loads(FILES[file]), METHODS[method]
    train = corpus.split("train")

    def run(changed: dict) -> RunConfig:
        parts = {"algorithm": algorithm, "protocol": protocol, "cluster": cluster(changed)}
        size = {"stages": (Stage(4, 4),), "workers": WORKERS, "chunk": 1.0, "passes": 2}
        return configure(**parts, **size, evaluations=1)

    known = time_full_run(run(table), train).timeline.sha256()
    idle = named(run(table))
    assert "workload" in idle
    assert "chunk" not in idle

    def timeline(changed: dict) -> str:
        try:
            return time_full_run(run(changed), train).timeline.sha256()
        except UserError:
            return "refused"

    wrong = []
    for key in numbers(table):
        found = {timeline(each) for each in moved(table, key)} - {"refused"}
        if not found:
            continue
        moves = found != {known}
        if moves == any(covers(name, key) for name in idle):
            wrong.append(f"{key}: {'moves' if moves else 'moves nothing'}")
    assert not wrong


@pytest.mark.parametrize("method", ["async", "averaging"])
def test_faults_that_strike_nothing_are_named_in_training_too(method, configure):
    table, (algorithm, protocol) = tomllib.loads(FILES["link"]), METHODS[method]
    further = files.FAULTS + (files.OF_SERVER if method == "async" else "")
    table |= tomllib.loads(further)
    table["faults"][1]["workers"] = [WORKERS]
    config = configure(
        algorithm=algorithm, protocol=protocol, cluster=cluster(table), workers=WORKERS
    )
    assert "faults[1]" in named(config)


OTHERS = {
    RunConfig: {
        "algorithm": AsyncSgd(),
        "schedule": Constant(0.03),
        "stages": (Stage(4, 256),),
        "hidden": (7,),
        "timed_layers": (9, 7, 5),
        "activation": "relu",
        "initial": WideRandom(),
        "protocol": ParameterServer(bound=2),
    },
    SequenceConfig: {
        "timed_layers": (9, 7, 5),
        "plateau": Plateau(),
        "fetch_s": 0.5,
        "algorithm": None,
    },
}
"""Other values of settings that are no plain numbers or words."""


REFUSED = {RunConfig: ["precision"], SequenceConfig: ["algorithm"]}
"""Settings whose other values do not go with the rest."""


def other_value(kind: type, name: str, value: object, hint: object, config) -> object:
    if name == "cluster":
        return replace(value, name="another")
    if name == "start":
        return replace(value, seed=7)
    if name == "criterion":
        return replace(value, kappa=0.25)
    if name == "targets":
        return ForcedAlignment(config, 0.5)
    if name in OTHERS[kind]:
        return OTHERS[kind][name]
    if get_origin(hint) is Literal:
        return next(word for word in get_args(hint) if word != value)
    if isinstance(value, bool):
        return not value
    return {int: lambda: value + 1, float: lambda: value / 2, str: lambda: f"{value}x"}[
        type(value)
    ]()


@pytest.mark.parametrize("kind", [RunConfig, SequenceConfig], ids=lambda kind: kind.__name__)
def test_every_setting_of_a_run_is_part_of_its_identity_or_refused(kind, configure, sequence):
    """Settings that are part of it all the same and change nothing are named: see below."""
    config = configure() if kind is RunConfig else sequence()
    known, hints, refused = identity(config.to_dict()), get_type_hints(kind), list[str]()
    for entry in fields(kind):
        if entry.name == "format":
            continue
        value = getattr(config, entry.name)
        changed = other_value(kind, entry.name, value, hints[entry.name], config)
        assert changed != value, entry.name
        try:
            other = replace(config, **{entry.name: changed})
        except UserError:
            refused.append(entry.name)
            continue
        assert identity(other.to_dict()) != known, entry.name
    assert refused == REFUSED[kind]


def test_settings_of_a_run_that_change_nothing_are_named(configure, sequence):
    assert "chunk" in named(configure(chunk=0.25))
    assert "chunk" not in named(configure(chunk=0.25, schedule=Search(0.01)))
    assert "tested_models" in named(configure(tested="never", tested_models="deployed"))
    assert "tested_models" not in named(configure(tested_models="deployed"))
    assert "algorithm.k" in named(configure(algorithm=AsyncSgd(k=2.0)))
    assert "algorithm.k" not in named(configure(algorithm=AsyncSgd("memory_of_one", k=2.0)))
    assert "criterion.beam" in named(sequence(criterion=Criterion(beam=Beam(3.0))))
    stepwise = {"fetch_s": 0.5, "waiting": 2, "shards": 2}
    assert set(stepwise) <= set(named(sequence(**stepwise, shuffling="full")))
    assert not set(stepwise) & set(named(sequence(**stepwise, shuffling="none")))


def test_what_counts_in_one_of_several_runs_is_not_named(configure):
    table = tomllib.loads(FILES["compressed network"])
    del table["compression"]
    runs = [
        configure(algorithm=algorithm, protocol=protocol, cluster=cluster(table))
        for algorithm, protocol in (METHODS["async"], METHODS["averaging"])
    ]
    assert "network" in named(runs[0])
    assert "link" in named(runs[1])
    both = [line.split()[2] for line in idle_lines(runs)]
    assert not {"network", "link"} & set(both)
    assert "host.staging_bytes_per_s" in both
