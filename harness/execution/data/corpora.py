"""The corpus that a configuration names, as it was when the run was configured."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from data_synth import CAN_SKIP, load_corpus
from data_synth.corpus import Corpus
from harness.base.errors import UserError


class NamesCorpus(Protocol):
    """A configuration that says which corpus, and the SHA-256 of its content."""

    @property
    def corpus(self) -> str:
        """Its name."""
        ...

    @property
    def scale(self) -> str:
        """How much of it."""
        ...

    @property
    def corpus_seed(self) -> int:
        """What it was made with."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its content."""
        ...


def corpus_of(config: NamesCorpus, say: Callable[[str], None] = lambda line: None) -> Corpus:
    """The corpus; the last two are kept, so that what is made of one is made once a process.

    Args:
        config: whose.
        say: told when it is made anew.

    Raises:
        UserError: it cannot be made, or its content is another.
    """
    corpus = _loaded(config.corpus, config.scale, config.corpus_seed, say)
    if corpus.fingerprint != config.fingerprint:
        raise UserError(f"corpus {config.corpus}: not the one that the run was configured with")
    return corpus


@lru_cache(maxsize=2)
def _loaded(name: str, scale: str, seed: int, say: Callable[[str], None]) -> Corpus:
    return load_corpus(name, scale=scale, seed=seed, skip=name in CAN_SKIP, progress=say)
