"""A hundred kills at random moments: ``python -m tests.kills --kills 100``.

Three reproductions at smoke scale, an experiment of each, and a training on processes are killed,
interrupted and suspended until they end, again and again. What they found must be equal in bytes to
what they find undisturbed. Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.kills.history import ORPHANS_S, History, disturbed, results
from tests.kills.ways import WAYS, cpu_s
from tests.processes import Started

RUNS = Path(__file__).parents[2] / "reproductions" / "runs"
RUN = "model-averaging.toml"
SMOKE = ("--scale", "smoke", "--seeds", "1", "--jobs", "2")
AT_ONCE = 7
"""Disturbances of one command before it is begun in an empty folder again."""


@dataclass(frozen=True)
class Command:
    """Args: words: of the command line; differs: files of a run that no two real ones share."""

    words: tuple[str, ...]
    differs: frozenset[str] = frozenset()

    def _store(self, out: Path) -> Path:
        return out / "runs" if RUN in self.words else out

    def begun(self, out: Path, cache: Path) -> Started:
        """It, with an output folder, in a session of its own."""
        environment = {**os.environ, "LAGBENCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        words = [out.parent / RUN if word == RUN else word for word in self.words]
        return Started([*words, "--out", self._store(out)], environment, leads=True)


def small_run() -> str:
    """A run file: model averaging, which ends in the same parameters on any real processes."""
    return (RUNS / RUN).read_text(encoding="utf-8").replace("workers = 8", "workers = 2")


REPRODUCE = ("-m", "reproductions")
# Who waits how long for whom is measured on real processes; the parameters do not depend on it.
MEASURED = frozenset({"timeline.parquet", "metrics.parquet", "run.json"})
COMMANDS = {
    "paper1": Command((*REPRODUCE, "paper1", *SMOKE, "--corpus", "parametric", "--only", "fig1")),
    "paper2": Command((*REPRODUCE, "paper2", *SMOKE, "--only", "table2")),
    "paper3": Command((*REPRODUCE, "paper3", *SMOKE, "--only", "table1")),
    "train": Command(("-m", "harness.train", RUN, "--processes", "3"), MEASURED),
}


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    asked = _options(words)
    seen: list[History] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        (Path(folder) / RUN).write_text(small_run(), encoding="utf-8")
        for name in asked.only.split(","):
            seen += _tried(COMMANDS[name], name, asked.kills, Random(asked.seed), Path(folder))
    kills = sum((Counter(history.kills) for history in seen), Counter[str]())
    wrong = [line for history in seen for line in history.wrong]
    late = [s for history in seen for s in history.orphans_s if s > ORPHANS_S]
    print(f"{kills.total()} kills, {len(wrong)} wrong, {len(late)} orphans after {ORPHANS_S:g} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(kills.items())))
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def _tried(command: Command, name: str, kills: int, draw: Random, folder: Path) -> list[History]:
    """Histories with so many kills in all, of a command beside itself undisturbed."""
    cache, whole = folder / "cache", folder / name
    begun, whole_s = command.begun(whole, cache), 0.0
    while begun.process.is_alive():
        whole_s = max(whole_s, cpu_s(begun))
        begun.process.join(0.1)
    assert begun.ended().returncode == 0, begun.ended().stderr
    seen: list[History] = []
    while (left := kills - sum(sum(each.kills.values()) for each in seen)) > 0:
        out = folder / f"{name}-{len(seen)}"
        does = disturbed(
            lambda out=out: command.begun(out, cache), whole_s, min(left, AT_ONCE), draw, [*WAYS]
        )
        equal = results(out, command.differs) == results(whole, command.differs)
        does.wrong += [] if equal else [f"{name}: other results after {does.kills}"]
        seen.append(does)
        _tell(f"{name}: {does.kills}, {'equal' if equal else 'NOT EQUAL'}, {does.wrong}")
    return seen


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="of each command (25)")
    parser.add_argument("--only", default=",".join(COMMANDS), help="of the commands, with commas")
    parser.add_argument("--seed", type=int, default=0, help="of ways and moments (0)")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
