"""Language models written as ARPA files, for what reads them."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from harness.acoustics.language_model import LN10, NEVER, LanguageModel


def write_arpa(model: LanguageModel, path: Path) -> None:
    """Write a model; a name ending in ``.gz`` is compressed."""
    data = ("\n".join(_lines(model)) + "\n").encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _lines(model: LanguageModel) -> Iterator[str]:
    by_order = [[g for g in model.log_probs if len(g) == n + 1] for n in range(model.order)]
    yield "\\data\\"
    yield from (f"ngram {n}={len(grams)}" for n, grams in enumerate(by_order, 1))
    for n, grams in enumerate(by_order, 1):
        yield f"\n\\{n}-grams:"
        for gram in sorted(grams):
            value = max(model.log_probs[gram] / LN10, NEVER)
            line = f"{value:.12g}\t{' '.join(gram)}"
            back = model.backoffs.get(gram)
            yield line if back is None else f"{line}\t{max(back / LN10, NEVER):.12g}"
    yield "\n\\end\\"
