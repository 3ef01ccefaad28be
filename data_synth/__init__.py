"""Corpora with known truth, and recorded ones in the same type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from data_synth import parametric, presets
from data_synth.corpus import Corpus
from data_synth.public import aishell, fsdd
from data_synth.storage import cache_folder, load, save
from harness.base.errors import UserError, name_error
from harness.base.registry import load_plugins

CORPORA: dict[str, Callable[..., Corpus]] = {
    "parametric": parametric.make,
    **{name: presets.maker_of(name) for name in presets.PRESETS},
    "fsdd": fsdd.make,
    "aishell": aishell.make,
}
FETCHES: dict[str, Callable[..., Path]] = {"fsdd": fsdd.fetch, "aishell": aishell.fetch}
SYNTHETIC = ("parametric", *presets.PRESETS)
"""Corpora synthesised for each seed; the others are recorded."""
CAN_SKIP = ("aishell",)
SCALES = ("smoke", "laptop", "overnight", "gpu", "paper")


def _silent(line: str) -> None:
    """Discard a line of progress."""


def preset_of(name: str) -> str:
    """The preset of a name with a size, ``PRESET@UTTERANCES``; another name as it is."""
    preset, sign, utterances = name.partition("@")
    sized = sign and preset in presets.PRESETS and utterances.isdecimal() and int(utterances) > 0
    return preset if sized else name


def is_synthetic(name: str) -> bool:
    """Whether a corpus is synthesised for each seed."""
    return preset_of(name) in SYNTHETIC


def is_folder(name: str) -> bool:
    """Whether a name is the folder of a saved corpus, and not one of ``CORPORA``."""
    return name not in CORPORA and Path(name).is_dir()


def check_known(name: str, scale: str) -> None:
    """Reject an unknown corpus or scale before any heavy import.

    Args:
        name: one of ``CORPORA``, or the folder of a saved corpus.
        scale: one of `SCALES`.

    Raises:
        UserError: there is no such corpus or scale.
    """
    if scale not in SCALES:
        raise name_error("--scale", scale, SCALES)
    names = [*CORPORA, *load_plugins("corpora")]
    if preset_of(name) not in names and not is_folder(name):
        raise UserError(f"{name_error('corpus', name, names)}; or the folder of a saved corpus")


def load_corpus(
    name: str,
    *,
    scale: str,
    cache: Path | None = None,
    seed: int = 0,
    skip: bool = False,
    progress: Callable[[str], None] = _silent,
) -> Corpus:
    """Load a corpus by name; the first call makes it and keeps it in the cache.

    Args:
        name: one of ``CORPORA``: ``"parametric"`` (synthetic words), one of
            ``presets.PRESETS`` (synthetic sentences; ``PRESET@N`` has N training utterances), or a
            recorded corpus; or the folder of a saved corpus, e.g. an imported one, which has its
            own size and no seed.
        scale: one of ``SCALES``.
        cache: where made corpora are kept; see ``storage.cache_folder`` for the default.
        seed: decides everything random about the corpus.
        skip: leave bad recordings out and count them; one of ``CAN_SKIP`` only.
        progress: called with a line of text now and then while a corpus is made.

    Raises:
        UserError: an unknown name or scale, a recording that is missing or damaged, a
            cache that cannot be written.
    """
    check_known(name, scale)
    if is_folder(name):
        return replace(load(Path(name)), name=name)
    if skip and name not in CAN_SKIP:
        raise UserError(f"--skip-bad: corpus {name} has none; allowed: {', '.join(CAN_SKIP)}")
    options = {"skip": True} if skip else {}
    sized = preset_of(name) != name
    make = presets.maker_of(name) if sized else {**CORPORA, **load_plugins("corpora")}[name]
    return make(scale, seed=seed, cache=cache_folder(cache), progress=progress, **options)


def make_corpus(
    name: str,
    out: Path,
    *,
    scale: str,
    seed: int = 0,
    skip: bool = False,
    progress: Callable[[str], None] = _silent,
) -> Corpus:
    """Make a corpus by name in the folder ``out``; see ``load_corpus``.

    Raises:
        UserError: as ``load_corpus``, or the folder exists already.
    """
    if out.exists():
        raise UserError(f"--out {out}: exists already; a corpus is made in a new folder")
    corpus = load_corpus(name, scale=scale, seed=seed, skip=skip, progress=progress)
    save(corpus, out)
    return load(out)


def fetch_corpus(
    name: str, *, cache: Path | None = None, progress: Callable[[str], None] = _silent
) -> Path:
    """Downloads the recordings of a public corpus into the cache, checked by SHA-256.

    Returns:
        The folder they are in.

    Raises:
        UserError: an unknown name, no network, or other bytes than expected.
    """
    if name not in FETCHES:
        raise name_error("fetch", name, FETCHES)
    return FETCHES[name](cache_folder(cache), progress)
