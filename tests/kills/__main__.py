"""A hundred kills at random moments: ``python -m tests.kills --kills 100``.

Three reproductions at smoke scale, an experiment of each, and a training on processes are killed,
interrupted and suspended until they end, again and again, and the clock of the machine is set. What
they found must be equal in bytes to what they find undisturbed. Ends with 1 if anything is wrong.
Pieces (``--only``, another ``--seed``) may be run one by one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from harness.base import forks
from tests.kills import clock
from tests.kills.history import History, disturbed, results
from tests.kills.ways import CLOCK_SET, WAYS, cpu_s
from tests.processes import Started

RUNS = Path(__file__).parents[2] / "reproductions" / "runs"
RUN = "model-averaging.toml"
SMOKE = ("--scale", "smoke", "--seeds", "1", "--jobs", "2")
WITHIN = 0.4
"""Each start is disturbed within this share of the processor time of a whole one."""


@dataclass(frozen=True)
class Command:
    """Args: words: of the command line; differs: files of a run that no two real ones share."""

    words: tuple[str, ...]
    differs: frozenset[str] = frozenset()

    def _store(self, out: Path) -> Path:
        return out / "runs" if RUN in self.words else out

    def begun(self, out: Path, cache: Path) -> Started:
        """Start it, with an output folder, in a session of its own."""
        environment = {**os.environ, "LAGBENCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        words = [out.parent / RUN if word == RUN else word for word in self.words]
        return Started([*words, "--out", self._store(out)], environment, leads=True)


def small_run() -> str:
    """A run file: model averaging, which ends in the same parameters on any real processes."""
    text = (RUNS / RUN).read_text(encoding="utf-8").replace("workers = 8", "workers = 2")
    return text.replace("passes = 4\ntimed", "passes = 2\ntimed")


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
        if not clock.is_settable() and (with_clock := clock.settable(Path(folder))):
            again = [
                sys.executable,
                "-m",
                "tests.kills",
                *(sys.argv[1:] if words is None else words),
            ]
            return subprocess.run(again, env={**os.environ, **with_clock}).returncode
        (Path(folder) / RUN).write_text(small_run(), encoding="utf-8")
        for name in asked.only.split(","):
            draw = Random(f"{name} {asked.seed}")
            seen += _tried(COMMANDS[name], name, asked.kills, draw, Path(folder))
    wrong = [line for history in seen for line in history.wrong]
    print(told_of(seen))
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def told_of(seen: Sequence[History]) -> str:
    """How many of each way there were, and how they ended."""
    kills = sum((Counter(history.kills) for history in seen), Counter[str]())
    equal = sum(sum(history.kills.values()) for history in seen if history.equal)
    orphans_s = [s for history in seen for s in history.orphans_s]
    return (
        f"{kills.total()} kills in {len(seen)} histories, {equal} of them to equal results; "
        f"{sum(history.resumed for history in seen)} left a checkpoint of a run; "
        f"{sum(len(history.wrong) for history in seen)} wrong; "
        f"a process lived {max(orphans_s):.2f} s longer than its command at most\n"
        + ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
    )


def _tried(command: Command, name: str, kills: int, draw: Random, folder: Path) -> list[History]:
    """Histories with so many kills in all, of a command beside itself undisturbed."""
    cache, whole = folder / "cache", folder / name
    forks.context("harness.experiment.grid", "reproductions.reproduce")  # once for all
    begun, whole_s = command.begun(whole, cache), 0.0
    while begun.process.is_alive():
        whole_s = max(whole_s, cpu_s(begun))
        begun.process.join(0.1)
    assert begun.ended().returncode == 0, begun.ended().stderr
    _tell(f"{name}: {whole_s:.0f} s of processor time undisturbed")
    ways = {**WAYS, **(CLOCK_SET if clock.is_settable() else {})}
    seen: list[History] = []
    while (left := kills - sum(sum(each.kills.values()) for each in seen)) > 0:
        out = folder / f"{name}-{len(seen)}"
        again, times = partial(command.begun, out, cache), min(left, len(ways))
        does = disturbed(again, out, whole_s * WITHIN, times, draw, ways)
        does.equal = results(out, command.differs) == results(whole, command.differs)
        does.wrong += [] if does.equal else [f"{name}: other results after {does.kills}: {out}"]
        seen.append(does)
        _tell(f"{name}: {does.kills}, {'equal' if does.equal else 'NOT EQUAL'}, {does.wrong}")
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
