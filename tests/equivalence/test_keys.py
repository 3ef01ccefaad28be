"""Every key of a cluster file and of a run file × every protocol × every command that reads it.

It changes the result, or the command says ``no effect``, or it is refused in words that name it.
Keys are those of the settings classes that the reference page is made of: one that is added enters
by being declared. A key of a cluster file meets `simulate`, `predict` and one of the commands that
train, a key of a run file `train`, `predict` and one of those that compare. The last command and
the protocol take turns with the keys, for all of them together would take minutes.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from data_synth import storage
from harness import cli
from harness.acoustics.decoder import Beam
from harness.acoustics.mmi import Criterion
from harness.acoustics.rbm import Recipe, WideRandom
from harness.algorithms import schedules
from harness.algorithms.averaging import Mean
from harness.algorithms.catalogue import Algorithm, LocalOptimizer, ModelAveraging
from harness.algorithms.compression import Coder
from harness.base.errors import UserError
from harness.base.registry import load
from harness.base.settings import limits_of
from harness.grid.grid import Runner
from harness.modules.settings import ModuleTable
from harness.modules.task import ModuleConfig
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.rollouts.losses import Loss
from harness.rollouts.problems import Problems, Reaching, Sorting
from harness.rollouts.protocol import Rollouts
from harness.rollouts.rollout_config import WarmStart
from harness.rollouts.sources import SmallTransformer
from harness.rollouts.task import OwnTable
from harness.runs.config import Stage
from harness.simulator.keys import get, put
from harness.simulator.protocols.contract import TimingProtocol
from harness.speech import task
from harness.speech.frames import ForcedAlignment, RunConfig
from harness.speech.sequence import Plateau, SequenceConfig
from tests.equivalence import catalogue
from tests.harness.simulator import test_effects as clusters
from tests.keys import classes, entries_of, tables_in
from tests.run_files import tiny_corpus

WORKERS = 9
"""Workers of the cluster files."""
COMPARING = ("compare-algorithms", "tolerate")
"""Commands that train several runs of a run file."""
TRAINING = {
    "corpus": "corpus",
    "cluster": "cluster.toml",
    "workers": WORKERS,
    "chunk": 1.0,
    "evaluations": 1,
}
TRAINING |= {"hidden": [6], "timed_layers": [1, 1], "tested": "never"}
TRAINING |= {"schedule": {"is": "Constant", "rate": 0.02}}
TRAINING |= {"stages": [{"minibatch": 4, "timed_minibatch": 1, "share": 0.4}]}
START = {name: TRAINING[name] for name in ("hidden", "schedule", "tested", "evaluations")}
START |= {"stages": [{"minibatch": 4, "timed_minibatch": 1}]}  # a whole pass, from which to gain
START |= {"activation": "relu", "workers": 1, "algorithm": {"is": "AsyncSgd"}}
SEQUENCE = {"is": "SequenceConfig", "start": START, "replicas": WORKERS, "slots": 2, "rate": 0.01}
SEQUENCE |= {name: TRAINING[name] for name in ("corpus", "cluster", "timed_layers", "evaluations")}
SEQUENCE |= {"held_out": 2, "test": False}
SEQUENCE |= {"criterion": {"kappa": 0.5}, "decode_cost": 0.2}


def in_rounds(protocol: dict[str, Any], algorithm: str = "GradientAveraging") -> dict[str, Any]:
    return TRAINING | {"algorithm": {"is": algorithm}, "protocol": protocol}


MODULE = {name: TRAINING[name] for name in ("cluster", "schedule", "evaluations")}
MODULE |= {"workers": 3, "passes": 2, "algorithm": {"is": "AsyncSgd"}}
MODULE |= {"task": {"is": "module", "model": "keys_mine:mlp", "loss": "keys_mine:cross_entropy"}}
MODULE["task"] |= {"data": "keys_mine:points", "minibatch": 16}
ROLLOUT = {"cluster": "cluster.toml", "workers": 2, "updates": 4, "evaluations": 1, "rate": 0.02}
ROLLOUT |= {"protocol": {"slots": 8, "group": 4, "batch": 2, "eta": 2.0, "length_scale": 20}}
ROLLOUT["protocol"] |= {"train_s": 0.5, "publish": "in-flight", "prefill_s": 0.01}
ROLLOUT["protocol"] |= {"reward_s": 0.5, "environment_s": 0.5}
OURS = ROLLOUT | {"held_out": 6, "start": {"least": 0.0, "most": 1.0, "measured": 8}}
OURS |= {"policy": {"is": "SmallTransformer", "width": 8, "layers": 1, "heads": 1}}
OURS |= {"task": {"is": "rollouts"}}
"""Of bundled problems, which an untrained policy answers wrongly, so that nothing is learnt."""
OWN = ROLLOUT | {
    "task": {"is": "rollouts", "problems": "keys_mine:prompts", "reward": "keys_mine:reward"}
}
OWN["task"] |= {"policy": "keys_mine:policy", "context": 8}
MINE = """
from torch import nn
from torch.nn.functional import cross_entropy
from tests.modules import mlp, points
def wide():
    return mlp(hidden=14)
def half(outputs, targets):
    return 0.5 * cross_entropy(outputs, targets)
def others():
    return points(200)
def policy():
    return nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
prompts = [[1 + k % 4] * (1 + k % 3) for k in range(24)]
def wider():
    return nn.Sequential(nn.Embedding(5, 9), nn.Linear(9, 5))
fewer = prompts[:20]
def reward(prompt, answer):
    return answer.count(prompt[0]) / len(answer)
def twice(prompt, answer):
    return reward(prompt, answer) ** 2
def sampler(policy, prefixes, draws):
    from harness.rollouts.sampling import sample
    return sample(policy, prefixes, 0.5 * draws)
"""
"""What a user's own file has, beside the run file that names it."""

PROTOCOLS = {
    "parameter_server": TRAINING | {"algorithm": {"is": "AsyncSgd"}},
    "averaging": in_rounds({"is": "Averaging", "every": 2}, "ModelAveraging"),
    "buckets": in_rounds({"is": "Averaging", "every": 1, "buckets": [3.0, 5.0]}),
    "backup_workers": in_rounds({"is": "BackupWorkers", "backups": 1}),
    "sequence": SEQUENCE,
}
"""Run files, by the protocols that can be trained with; averaging has two kinds of rounds."""
RUNS_ONLY = {"parameter_server", "averaging", "buckets", "backup_workers"}
"""Those of runs that `compare-algorithms` and `tolerate` take."""
SIMULATED = {
    "parameter_server": [],
    "averaging": ["--every", "2"],
    "buckets": ["--protocol", "averaging", "--every", "2", "--buckets", "4,6"],
    "backup_workers": ["--backups", "1"],
    "sequence": ["--slots", "2", "--frames", "6"],
}


# -- a command, and what comes of it ---------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a command came to.

    Attributes:
        result: of runs the digests of their files, else the figures that are printed.
        idle: keys that are said to have no effect.
        refusal: the line in which the command was refused, else nothing.
    """

    result: str
    idle: frozenset[str]
    refusal: str


class Desk:
    """Where commands are given: one folder, in which equal runs are trained once."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self._known: dict[str, Answer] = {}
        self.trained: list[Any] = []

    def ask(self, command: str, run: dict[str, Any], cluster: dict[str, Any]) -> Answer:
        """The answer of a command to a run file or, for `simulate`, its options."""
        name = json.dumps([command, run, cluster])
        if name not in self._known:
            self._known[name] = self._asked(command, run, cluster)
        return self._known[name]

    def _asked(self, command: str, run: dict[str, Any], cluster: dict[str, Any]) -> Answer:
        run_file, cluster_file = self._folder / "run.toml", self._folder / "cluster.toml"
        cluster_file.write_text(toml(cluster))
        run_file.write_text(toml(run))
        out, once = str(self._folder / "out"), ["--rates", "file", "--seeds", "1"]
        words = {
            "simulate": [
                str(cluster_file),
                *run.get("options", ()),
                "--folds",
                "12",
                "--json",
                "-",
            ],
            "train": [str(run_file), "--out", f"{out}/runs"],
            "predict": [str(run_file)],
            "compare-algorithms": [str(run_file), *once, "--out", out],
            "tolerate": [str(run_file), *once, "--out", out, "--margin", "100"],
        }[command]
        if command == "tolerate":
            most = run.get("workers", WORKERS)
            words += ["--from", str(max(1, most - 1)), "--to", str(max(2, most))]
        if command == "simulate":
            words += ["--workers", str(WORKERS)]
        self.trained.clear()
        self._capsys.readouterr()
        code = cli.main([command, *words])
        said = self._capsys.readouterr()
        assert code in (0, 2, 3), said.err
        lines = " ".join((said.out + said.err).splitlines())
        idle = frozenset(re.findall(r"no effect: +(\S+) +\(", lines))
        if code == 2:
            return Answer("", idle, said.err.strip().splitlines()[-1])
        files = [sorted(run.digests.items()) for run in self.trained]
        figures = [
            line for line in said.out.splitlines() if not line.startswith(("cluster ", "no effect"))
        ]
        return Answer(digest([files] if files else figures), idle, "")


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def toml(table: dict[str, Any]) -> str:
    """A file that says what a table does, each key on a line."""
    return "".join(f"{name} = {inline(value)}\n" for name, value in table.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {inline(each)}' for name, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch) -> Desk:
    """Commands execute runs here and draw nothing."""
    corpus = tiny_corpus()
    corpus = replace(corpus, silence=(4,))
    storage.save(corpus, tmp_path / "corpus")
    storage.save(replace(corpus, features=2.0 * corpus.features), tmp_path / "another")
    (tmp_path / "another.toml").write_text(toml(tomllib.loads(clusters.FILES["measured"][0])))
    far = with_key(tomllib.loads(clusters.EVERYTHING), "link.latency_s", 3.0)
    (tmp_path / "far.toml").write_text(toml(far))
    (tmp_path / "keys_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    made = Desk(tmp_path, capsys)

    def run(runner, configs, show, budget_s=None):
        del show, budget_s
        found = [each.execute(runner.store, lambda _: None) for each in configs]
        made.trained += found
        return {each.hash: each for each in found}

    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.setattr(cli, "parser_of", cache(cli.parser_of))
    monkeypatch.setattr("harness.judge.comparison.describe_program", lambda *_: {})  # asks git
    monkeypatch.setattr("reports.answers.Answer.write", lambda *_: [])
    monkeypatch.setattr(task, "load_corpus", cache(task.load_corpus))
    return made


# -- what becomes of a key -------------------------------------------------------------------


def fate(known: Answer, others: Iterable[tuple[bool, Answer]], key: str, stood: bool) -> str | None:
    """What becomes of a key that moves: "moves", "named" or "refused", or what is wrong.

    Args:
        known: the answer as the file is.
        others: the answers at other values of the key, and whether that value is its default.
        key: its name.
        stood: whether it stands at its default in the file.
    """
    fates = set()
    for is_default, other in others:
        if other.refusal:
            fates |= {"refused"} if clusters.names(other.refusal, key) else set()
            continue
        told = [
            clusters.is_named(key, a.idle)
            for a, plain in ((known, stood), (other, is_default))
            if not plain
        ]
        if other.result != known.result:
            return "named, and moves" if told and all(told) else "moves"
        fates.add("named" if all(told) else "moves nothing, and is not named")
    order = ("moves nothing, and is not named", "named", "refused")
    return next((word for word in order if word in fates), None)


# -- keys of cluster files -------------------------------------------------------------------


def cluster_keys() -> dict[tuple[type, str], list[tuple[str, clusters.Key]]]:
    """Every key of a cluster file by its class and field, with the files in which it is moved."""
    found: dict[tuple[type, str], list[tuple[str, clusters.Key]]] = {}
    for file, (_, tables) in clusters.FILES.items():
        for key in clusters.keys_in(file):
            if not tables or key.name.startswith(tuple(tables.split())):
                found.setdefault((key.owner, key.field), []).append((file, key))
    return found


def read_by(command: str, protocol: str) -> bool:
    return protocol in RUNS_ONLY or command not in COMPARING


def run_of(command: str, protocol: str) -> dict[str, Any]:
    if command == "simulate":
        options = SIMULATED[protocol]
        named = [] if "--protocol" in options else ["--protocol", protocol]
        return {"options": [*named, *options]}
    return PROTOCOLS[protocol]


def test_every_key_of_a_cluster_file_counts_or_is_named_or_refused(desk):
    protocols, wrong = list(PROTOCOLS), []
    training = ("train", *COMPARING)
    for number, (_, places) in enumerate(cluster_keys().items()):
        commands = ("simulate", "predict", training[number % len(training)])
        for turn, command in enumerate(commands):
            protocol = protocols[(number + turn) % len(protocols)]
            if not read_by(command, protocol):
                protocol = protocols[(number // 5) % len(RUNS_ONLY)]
            wrong += [
                f"{command}, {protocol}: {file}: {key.name}: {found}"
                for file, key, found in [moved(desk, command, protocol, places)]
                if found not in ("moves", "named", "refused")
            ]
    assert not wrong, "\n".join(wrong)


def moved(desk, command, protocol, places):
    """A key of a cluster file, moved in the first file in which it is decided: where, its fate."""
    for file, key in places:
        table = tomllib.loads(clusters.FILES[file][0])
        run = run_of(command, protocol)
        known = desk.ask(command, run, table)
        if known.refusal:
            found = "refused" if clusters.names(known.refusal, key.name) else None
        else:
            others = (
                (clusters.is_default(key, other), desk.ask(command, run, changed))
                for other in clusters.others(key, clusters.cluster_of(file))
                for changed in [with_key(table, key.name, other)]
            )
            found = fate(known, others, key.name, clusters.is_default(key, key.value))
        if found is not None:
            break
    return file, key, found


def with_key(table, name, value):
    changed = json.loads(json.dumps(table))
    put(changed, name, list(value) if isinstance(value, tuple) else value, "test")
    return changed


# -- keys of run files -----------------------------------------------------------------------

NATURAL = NaturalGradient(Preconditioner(2, 2), Preconditioner(2, 2), PerSample(0.1))
LAYERED = NaturalGradient(Preconditioner(2, 2), Preconditioner(2, 2), PerComponent(0.01, 0.02))
IN_AVERAGING = {
    NaturalGradient: (NATURAL, "algorithm.descent"),
    Preconditioner: (NATURAL, "algorithm.descent.inputs"),
    PerSample: (NATURAL, "algorithm.descent.max_change"),
    PerComponent: (LAYERED, "algorithm.descent.max_change"),
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "Constant": {"rate": 0.02},
    "Cosine": {"rate": 0.02, "warmup": 0.3, "floor": 0.2},
    "Exponential": {"rate": 0.02, "passes": 2},
    "Halving": {"rate": 0.02, "halve_below": 1.0, "stop_below": -1.0},
    "Hand": {"rate": 0.02, "factor": 0.5, "groups_a_pass": 5, "tests_a_pass": 5, "gain": 0.5},
    "Linear": {"rate": 0.02, "warmup": 0.3, "floor": 0.2},
    "Search": {"rate": 0.02, "least_minibatches": 2, "sample": 0.9, "clear": 0.0},
    "Steps": {"rate": 0.02, "warmup": 0.3},
    "Warmup": {"rate": 0.02, "warmup": 0.3},
}


ALGORITHMS = {"EagerDiLoCo": {"workers": 3}, "AveragedSgd": {"eta": 0.3}}
MORE_OF = {
    "EagerDiLoCo": {"protocol": {"every": 2, "overlap": True}},
    "Easgd": {"protocol": {}, "stages": TRAINING["stages"]},
}
LATTICE = SEQUENCE["criterion"] | {"denominator": "lattice", "beam": {"width": 2.0}}
PLATEAU = {"patience": 1, "least_gain": 10.0, "factor": 0.1, "most": 2}


def place_of(kind: type) -> tuple[dict[str, Any], str]:
    """A run file that has a table of a class, and where it stands."""
    if kind in (ModuleConfig, ModuleTable):
        return MODULE, "task" if kind is ModuleTable else ""
    if kind.__module__.startswith("harness.rollouts."):
        return place_in_rollouts(kind)
    few = {"workers": 3, "stages": [{"minibatch": 8, "timed_minibatch": 1, "share": 0.4}]}
    server, averaging, backups = (
        PROTOCOLS[name] | few for name in ("parameter_server", "averaging", "backup_workers")
    )
    sequence = PROTOCOLS["sequence"]
    if kind in (RunConfig, SequenceConfig):
        return server if kind is RunConfig else sequence | {"evaluations": 4, "slots": 1}, ""
    if kind in IN_AVERAGING:
        descent, where = IN_AVERAGING[kind]
        more = {"stages": [{"minibatch": 4, "timed_minibatch": 1, "share": 0.4}]}
        return averaging | more | {"algorithm": table_of(ModelAveraging(descent))}, where
    if issubclass(kind, Algorithm):
        (instance, *_) = catalogue.instances_of(kind)
        base = averaging if instance.rounds else server
        told = base | {"algorithm": table_of(instance) | ALGORITHMS.get(kind.__name__, {})}
        told |= MORE_OF.get(kind.__name__, {})
        return told, "algorithm"
    if issubclass(kind, LocalOptimizer):
        return averaging | {"algorithm": table_of(ModelAveraging(kind()))}, "algorithm.descent"
    if kind in get_args(Coder):
        told = {"is": "Compressed", "coder": table_of(kind())}
        return averaging | {"algorithm": told}, "algorithm.coder"
    if kind.__module__ == Mean.__module__:
        return averaging | {"algorithm": table_of(ModelAveraging(outer=kind()))}, "algorithm.outer"
    if issubclass(kind, schedules.Schedule):
        told = {"is": kind.__name__, **SCHEDULES[kind.__name__]}
        stages = [{"minibatch": 8, "timed_minibatch": 1}]
        more = {"passes": 3, "chunk": 0.6, "stages": stages}
        return server | {"schedule": told, **more}, "schedule"
    if issubclass(kind, TimingProtocol):
        (base,) = [
            run
            for run in (server, averaging, backups)
            if run.get("protocol", {"is": "ParameterServer"})["is"] == kind.__name__
        ]
        return base | {"protocol": {"is": kind.__name__, **base.get("protocol", {})}}, "protocol"
    return {
        Stage: (server, "stages[0]"),
        Recipe: (server | {"initial": {"is": "Recipe"}, "hidden": [6, 6]}, "initial"),
        WideRandom: (server | {"initial": {"is": "WideRandom"}}, "initial"),
        Criterion: (sequence, "criterion"),
        Beam: (sequence | {"criterion": LATTICE}, "criterion.beam"),
        Plateau: (sequence | {"plateau": PLATEAU, "evaluations": 5}, "plateau"),
    }[kind]


def place_in_rollouts(kind: type) -> tuple[dict[str, Any], str]:
    """The same for a class of training by rollouts."""
    if issubclass(kind, Problems):
        few = {Sorting: {"least": 3, "most": 4}, Reaching: {"least": 3, "most": 4}}.get(kind, {})
        return OURS | {"problems": {"is": kind.__name__} | few}, "problems"
    if issubclass(kind, Loss):
        return OWN | {"loss": {"is": kind.__name__}}, "loss"
    if kind is SmallTransformer:
        return OURS, "policy"
    names = {Rollouts: "protocol", OwnTable: "task"}
    return OWN, names.get(kind, "")


def table_of(value: Any) -> Any:
    """What a run file says of settings."""
    if is_dataclass(value):
        said = {entry.name: table_of(getattr(value, entry.name)) for entry in fields(value)}
        return {
            "is": type(value).__name__,
            **{name: x for name, x in said.items() if x is not None},
        }
    return [table_of(each) for each in value] if isinstance(value, tuple) else value


TIMED = {
    "RunConfig": "schedule passes cluster workers seed shards shuffling hidden timed_layers",
    "SequenceConfig": "cluster start timed_layers seed replicas slots passes fetch_s frames"
    " decode_cost waiting shards",
    "ModuleConfig": "passes cluster workers seed shards",
    "ModuleTable": "model loss data dev partition autocast minibatch charge_for parameter_bytes"
    " flops_per_example step_seconds",
    "RolloutConfig": "cluster protocol seed updates workers",
    "Rollouts": "batch decode_s environment_cv environment_law environment_s eta group interval"
    " length_scale prefill_s prompt_tokens publish recompute reward_cv reward_law reward_s room"
    " rule sequence_s slots steps sync_s token_s train_s tokens tokens_cv tokens_law most_tokens",
    "Stage": "minibatch timed_minibatch share",
    "Search": "sample rungs least_minibatches whole_trials",
    "Compressed": "coder",
    "TopK": "kept",
    "Int8": "block",
    "Easgd": "rounds",
    "ElasticDiLoCo": "fragments",
    "StreamingDiLoCo": "fragments",
    "Averaging": "every overlap collective buckets",
    "BackupWorkers": "backups",
    "ParameterServer": "push_every bound queue depth",
}
"""What time depends on: `predict` says nothing of the others, which are what is learned."""

EXAMPLES: dict[tuple[str, str], list[Any]] = {
    ("RunConfig", "corpus"): ["another"],
    ("ModuleConfig", "cluster"): ["another.toml"],
    ("ModuleConfig", "evaluations"): [5],
    ("ModuleConfig", "tested"): ["never"],
    ("ModuleConfig", "clip"): [0.001],
    ("ModuleConfig", "weight_decay"): [0.5],
    ("ModuleConfig", "accumulate"): [2],
    ("Steps", "at"): [[0.2]],
    ("TorchOptimizer", "name"): ["Adagrad"],
    ("TorchOptimizer", "settings"): ['{"eps": 0.5}'],
    ("ModuleTable", "model"): ["keys_mine:wide"],
    ("ModuleTable", "loss"): ["keys_mine:half"],
    ("ModuleTable", "data"): ["keys_mine:others"],
    ("ModuleTable", "test"): ["keys_mine:others"],
    ("ModuleTable", "dev"): [0.3],
    ("ModuleTable", "partition"): ["by_label"],
    ("ModuleTable", "autocast"): ["bfloat16"],
    ("ModuleTable", "metric"): ["loss"],
    ("ModuleTable", "charge_for"): ["keys_mine:wide"],
    ("ModuleTable", "parameter_bytes"): [1e6],
    ("ModuleTable", "flops_per_example"): [1e9],
    ("ModuleTable", "step_seconds"): [2.0],
    ("RunConfig", "cluster"): ["another.toml"],
    ("RunConfig", "targets"): [{"kappa": 1.0}],
    ("SequenceConfig", "corpus"): ["another"],
    ("SequenceConfig", "cluster"): ["another.toml"],
    ("SequenceConfig", "start"): [START | {"hidden": [5]}],
    ("SequenceConfig", "criterion"): [SEQUENCE["criterion"] | {"kappa": 1.0}],
    ("SequenceConfig", "fetch_s"): [500.0],
    ("SequenceConfig", "plateau"): [{"patience": 1, "least_gain": 10.0}],
    ("RolloutConfig", "cluster"): ["far.toml"],
    ("RolloutConfig", "policy"): ["keys_mine:wider"],
    ("RolloutConfig", "problems"): ["keys_mine:fewer"],
    ("RolloutConfig", "start"): [{"steps": 3}],
    ("RolloutConfig", "protocol"): [ROLLOUT["protocol"] | {"group": 3}],
    ("RolloutConfig", "clip"): [1e-4],
    ("Plateau", "at"): [[1], [2]],
    ("Sorting", "tail"): [9.0],
    ("Reaching", "least"): [4],
    ("Reaching", "most"): [3],
    ("OwnTable", "sampler"): ["keys_mine:sampler"],
    ("OwnTable", "reward"): ["keys_mine:twice"],
    ("OwnTable", "test"): ["keys_mine:prompts"],
    ("Rollouts", "sync_s"): [0.4],
    ("RunConfig", "scale"): ["laptop"],
    ("RunConfig", "evaluations"): [5],
    ("Halving", "halve_below"): [-1.0],
    ("SequenceConfig", "scale"): ["laptop"],
    ("RunConfig", "schedule"): [{"is": "Search", "rate": 0.02, "least_minibatches": 2}],
    ("AveragedSgd", "descent"): [{"is": "AsyncSgd", "scaling": "memory_of_one"}],
    ("DelayCompensated", "history"): [1],
    ("EagerDiLoCo", "outer"): [{"momentum": 0.5}],
    ("ElasticDiLoCo", "outer"): [{"momentum": 0.5}],
    ("StreamingDiLoCo", "outer"): [{"momentum": 0.5}],
    ("Muon", "rest"): [{"beta1": 0.5}],
    ("Halving", "stop_below"): [1.0],
    ("Search", "least_minibatches"): [1000],
    ("Hand", "gain"): [0.0],
    ("AveragedSgd", "considers"): [1, 50],
    ("Criterion", "reject_below"): [0.3],
    ("PerSample", "limit"): [1e-6],
    ("Averaging", "buckets"): [[3.0, 5.0]],
    ("Criterion", "beam"): [{"width": 1.0}],
    ("NaturalGradient", "inputs"): [{"rank": 1, "period": 2}],
    ("NaturalGradient", "outputs"): [{"rank": 1, "period": 2}],
}
"""Other values of keys, where their type and limits do not lead to one that counts."""


def examples(kind: type, name: str, value: Any) -> list[Any]:
    """Other values of a key of a run file; none are known of some types."""
    if (kind.__name__, name) in EXAMPLES:
        return EXAMPLES[kind.__name__, name]
    entry = next(entry for entry in fields(kind) if entry.name == name)
    hint, limits = get_type_hints(kind)[name], limits_of(entry)
    parts = {hint, *get_args(hint)}
    apart = {"ForcedAlignment"} | catalogue.OF_ONE_MODEL
    if inner := [each for each in tables_in(hint) if each.__name__ not in apart]:
        now = value["is"] if isinstance(value, dict) and "is" in value else None
        return [place_table(each) for each in inner if each.__name__ != now][:2]
    found: list[Any] = list(limits.one_of or ())
    found += [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    if isinstance(value, list):
        found += [[each + (1 if int in parts else 0.5) for each in value]]
    elif bool in parts:
        found += [not value]
    elif int in parts:
        found += [2 * (value or 1), (value or 0) + 1, 1]
    elif float in parts:
        found += [(value or 1.0) * factor for factor in (0.5, 2.0)]
    return [
        each
        for each in found
        if each != value and (not isinstance(each, int | float) or limits.admits(each))
    ]


def place_table(kind: type) -> Any:
    run, where = place_of(kind)
    return get(json.loads(json.dumps(run)), where, "test")


def test_every_key_of_a_run_file_counts_or_is_named_or_refused(desk):
    machine, wrong, timed = tomllib.loads(clusters.EVERYTHING), list[str](), set[str]()
    turns = cycle(COMPARING)
    for kind in classes():
        if kind is WarmStart:
            continue  # a training of its own: tests/harness/rollouts
        if kind is ForcedAlignment:
            continue  # made by papers, of a whole configuration: `test_idle.py`
        if kind.__name__ in catalogue.OF_ONE_MODEL:
            continue
        run, where = place_of(kind)
        for entry in entries_of(kind):
            name, key = f"{kind.__name__}.{entry.name}", f"{where}.{entry.name}".lstrip(".")
            stands, default = value_in(run, key, default_of(kind, entry)), default_of(kind, entry)
            others = examples(kind, entry.name, stands)
            assert others, f"{name}: no other value is known: one belongs into EXAMPLES"
            for command in ("train", "predict", next(turns)):
                if not read_by(command, protocol_of(run)):
                    continue
                known = desk.ask(command, run, machine)
                answers = (
                    (other == default, desk.ask(command, with_key(run, key, other), machine))
                    for other in others
                )
                found = fate(known, answers, key, stands == default)
                if known.refusal:  # it turns workers, which eager DiLoCo has so many of
                    assert command == "tolerate", known.refusal
                    found = "refused" if clusters.names(known.refusal, where) else None
                if command == "predict":
                    timed |= {name} if found == "moves" else set()
                elif found not in ("moves", "named", "refused"):
                    wrong.append(f"{command}: {name}: {found}")
    assert not wrong, "\n".join(wrong)
    assert timed == {f"{kind}.{name}" for kind, names in TIMED.items() for name in names.split()}


def protocol_of(run):
    if run.get("task", {}).get("is") == "rollouts":
        return "rollouts"
    return "sequence" if run.get("is") == "SequenceConfig" else "parameter_server"


def default_of(kind, entry):
    """A key's value where a file does not say it."""
    usual = load("tasks", kind.task).usual if hasattr(kind, "task") else {}
    if entry.name in usual:
        return usual[entry.name]
    found = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    return None if found is MISSING else table_of(found)


def value_in(run, key, default):
    """What a key stands at."""
    try:
        return get(json.loads(json.dumps(run)), key, "test")
    except UserError:
        return default
