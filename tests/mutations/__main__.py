"""Do the tests guard the heart? `tox -e mutations`, or `python -m tests.mutations`.

Plants every declared mutation in a copy of the tree and runs the tests of its room. Ends with 1
if one survives without a written reason, with 2 if they could not be tried.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.mutations.declared import CannotApply, Mutation, declared, module_of, paths_of
from tests.mutations.trial import Copy, Outcome, preload

Told = tuple[Mutation | None, Outcome]
LOOKS_EVERY_S = 1.0
"""How often it is asked whether all who try mutations live."""


class WorkerDied(Exception):  # noqa: N818 (what happened, not what was wrong)
    """A process that tried mutations ended before its share did."""


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    options = _options(words)
    chosen = [m for m in declared() if not options.only or any(o in m.name for o in options.only)]
    if not chosen:
        print(f"--only {options.only}: no mutation has this in its name", file=sys.stderr)
        return 2
    try:
        for mutation in chosen:
            module_of(mutation)
            paths_of(mutation)
    except CannotApply as error:
        print(error, file=sys.stderr)
        return 2
    preload()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # trials end with who began them
    prefix = "lagbench-mutations-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        try:
            return _report(chosen, _tried(chosen, options.jobs, options.limit, Path(folder)))
        except WorkerDied as error:
            print(error, file=sys.stderr)
            return 2


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help="those with it in the name")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree at once")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a trial may take")
    return parser.parse_args(words)


def _tried(chosen: Sequence[Mutation], jobs: int, limit_s: float, folder: Path) -> Iterator[Told]:
    """Each mutation with its outcome, as they end; None stands for a tree without any."""
    shares = [chosen[place::jobs] for place in range(min(jobs, len(chosen)))]
    context = get_context("fork")
    workers = {}
    try:
        for place, share in enumerate(shares):
            hears, tells = context.Pipe(duplex=False)
            own = folder / str(place), share, limit_s, tells
            workers[hears] = context.Process(target=_work, args=own, daemon=True)
            workers[hears].start()
            tells.close()
        yield from _heard(workers)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join()


def _heard(workers: Mapping[Connection, BaseProcess]) -> Iterator[Told]:
    """What workers tell, until all have ended.

    Raises:
        WorkerDied: one was killed. Its pipe may stay open, as what it began has it too.
    """
    pipes = list(workers)
    while pipes:
        for pipe in wait(pipes, LOOKS_EVERY_S):
            try:
                news = pipe.recv()
            except EOFError:
                pipes.remove(pipe)
                continue
            if isinstance(news, BaseException):
                raise news
            yield news
        if codes := [worker.exitcode for worker in workers.values() if worker.exitcode]:
            raise WorkerDied(f"a process that tried mutations ended with {codes[0]}: no result")


def _work(folder: Path, share: Sequence[Mutation], limit_s: float, tells: Connection) -> None:
    """Try a share of the mutations in a copy of the tree."""
    try:
        copy = Copy(folder)
        tells.send((None, copy.begin(share, limit_s * len(share))))
        for mutation in share:
            tells.send((mutation, copy.tried(mutation, limit_s)))
    except Exception as error:
        tells.send(error)


def _report(chosen: Sequence[Mutation], tried: Iterator[Told]) -> int:
    """Tell of each as it ends, then of all; the exit code."""
    print(f"{len(chosen)} mutations; first their tests without any", flush=True)
    outcomes: dict[str, tuple[Mutation, Outcome]] = {}
    begun = time.monotonic()
    for mutation, outcome in tried:
        if mutation is None:
            if outcome.verdict != "survived":
                print(f"without a mutation: {outcome.verdict}: {outcome.word}", flush=True)
                return 2
            begun = time.monotonic()
            continue
        outcomes[mutation.name] = (mutation, outcome)
        left_s = (time.monotonic() - begun) / len(outcomes) * (len(chosen) - len(outcomes))
        print(
            f"{len(outcomes):3d}/{len(chosen)}  {outcome.verdict:9s} {outcome.seconds:6.1f} s  "
            f"{mutation.name}  ({outcome.word[:100]}; about {left_s / 60.0:.0f} min left)",
            flush=True,
        )
    return _summary(list(outcomes.values()))


def _summary(outcomes: Sequence[tuple[Mutation, Outcome]]) -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    caught = sum(outcome.is_caught for _, outcome in outcomes)
    late = sum(outcome.verdict == "timed out" for _, outcome in outcomes)
    found = f"caught {caught} of {len(outcomes)}, {late} of them by taking too long"
    print(f"{found}; {used.ru_utime + used.ru_stime:.0f} s of processor")
    missed = [(mutation, outcome) for mutation, outcome in outcomes if not outcome.is_caught]
    for mutation, outcome in missed:
        reason = mutation.survives_because or f"{module_of(mutation)}: {mutation.wrong}"
        print(f"{outcome.verdict}: {mutation.name}: {reason}")
    excused = all(m.survives_because and o.verdict == "survived" for m, o in missed)
    return 0 if excused else 1


if __name__ == "__main__":
    sys.exit(main())
