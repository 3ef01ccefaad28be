"""Corpora made once and kept: where, under which key, and making them all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_synth.corpus import Corpus
from data_synth.storage import load, new_folder, remove_folder
from harness.base.errors import UserError
from harness.base.log import LOG

PACKAGE = Path(__file__).parent


def cache_folder(cache: Path | None = None) -> Path:
    """The folder for made and fetched corpora.

    ``cache`` if given, else the environment's LAGBENCH_CACHE, else
    XDG_CACHE_HOME/lagbench, else ~/.cache/lagbench.
    """
    if cache is not None:
        return cache
    if named := os.environ.get("LAGBENCH_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lagbench"


def recipe_key(recipe: dict[str, Any], makers: tuple[str, ...]) -> str:
    """A short key that changes with the recipe and with the code that follows it.

    Args:
        recipe: all that decides the corpus, as plain values.
        makers: the modules that make it, as paths within this package.
    """
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    for maker in makers:
        digest.update((PACKAGE / maker).read_bytes())
    return digest.hexdigest()[:16]


def cached(folder: Path, make: Callable[[Path], None]) -> Corpus:
    """The corpus in ``folder``, made first if it is not there, and again if it is damaged.

    Args:
        folder: where it is kept.
        make: fills an empty folder with a corpus; if it fails nothing is kept.
    """
    if not (folder / "corpus.json").exists():
        new_folder(folder, make)
    try:
        return load(folder)
    except UserError as error:
        LOG.warning(f"{error}; it is made again")
        remove_folder(folder)
        new_folder(folder, make)
        return load(folder)
