"""A run from a TOML file: the user's own cluster, corpus and algorithm.

The key ``is`` names the kind of run, `RunConfig` where it is absent; the keys are the fields of
that class, and what is one of several classes says which with an ``is`` of its own. A file leaves
out what follows from the rest: the corpus's fingerprint and the device, and in the table ``start``
of a sequence training also the corpus, the cluster and the timed layers. ``cluster`` is a cluster
that comes along, by name, or a file, relative to the run file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from data_synth import load_corpus
from data_synth.corpus import Corpus
from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError
from harness.base.files import cluster_file
from harness.base.registry import discovered, imported
from harness.base.settings import KIND, build, dataclasses_below, load_toml
from harness.simulator import Averaging, ParameterServer, load_cluster
from harness.speech import frames, sequence
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig

Table = dict[str, Any]

Config = TypeVar("Config", bound=RunConfig | SequenceConfig)

CORPUS = {"scale": "smoke", "corpus_seed": 0, "seed": 0}

FRAMES = {"activation": "sigmoid", "initial": None, "chunk": 1.0, "evaluations": 10, "passes": 1}

IMPORT = "import"
"""The key that names modules with algorithms or protocols of the user's."""

FOLLOWS = ("fingerprint", "device", "format")
"""Fields that are no choice of the file's."""

SHARED = ("corpus", "scale", "corpus_seed", "cluster", "timed_layers")
"""Fields that a sequence training and its start have in common."""


@dataclass(frozen=True)
class RunFile(Generic[Config]):
    """What a file asks for, and the corpus it names."""

    config: Config
    corpus: Corpus


@dataclass(frozen=True)
class Reader:
    """One kind of run.

    Attributes:
        usual: what a file may leave out, besides what has a default.
        network: the table that has the network's layers; checks what it needs of it.
        complete: fills in what follows from the rest.
        workers: the key that says how many there are.
    """

    usual: Table
    network: Callable[[Path, Table], Mapping[str, Any]]
    complete: Callable[[Table], Table]
    workers: str = "workers"


def kind_of(path: Path) -> type[RunConfig] | type[SequenceConfig]:
    """Which kind of run a file asks for.

    Raises:
        UserError: it cannot be read, or names none.
    """
    return spec_of(load_toml(path), str(path))


def spec_of(table: Mapping[str, object], where: str) -> type[RunConfig] | type[SequenceConfig]:
    """The class that a table describes, of a run file or of a stored run.

    Raises:
        UserError: it names none.
    """
    for group in ("algorithms", "protocols"):
        discovered(group)
    named = table.get(KIND, RunConfig.__name__)
    for spec in KINDS:
        if spec.__name__ == named:
            return spec
    allowed = ", ".join(spec.__name__ for spec in KINDS)
    raise UserError(f"{where}: {KIND}: {named!r} is not allowed; allowed: {allowed}")


def load_run(
    path: Path,
    spec: type[Config] = RunConfig,
    *,
    seed: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
    changes: Sequence[tuple[tuple[str, ...], object]] = (),
) -> RunFile[Config]:
    """Read a run file and load its corpus.

    Args:
        path: the file.
        spec: the kind of run that it has to be.
        seed: in place of the file's; not of the run that a sequence training starts from.
        device: where it is executed.
        progress: told when a corpus is made.
        changes: values in place of the file's, each with the way to its key.

    Raises:
        UserError: a mistake in the file, its cluster file or its corpus.
    """
    reader = KINDS[spec]
    table: Table = {**CORPUS, **reader.usual, **load_toml(path)}
    for steps, value in changes:
        _put(path, table, steps, value)
    _import(path, table.pop(IMPORT, []))
    _refuse(path, [name for name in FOLLOWS if name in table])
    layers = reader.network(path, table).get("hidden")
    corpus = load_corpus(
        _word(path, table, "corpus"),
        scale=_word(path, table, "scale"),
        seed=_whole(path, table, "corpus_seed"),
        progress=progress,
    )
    table["cluster"] = load_cluster(_cluster_of(path, table))
    # What is no list of whole numbers is refused below, with the rest of the table.
    sizes = corpus.layers(cast(list[int], layers) if isinstance(layers, list) else ())
    table.setdefault("timed_layers", list(sizes))
    if seed is not None:
        table["seed"] = seed
    table |= {"fingerprint": corpus.fingerprint, "device": device}
    return RunFile(build(spec, reader.complete(table), str(path)), corpus)


def _cluster_of(path: Path, table: Table) -> Path:
    """The cluster file of a run."""
    try:
        return cluster_file(_word(path, table, "cluster"), path.parent)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _put(path: Path, table: Table, steps: Sequence[str], value: object) -> None:
    """Set a dotted key; tables on the way are made, and whether it is allowed is seen later."""
    here: Any = table
    for step in steps[:-1]:
        here = here.setdefault(step, {}) if isinstance(here, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(here, dict):
        raise UserError(f"{path}: {'.'.join(steps)}: no key; allowed: a key of a table")
    here[steps[-1]] = value


def _import(path: Path, names: object) -> None:
    """What the file imports, and what is installed, before its classes are looked up."""
    if not isinstance(names, list):
        raise UserError(f"{path}: {IMPORT}: {names!r} is not allowed; allowed: a list of modules")
    imported(cast(list[object], names), f"{path}: {IMPORT}", path.parent)
    for group in ("algorithms", "protocols"):
        discovered(group)


# -- training on frames ----------------------------------------------------------------------


def _of_frames(path: Path, table: Table) -> Mapping[str, Any]:
    del path
    return table


def _complete_frames(table: Table) -> Table:
    completed = {**table, "format": frames.FORMAT}
    if isinstance(table.get("protocol"), dict):
        completed["protocol"] = {KIND: _usual_protocol(table), **table["protocol"]}
    return completed


def _usual_protocol(table: Table) -> str:
    """What a table ``protocol`` without ``is`` stands for: what the algorithm trains in."""
    algorithm = table.get("algorithm")
    named = cast(Table, algorithm).get(KIND) if isinstance(algorithm, dict) else None
    known: tuple[type[Algorithm], ...] = dataclasses_below(Algorithm)
    rounds = cast(Table, algorithm).get("rounds") if isinstance(algorithm, dict) else None
    one_by_one = rounds is False or any(
        named == kind.__name__ and not (kind.rounds if rounds is None else rounds) for kind in known
    )
    return (ParameterServer if one_by_one else Averaging).__name__


# -- sequence training -----------------------------------------------------------------------


def _of_sequence(path: Path, table: Table) -> Mapping[str, Any]:
    """The table ``start``.

    Raises:
        UserError: it is missing, or sets what follows from the whole.
    """
    start: object = table.get("start")
    if not isinstance(start, Mapping):
        raise UserError(f"{path}: start: missing; needed: a table with the run it starts from")
    inside = cast(Mapping[str, Any], start)
    _refuse(path, [f"start.{name}" for name in (*FOLLOWS, *SHARED) if name in inside])
    return inside


def _complete_sequence(table: Table) -> Table:
    shared = {name: table[name] for name in (*SHARED, "fingerprint", "device")}
    start = _complete_frames({"seed": 0, **FRAMES, **table["start"], **shared})
    return {**table, "start": start, "format": sequence.FORMAT}


KINDS: dict[type[RunConfig] | type[SequenceConfig], Reader] = {
    RunConfig: Reader(FRAMES, _of_frames, _complete_frames),
    SequenceConfig: Reader({"criterion": {}}, _of_sequence, _complete_sequence, "replicas"),
}
"""What a run file can ask for."""

# -- small checks ----------------------------------------------------------------------------


def _refuse(path: Path, names: list[str]) -> None:
    if names:
        raise UserError(f"{path}: {names[0]}: not allowed; it follows from the rest")


def _word(path: Path, table: Table, key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        shown = "missing" if value is None else f"{value!r} is not a string"
        raise UserError(f"{path}: {key}: {shown}; needed: a string")
    return value


def _whole(path: Path, table: Table, key: str) -> int:
    value = table[key]
    if type(value) is not int or value < 0:
        raise UserError(f"{path}: {key}: {value!r} is not allowed; allowed: a whole number from 0")
    return value
