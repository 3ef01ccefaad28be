"""A training run from a TOML file: the user's own cluster, corpus and algorithm.

The keys are the fields of `RunConfig`, and what is one of several classes says which with
``is``. A run file leaves out what follows from the rest: the corpus's fingerprint and the
device. ``cluster`` names a cluster file, relative to the run file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from data_synth import load_corpus
from data_synth.corpus import Corpus
from harness.algorithms.catalogue import ALGORITHMS
from harness.errors import UserError
from harness.execution.runs.config import FORMAT, RunConfig
from harness.simulator import Averaging, ParameterServer, load_cluster
from harness.spec import KIND, build, load_toml

USUAL: dict[str, Any] = {
    "scale": "smoke",
    "corpus_seed": 0,
    "activation": "sigmoid",
    "initial": None,
    "chunk": 1.0,
    "evaluations": 10,
    "passes": 1,
    "seed": 0,
}
"""What a run file may leave out."""
FOLLOWS = ("fingerprint", "device", "format")
"""Fields that are no choice of the file's."""


@dataclass(frozen=True)
class RunFile:
    """What a file asks for, and the corpus it names."""

    config: RunConfig
    corpus: Corpus


def load_run(
    path: Path,
    *,
    seed: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> RunFile:
    """Read a run file and load its corpus.

    Args:
        path: the file.
        seed: in place of the file's.
        device: where it is executed.
        progress: told when a corpus is made.

    Raises:
        UserError: a mistake in the file, its cluster file or its corpus.
    """
    table = {**USUAL, **load_toml(path)}
    for name in FOLLOWS:
        if name in table:
            raise UserError(f"{path}: {name}: not allowed; it follows from the rest")
    corpus = load_corpus(
        _word(path, table, "corpus"),
        scale=_word(path, table, "scale"),
        seed=_whole(path, table, "corpus_seed"),
        progress=progress,
    )
    table["cluster"] = load_cluster(path.parent / _word(path, table, "cluster"))
    table.setdefault("timed_layers", _layers(corpus, table.get("hidden")))
    if isinstance(table.get("protocol"), dict):
        table["protocol"] = {KIND: _usual_protocol(table), **table["protocol"]}
    if seed is not None:
        table["seed"] = seed
    follows = {"fingerprint": corpus.fingerprint, "device": device, "format": FORMAT}
    return RunFile(build(RunConfig, {**table, **follows}, str(path)), corpus)


def _usual_protocol(table: dict[str, Any]) -> str:
    """What a table ``protocol`` without ``is`` stands for: what the algorithm trains in."""
    algorithm = cast(object, table.get("algorithm"))
    named = cast(dict[str, object], algorithm).get(KIND) if isinstance(algorithm, dict) else None
    one_by_one = any(named == kind.__name__ and not kind.rounds for kind in ALGORITHMS)
    return (ParameterServer if one_by_one else Averaging).__name__


def _layers(corpus: Corpus, hidden: object) -> list[object]:
    """The trained network's own sizes, where no other is to be timed."""
    between = cast(list[object], hidden) if isinstance(hidden, list) else []
    return list(corpus.layers(cast(Any, between)))


def _word(path: Path, table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        shown = "missing; needed: a string" if value is None else f"{value!r} is not a string"
        raise UserError(f"{path}: {key}: {shown}")
    return value


def _whole(path: Path, table: dict[str, Any], key: str) -> int:
    value = table[key]
    if type(value) is not int or value < 0:
        raise UserError(f"{path}: {key}: {value!r} is not allowed; allowed: a whole number from 0")
    return value
