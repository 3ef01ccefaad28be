"""A sequence training from a TOML file, of which ``is = "SequenceConfig"`` tells.

The keys are the fields of `SequenceConfig`; the table ``start`` has those of the `RunConfig` it
starts from. What the file leaves out follows from the rest: the corpus's fingerprint and the
device, and in ``start`` the corpus, the cluster and the timed layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from data_synth import load_corpus
from data_synth.corpus import Corpus
from harness.errors import UserError
from harness.execution.runs import config as run_config
from harness.execution.runs import file as run_file
from harness.execution.runs import sequence as sequence_config
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import load_cluster
from harness.spec import KIND, build, load_toml

USUAL: dict[str, Any] = {
    "scale": "smoke",
    "corpus_seed": 0,
    "seed": 0,
    "criterion": {},
}
"""What a file may leave out, besides what has a default."""
WORDS = ("corpus", "scale", "cluster")


@dataclass(frozen=True)
class SequenceFile:
    """What a file asks for, and the corpus it names."""

    config: SequenceConfig
    corpus: Corpus


def is_sequence(path: Path) -> bool:
    """Whether a run file asks for sequence training.

    Raises:
        UserError: it cannot be read.
    """
    return load_toml(path).get(KIND) == SequenceConfig.__name__


def load_sequence(
    path: Path,
    *,
    seed: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> SequenceFile:
    """Read a file and load its corpus.

    Args:
        path: the file.
        seed: in place of the file's; not of the start's.
        device: where it is executed.
        progress: told when a corpus is made.

    Raises:
        UserError: a mistake in the file, its cluster file or its corpus.
    """
    table = {**USUAL, **load_toml(path)}
    _check(path, table, run_file.FOLLOWS)
    corpus = load_corpus(
        table["corpus"], scale=table["scale"], seed=table["corpus_seed"], progress=progress
    )
    follows = {"fingerprint": corpus.fingerprint, "device": device}
    shared = {name: table[name] for name in (*WORDS, "corpus_seed")} | follows
    shared["cluster"] = load_cluster(path.parent / table["cluster"])
    inside = table["start"]
    layers = list(corpus.layers(inside.get("hidden", ())))
    shared["timed_layers"] = table.get("timed_layers", layers)
    start = {**run_file.USUAL, **inside, **shared, "format": run_config.FORMAT}
    if seed is not None:
        table["seed"] = seed
    whole = {**table, **shared, "start": start, "format": sequence_config.FORMAT}
    return SequenceFile(build(SequenceConfig, whole, str(path)), corpus)


def _check(path: Path, table: dict[str, Any], follows: tuple[str, ...]) -> None:
    """Refuse what has to be right before the corpus can be loaded.

    Raises:
        UserError: something is not.
    """
    start = cast(object, table.get("start"))
    if not isinstance(start, Mapping):
        raise UserError(f"{path}: start: missing; needed: a table with the run it starts from")
    inside = cast(Mapping[str, object], start)
    known = (*follows, *WORDS, "corpus_seed", "timed_layers")
    wrong = [name for name in follows if name in table]
    wrong += [f"start.{name}" for name in known if name in inside]
    if wrong:
        raise UserError(f"{path}: {wrong[0]}: not allowed; it follows from the rest")
    for name in WORDS:
        if not isinstance(table.get(name), str):
            shown = f"{table[name]!r} is not a string" if name in table else "missing"
            raise UserError(f"{path}: {name}: {shown}; needed: a string")
    if type(table["corpus_seed"]) is not int or table["corpus_seed"] < 0:
        shown = f"{table['corpus_seed']!r} is not allowed"
        raise UserError(f"{path}: corpus_seed: {shown}; allowed: a whole number from 0")
