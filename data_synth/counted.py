"""How far a corpus that is being made or read is, in lines for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from data_synth.storage import Chunk

EVERY_S = 5.0


def counted(
    progress: Callable[[str], None],
    of: str,
    total: int,
    what: str,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[int], None]:
    """What is told how many are done, and passes on a line now and then.

    Args:
        progress: takes a line: one in ``EVERY_S`` seconds, and the one that says that all are done.
        of: whose they are, as ``"fsdd"``.
        total: how many there will be.
        what: is counted, as ``"recordings read"``.
        clock: seconds; only differences count.
    """
    said_s = clock()

    def tell(done: int) -> None:
        nonlocal said_s
        if done >= total or clock() - said_s >= EVERY_S:
            said_s = clock()
            progress(f"{of}: {done} of {total} {what}")

    return tell


def counted_chunks(
    made: Iterable[Chunk], progress: Callable[[str], None], of: str, total: int
) -> Iterator[Chunk]:
    """The chunks of a corpus, with their utterances counted as they are taken.

    Args:
        made: the chunks.
        progress: takes a line.
        of: the corpus, as ``"parametric corpus"``.
        total: how many utterances there will be.
    """
    tell, done = counted(progress, of, total, "utterances made"), 0
    for chunk in made:
        yield chunk
        done += len(chunk.utterances)
        tell(done)
