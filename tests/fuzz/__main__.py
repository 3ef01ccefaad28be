"""``python -m tests.fuzz 2000``: so many inputs of every kind; the table says what went wrong.

``python -m tests.fuzz 2000 wav ark`` tries some kinds.
"""

import contextlib
import io
import sys
from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.kinds import INPUTS, WORDS, Input
from tests.fuzz.mutated import mutated
from tests.fuzz.tried import Bench


def failures(kind: Input, count: int, drawn_by: int = 0) -> Counter[str]:
    """What went wrong with so many inputs of a kind; each with the first input that did it."""
    bench, wrong, firsts = Bench(kind), Counter[str](), dict[str, bytes]()
    assert not bench.tried(bench.good), f"{kind.name}: the good one: {bench.tried(bench.good)}"

    @seed(drawn_by)
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(content=mutated(bench.good, WORDS))
    def try_all(content: bytes) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            found = bench.tried(content)
        if found:
            wrong[found] += 1
            firsts.setdefault(found, content)

    try_all()
    bench.close()
    return Counter({f"{what} by {firsts[what][:200]!r}": n for what, n in wrong.items()})


def main(arguments: Sequence[str]) -> int:
    """Try all; returns how many kinds failed."""
    count, names = int(arguments[0]), arguments[1:]
    failed = inputs = 0
    for kind in INPUTS:
        if names and kind.name not in names:
            continue
        found = failures(kind, count)
        inputs, failed = inputs + count, failed + bool(found)
        sorts = Counter(what.split(":")[0] for what in found)
        print(f"{kind.name:24} {count:7} inputs, {dict(sorts) or 'nothing wrong'}", flush=True)
        for what in list(found)[:5]:
            print(f"    {what[:400]}", flush=True)
    print(f"{inputs} inputs of {len(names) or len(INPUTS)} kinds, kinds that failed: {failed}")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
