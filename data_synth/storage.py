# pyarrow says no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
"""Corpora on disk: their files, the cache in which each is made once, and progress of making one.

``features.npy``, ``targets.npy``, ``utterances.parquet``, ``corpus.json``, and
``lm_text.parquet`` if there is text for a language model. A corpus is written in chunks into a
hidden folder beside the final one and renamed when it is complete. In the cache a folder's name
ends with a key of the recipe and of the code that makes the corpus (``recipe_key``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_synth.corpus import COLUMNS, Card, Corpus, Utterances, digest, join
from data_synth.tree import tree_from
from harness.base.errors import Damaged, UserError
from harness.base.log import LOG
from harness.store.files import exists, is_file, read_bytes, reading, sync

FORMAT = 1

HEADER_BYTES = 128

LM_TEXT = "lm_text.parquet"

MADE_AT_ONCE = 500
"""Utterances in a chunk, where generated speech is written."""


@dataclass(frozen=True)
class Chunk:
    """Some utterances with their frames; starts count from the chunk's first frame."""

    features: np.ndarray
    targets: np.ndarray
    utterances: Utterances


def _table(utterances: Utterances) -> pa.Table:
    columns = {name: pa.array(getattr(utterances, name).tolist()) for name in COLUMNS}
    return pa.table({**columns, "words": _sentences(utterances.words)})


def _sentences(words: Iterable[tuple[str, ...]]) -> pa.Array:
    return pa.array([list(w) for w in words], pa.list_(pa.string()))


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """An .npy header (format 1.0) of fixed length, so that it can be rewritten in place."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.ljust(HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("ascii")


class _Array:
    """One .npy file that grows, and the SHA-256 of its content so far."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.file: IO[bytes] = path.open("wb")
        self.dtype, self.digest, self.rows = dtype, hashlib.sha256(), 0
        self.file.write(bytes(HEADER_BYTES))

    def append(self, block: np.ndarray) -> None:
        raw = np.ascontiguousarray(block, self.dtype).data
        self.file.write(raw)
        self.digest.update(raw)
        self.rows += len(block)

    def close(self, row_shape: tuple[int, ...]) -> str:
        self.file.seek(0)
        self.file.write(_header(self.dtype, (self.rows, *row_shape)))
        self.file.close()
        return self.digest.hexdigest()


def write_chunks(folder: Path, card: Card, chunks: Iterable[Chunk]) -> None:
    """Writes a corpus piece by piece, holding one chunk in memory at a time.

    Args:
        folder: an existing folder that no other process reads yet.
        card: all fields but frames and utterances.
        chunks: its frames, in order; the result does not depend on how they are cut.
    """
    features, targets = (
        _Array(folder / "features.npy", "<f4"),
        _Array(folder / "targets.npy", "<i4"),
    )
    tables: list[Utterances] = []
    dim = 0
    for chunk in chunks:
        tables.append(chunk.utterances.shifted(features.rows))
        features.append(chunk.features)
        targets.append(chunk.targets)
        dim = chunk.features.shape[1]
    utterances = join(tables)
    pq.write_table(_table(utterances), folder / "utterances.parquet")
    known_as = digest(card, utterances, features.close((dim,)), targets.close(()))
    if card.lm_text:
        pq.write_table(pa.table({"words": _sentences(card.lm_text)}), folder / LM_TEXT)
    facts = {"format": FORMAT, "fingerprint": known_as, "lm_sentences": len(card.lm_text)}
    text = json.dumps({**facts, **card.plain()}, indent=1)
    (folder / "corpus.json").write_text(text + "\n")


def new_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Create a folder atomically: filled under a hidden name, then renamed.

    If another process finished the same folder first, its folder stays and ours is removed.

    Raises:
        UserError: the place cannot be written.
    """
    hidden = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        hidden.mkdir(parents=True)
        fill(hidden)
        for path in (*hidden.iterdir(), hidden):
            sync(path)
        if not exists(folder):
            hidden.replace(folder)
            sync(folder.parent)
    except OSError as error:
        raise UserError(f"{folder}: cannot write here ({error.strerror or error})") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder in one step; what another process has open of it stays readable."""
    hidden = folder.with_name(f".{folder.name}.{os.getpid()}.gone")
    with contextlib.suppress(FileNotFoundError):  # another process was first
        folder.replace(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def write(corpus: Corpus, folder: Path) -> None:
    """Writes a corpus into an empty folder; generated speech is made as it is written."""
    write_chunks(folder, corpus.card, _chunks_of(corpus))


def _chunks_of(corpus: Corpus) -> Iterator[Chunk]:
    """The stored utterances in one chunk, then the generated ones in several."""
    table, rows = corpus.utterances, len(corpus.features)
    stored = int(np.searchsorted(table.start, rows)) if corpus.speech else len(table)
    yield Chunk(corpus.features, corpus.targets[:rows], table.take(np.arange(stored)))
    if corpus.speech is None:
        return
    for at in range(stored, len(table), MADE_AT_ONCE):
        part = table.take(np.arange(at, min(at + MADE_AT_ONCE, len(table))))
        features = corpus.speech(np.arange(at, at + len(part)) - stored)
        begin = int(part.start[0])
        yield Chunk(features, corpus.targets[begin:][: len(features)], part.shifted(-begin))


def save(corpus: Corpus, folder: Path) -> None:
    """Writes a corpus to a folder that does not exist yet, all or nothing.

    Args:
        corpus: to be written.
        folder: that is created.

    Raises:
        UserError: the folder exists or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already; a corpus is saved to a new folder")
    new_folder(folder, lambda place: write(corpus, place))


def load(folder: Path) -> Corpus:
    """Opens a saved corpus with its frames mapped into memory, read-only.

    Args:
        folder: of a saved corpus.

    Raises:
        Damaged: a file is missing, damaged or of another length than the others.
        UserError: the machine refuses to read it.
    """
    corpus = _open_corpus(folder)
    if corpus.computed_fingerprint() != corpus.stored_fingerprint:
        raise Damaged(f"{folder}: damaged, its content does not match its fingerprint")
    return corpus


def _open_corpus(folder: Path) -> Corpus:
    try:
        card = json.loads(read_bytes(folder / "corpus.json"))
        corpus = Corpus(
            features=_map_array(folder / "features.npy"),
            targets=_map_array(folder / "targets.npy"),
            utterances=_utterances(_read_table(folder / "utterances.parquet")),
            lm_text=_lm_text(folder / LM_TEXT, card.pop("lm_sentences", 0)),
            **_fields(card),
        )
    except Exception as error:  # whatever a damaged file makes numpy and pyarrow raise
        if isinstance(error, MemoryError) or type(error) is UserError:  # the machine refuses
            raise
        raise Damaged(f"{folder}: not a whole corpus ({_one_line(error)})") from None
    frames = corpus.utterances.total_frames
    if not len(corpus.features) == len(corpus.targets) == frames:
        raise Damaged(
            f"{folder}: not a whole corpus (features.npy has {len(corpus.features)} frames, "
            f"targets.npy {len(corpus.targets)}, utterances.parquet {frames})"
        )
    return corpus


def _map_array(path: Path) -> np.ndarray:
    with reading(path):
        if is_file(path):
            return np.load(path, mmap_mode="r")
    raise Damaged(f"{path.name}: missing")


def _read_table(path: Path) -> pa.Table:
    return pq.read_table(pa.BufferReader(read_bytes(path)))


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _fields(card: dict[str, Any]) -> dict[str, Any]:
    if card.pop("format") != FORMAT:
        raise ValueError(f"corpus.json: format is not {FORMAT}")
    stored = card.pop("fingerprint")
    return {
        **card,
        "lexicon": {word: tuple(states) for word, states in card["lexicon"].items()},
        "silence": tuple(card["silence"]),
        "tests": tuple(card["tests"]),
        "pronunciations": {e: tuple(p) for e, p in card.get("pronunciations", {}).items()},
        "tree": tree_from(card["tree"]) if "tree" in card else None,
        "stored_fingerprint": stored,
    }


def _utterances(table: pa.Table) -> Utterances:
    columns = {name: np.array(table[name].to_pylist()) for name in COLUMNS}
    return Utterances(**columns, words=tuple(map(tuple, table["words"].to_pylist())))


def _lm_text(path: Path, sentences: int) -> tuple[tuple[str, ...], ...]:
    if not sentences:
        return ()
    text = tuple(map(tuple, _read_table(path)["words"].to_pylist()))
    if len(text) != sentences:
        raise ValueError(f"{path.name} has {len(text)} sentences, corpus.json says {sentences}")
    return text


PACKAGE = Path(__file__).parent


def cache_folder(cache: Path | None = None) -> Path:
    """The folder for made and fetched corpora.

    ``cache`` if given, else the environment's LAGBENCH_CACHE, else
    XDG_CACHE_HOME/lagbench, else ~/.cache/lagbench.
    """
    if cache is not None:
        return cache
    if folder := os.environ.get("LAGBENCH_CACHE"):
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lagbench"


def recipe_key(recipe: dict[str, Any], makers: tuple[str, ...]) -> str:
    """A short key that changes with the recipe and with the code that makes the corpus.

    Args:
        recipe: all parameters of the corpus, as plain values.
        makers: the modules that make it, as paths within this package.
    """
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    for maker in makers:
        digest.update((PACKAGE / maker).read_bytes())
    return digest.hexdigest()[:16]


def load_or_make(folder: Path, make: Callable[[Path], None]) -> Corpus:
    """The corpus in ``folder``, made first if it is not there, and again if it is damaged.

    Args:
        folder: of the corpus.
        make: fills an empty folder with a corpus; if it fails nothing is kept.
    """
    if not exists(folder / "corpus.json"):
        new_folder(folder, make)
    try:
        return load(folder)
    except Damaged as error:
        LOG.warning(f"{error}; it is made again")
        remove_folder(folder)
        new_folder(folder, make)
        return load(folder)


EVERY_S = 5.0


def progress_counter(
    progress: Callable[[str], None],
    of: str,
    total: int,
    what: str,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[int], None]:
    """A function of the number of items done that reports a line now and then.

    Args:
        progress: called with a line, once in ``EVERY_S`` seconds and when all are done.
        of: name of the corpus, e.g. ``"fsdd"``.
        total: number of items.
        what: name of the items, e.g. ``"recordings read"``.
        clock: seconds; only differences count.
    """
    said_s = clock()

    def tell(count: int) -> None:
        nonlocal said_s
        if count >= total or clock() - said_s >= EVERY_S:
            said_s = clock()
            progress(f"{of}: {count} of {total} {what}")

    return tell
