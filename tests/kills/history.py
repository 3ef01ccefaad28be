"""A command that is disturbed again and again, and ends as one that never was."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from harness.base.errors import EXIT_INTERRUPTED
from tests.kills.ways import Way, cpu_s, hears, semaphores, session
from tests.processes import PATIENCE_S, Started

LOOKS_EVERY_S = 0.1
ORPHANS_S = 1.0
"""So long after its end a command's processes may live on."""
NEVER_SAID = ("Traceback",)
PROGRESS = "["
"""How lines of stderr begin that say how far a command has come."""


@dataclass
class History:
    """What happened to a command.

    Attributes:
        kills: how often it was disturbed, by the way.
        resumed: how often it was begun again beside a checkpoint of a run.
        equal: whether it found what it finds undisturbed.
        orphans_s: after its ends, how long its processes lived on.
        wrong: what should not have been seen, in words.
    """

    kills: dict[str, int] = field(default_factory=dict[str, int])
    resumed: int = 0
    equal: bool = False
    orphans_s: list[float] = field(default_factory=list[float])
    wrong: list[str] = field(default_factory=list[str])


def disturbed(
    begun: Callable[[], Started],
    out: Path,
    within_s: float,
    times: int,
    draw: Random,
    ways: dict[str, Way],
    let_end: Callable[[], None] = lambda: None,
) -> History:
    """Disturb a command so many times at moments drawn by the processor time it has taken.

    Args:
        begun: starts it, each time with the same words.
        out: its output folder.
        within_s: processor time from each start within which it is disturbed.
        times: at most; it may finish before.
        draw: of ways and moments.
        ways: each as often as the others.
        let_end: called after the last disturbance, for a command that waits for it with its end.
    """
    history, command = History(), begun()
    names = draw.sample(list(ways), len(ways))
    for name in [names[i % len(names)] for i in range(times)]:
        if not _came_to(command, draw.uniform(0.0, within_s)):
            break
        _disturb(command, name, ways[name], history)
        if ways[name].code is not None:
            history.resumed += any(out.rglob("runs/*/checkpoint/*"))
            command = begun()
    let_end()
    _check_end(command, 0, history)
    return history


def _came_to(command: Started, moment_s: float) -> bool:
    """Wait for a moment of a command's work; False if it ended before."""
    begun_s, end_s = cpu_s(command), time.monotonic() + PATIENCE_S
    while not hears(command) or cpu_s(command) - begun_s < moment_s:
        if not command.process.is_alive() or time.monotonic() > end_s:
            return False
        time.sleep(LOOKS_EVERY_S)
    return command.process.is_alive()


def _disturb(command: Started, name: str, way: Way, history: History) -> None:
    history.kills[name] = history.kills.get(name, 0) + 1
    before, held = len(command.err.read_text()), semaphores(command)
    way.does(command)
    if way.code is not None:
        _check_end(command, way.code, history, name, before)
        left = [each.name for each in held if way.code > 0 and each.exists()]
        history.wrong += [f"{name}: semaphores are left: {left}"] if left else []


def _check_end(
    command: Started, code: int, history: History, name: str = "undisturbed", before: int = 0
) -> None:
    """Note what is wrong with an end, of which was said what came after so many characters."""
    command.ended()
    ended_s = time.monotonic()
    while session(command) and time.monotonic() < ended_s + PATIENCE_S:
        time.sleep(LOOKS_EVERY_S)
    lived_s, done = time.monotonic() - ended_s, command.ended()  # all that any of them has said
    told = [line for line in done.stderr[before:].splitlines() if not line.startswith(PROGRESS)]
    history.orphans_s.append(lived_s)
    wrong = {
        f"processes live on for {lived_s:.1f} s": lived_s > ORPHANS_S,
        f"exit code {done.returncode}": done.returncode != code,
        "not one line": code == EXIT_INTERRUPTED and len(told) != 1,
        "words never said": any(word in done.stderr for word in NEVER_SAID),
    }
    seen = [what for what, is_so in wrong.items() if is_so]
    history.wrong += [f"{name}: {', '.join(seen)}: {told[-9:]}"] if seen else []


def results(out: Path, but: frozenset[str] = frozenset()) -> dict[str, str]:
    """What a command has found, below its output folder: digests by name.

    Args:
        out: the folder.
        but: names of files that differ from one real run to the next.
    """
    found = (path for path in sorted(out.rglob("runs/*/*")) if path.is_file())
    skipped = {"provenance.json"} | but
    kept = [path for path in found if path.name not in skipped and path.name[0] != "."]
    digests = {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept
    }
    if (report := out / "results.json").exists():
        said = json.loads(report.read_text())
        del said["provenance"]
        digests["results.json"] = json.dumps(said, sort_keys=True)
    return digests
