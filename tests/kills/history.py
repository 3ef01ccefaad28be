"""A command that is disturbed again and again, and ends as one that never was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.kills.ways import WAYS, Way, cpu_s, hears, session
from tests.processes import PATIENCE_S, Started

LOOKS_EVERY_S = 0.1
ORPHANS_S = 1.0
"""So long after its end a command's processes may live on."""
NEVER_SAID = ("Traceback", "leaked")


@dataclass
class History:
    """What happened to a command.

    Attributes:
        kills: how often it was disturbed, by the way.
        orphans_s: after its ends, how long its processes lived on.
        wrong: what should not have been seen, in words.
    """

    kills: dict[str, int] = field(default_factory=dict[str, int])
    orphans_s: list[float] = field(default_factory=list[float])
    wrong: list[str] = field(default_factory=list[str])


def disturbed(
    begun: Callable[[], Started], whole_s: float, times: int, draw: Random, ways: list[str]
) -> History:
    """Disturb a command so many times at moments drawn by the processor time it has taken.

    Args:
        begun: starts it, each time with the same words.
        whole_s: processor time that it takes undisturbed.
        times: at most; it may finish before.
        draw: of ways and moments.
        ways: names among `WAYS`; each as often as the others.
    """
    history, command = History(), begun()
    order = draw.sample([ways[i % len(ways)] for i in range(times)], times)
    for name in order:
        if not _came_to(command, draw.uniform(0.0, whole_s)):
            break
        _disturb(command, name, WAYS[name], history)
        if WAYS[name].code is not None:
            command = begun()
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
    way.does(command)
    if way.code is not None:
        _check_end(command, way.code, history, name)


def _check_end(command: Started, code: int, history: History, name: str = "undisturbed") -> None:
    done, ended_s = command.ended(), time.monotonic()
    while session(command) and time.monotonic() < ended_s + PATIENCE_S:
        time.sleep(LOOKS_EVERY_S)
    history.orphans_s.append(time.monotonic() - ended_s)
    history.wrong += [f"{name}: process {each} lives on" for each in session(command)]
    if done.returncode != code:
        history.wrong.append(f"{name}: exit code {done.returncode}: {done.stderr[-500:]}")
    said = [word for word in NEVER_SAID if word in done.stderr]
    history.wrong += [f"{name}: says {word!r}: {done.stderr[-500:]}" for word in said]


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
