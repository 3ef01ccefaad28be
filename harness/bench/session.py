"""A device measured in several commands: finished parts are kept, the rest goes on.

The folder holds ``asked.json`` (what all its parts are of), ``parts/NAME.json``, the
reproductions' own folders, and after each command ``results.json`` and the archive.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch

from harness.base.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    UserError,
)
from harness.bench.baseline import machine
from harness.bench.device import PARTS, SCALES, Scale, fitted
from harness.networks.feedforward import Precision, denormals_flushed
from harness.store.files import replacing, writable_folder, write_json
from harness.store.schema import CHECKPOINT, RUN
from harness.training.loop import last_rows

SCHEMA = 2
ARCHIVE = "lagbench-device.tar.gz"
LEAST_S = {"replicas": 60.0, "steps": 60.0, "pass": 60.0}
"""A part of paper scale is begun with at least so much time left; others with any."""
PR_SET_PDEATHSIG = 1
STARTING_S = 20.0
"""What a reproduction needs before it can do anything, for its report, or to stop."""
KEPT = ("results.json", "report.html", "report.pdf", "runs.csv")
"""Of a reproduction, in the archive."""

Figures = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Reproduction:
    """A part of a paper, executed until it is done.

    Args:
        paper: as ``paper1``.
        scale: one of its scales.
        exhibits: which of its exhibits; all if empty.
    """

    paper: str
    scale: str
    exhibits: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Reproduction:
        """From ``paper1/gpu``, or ``paper1/paper:fig1,table2``.

        Raises:
            UserError: it is neither.
        """
        preset, _, exhibits = text.partition(":")
        paper, _, scale = preset.partition("/")
        if not (paper and scale):
            allowed = "a paper and a scale, as paper1/gpu, or none"
            raise UserError(f"--preset {text!r}: allowed: {allowed}")
        return cls(paper, scale, tuple(name for name in exhibits.split(",") if name))

    def __str__(self) -> str:
        only = ",".join(self.exhibits)
        return f"{self.paper}/{self.scale}" + (f":{only}" if only else "")

    @property
    def folder(self) -> Path:
        """Where in ``--out`` its runs are: those of a paper and scale share one."""
        return Path("reproductions") / f"{self.paper}-{self.scale}"

    @property
    def part(self) -> str:
        """What its figures are called."""
        return "-".join([self.paper, self.scale, *self.exhibits])

    def command(self, asked: Asked, minutes: float) -> list[str]:
        """What executes it, for so long: one seed."""
        program = [sys.executable, "-m", "reproductions", self.paper, "--scale", self.scale]
        only = ["--only", ",".join(self.exhibits)] if self.exhibits else []
        limits = ["--seeds", "1", "--device", asked.device, "--budget", f"{minutes:.3f}"]
        return [*program, *only, *limits, "--out", str(asked.out / self.folder)]


PLAN = tuple(
    map(
        Reproduction.of,
        (
            "paper1/paper:fig1,staleness",  # its one pass
            "paper1/paper:table2,table3,fig3,time-to-target",  # its baseline of many
            "paper2/gpu",
            "paper3/gpu",
        ),
    )
)
"""What a GPU reproduces unless told otherwise, by value."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        scale: of the parts, a key of `SCALES`.
        presets: what is reproduced, in this order.
        minutes: that this command may take.
        out: the folder.
    """

    device: str
    scale: str
    presets: tuple[Reproduction, ...]
    minutes: float
    out: Path

    def told(self) -> Figures:
        """What all commands on one folder must agree in."""
        return {
            "device": self.device,
            "name": device_name(self.device),
            "scale": self.scale,
            "presets": list(map(str, self.presets)),
            "torch": torch.__version__,
        }


def device_name(device: str) -> str:
    """The device in words."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return str(machine()["processor"])


def measure(asked: Asked, say: Say) -> Figures:
    """Go on where the folder stands, for at most the minutes asked for, and pack it.

    The archive is there whatever happens: it is written anew whenever something is finished, and at
    the end, also when the command is interrupted. A part that fails is told among the figures, and
    tried again by the next command.

    Returns:
        What ``results.json`` holds; ``unfinished`` names what a further command would do.

    Raises:
        UserError: the folder is of another device, scale or preset, or cannot be written.
    """
    ends = time.monotonic() + 60.0 * asked.minutes
    _agree(asked)
    parts, failed = writable_folder(asked.out / "parts", "--out"), dict[str, str]()
    try:
        for name, part in PARTS.items():
            needed_s = LEAST_S.get(name, 0.0) if asked.scale == "paper" else 0.0
            path, left_s = parts / f"{name}.json", ends - time.monotonic()
            if not path.exists() and left_s > needed_s:
                say(f"{name} …")
                if (trouble := _measured(part, asked, path)) is not None:
                    failed[name] = trouble
                keep(asked, failed)
        for preset in asked.presets:
            if not _reproduced(asked, preset, parts, ends, say):
                break
            keep(asked, failed)
    finally:
        results = keep(asked, failed)
    return results


def _measured(part: Callable[[Scale, str], Figures], asked: Asked, path: Path) -> str | None:
    """Keep what a part finds; what went wrong, in one line, if something did."""
    try:
        with denormals_flushed():  # as runs have it
            found = part(fitted(SCALES[asked.scale], asked.device), asked.device)
    except Exception as error:  # of a device that nobody has seen: the others are to be measured
        return f"{type(error).__name__}: {error}".splitlines()[0]
    write_json(path, {**found, "measured": _now()})
    return None


def keep(asked: Asked, failed: Mapping[str, str]) -> Figures:
    """Write ``results.json`` and the archive as of now; the figures."""
    results = gathered(asked, failed)
    write_json(asked.out / "results.json", results)
    pack(asked.out, asked.presets)
    return results


def _agree(asked: Asked) -> None:
    """Refuse a folder whose figures are of something else."""
    path, told = writable_folder(asked.out, "--out") / "asked.json", asked.told()
    if not path.exists():
        write_json(path, told)
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    for key, value in told.items():
        if known.get(key) != value:
            raise UserError(
                f"--out {asked.out}: holds figures of {key} {known.get(key)!r}, not {value!r};"
                " allowed: a new folder"
            )


def _reproduced(asked: Asked, preset: Reproduction, parts: Path, ends: float, say: Say) -> bool:
    """Let a reproduction go on for the time that is left; whether it is done.

    Raises:
        UserError: there is no such reproduction.
    """
    path, left_s = parts / f"{preset.part}.json", ends - time.monotonic() - 2.0 * STARTING_S
    if path.exists():
        return True
    if left_s <= 0.0:
        return False
    say(f"{preset}, {left_s / 60.0:.1f} minutes …")
    code = within(preset.command(asked, left_s / 60.0), left_s + STARTING_S)
    if code == EXIT_BAD_INPUT:  # which has said so in a line of its own
        raise UserError(f"--preset {preset}: refused, as said above; allowed: paper1/gpu …")
    done = code in (EXIT_DONE, EXIT_RUN_FAILED)
    if done:
        write_json(path, {"preset": str(preset), "exit": code, "measured": _now()})
    return done


def within(command: Sequence[str], limit_s: float) -> int:
    """Run a command, interrupted as by Ctrl-C if it takes longer; its exit code.

    Its budget is of its runs: the corpus they need may have to be made first.
    """
    with subprocess.Popen(command, preexec_fn=_end_with_parent) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STARTING_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return EXIT_INTERRUPTED


def _end_with_parent() -> None:
    """Ctrl-C for this process when the one that started it dies, however it does (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def gathered(asked: Asked, failed: Mapping[str, str]) -> Figures:
    """Everything measured so far, with where it comes from, and where unfinished runs stand."""
    known = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((asked.out / "parts").glob("*.json"))
    }
    wanted = [*PARTS, *(preset.part for preset in asked.presets)]
    folders = dict.fromkeys(preset.folder for preset in asked.presets)
    return {
        "schema": SCHEMA,
        "asked": asked.told(),
        "shares": shares(known),
        "parts": known,
        "failed": dict(failed),
        "runs": {str(f.name): standing(asked.out / f / "runs") for f in folders},
        "unfinished": [name for name in wanted if name not in known],
        "provenance": {"git": _commit(), "machine": machine(), "written": _now()},
    }


def standing(store: Path) -> list[Figures]:
    """Every run of a store: how it ended, or what was measured last before its last checkpoint."""
    found: list[Figures] = []
    for folder in sorted(store.glob("*/")):
        ended, begun = folder / RUN, folder / CHECKPOINT
        if ended.is_file():
            run = json.loads(ended.read_text(encoding="utf-8"))
            found.append({"run": folder.name, **{k: run[k] for k in ("status", "summary")}})
        elif begun.is_dir() and (last := last_rows(begun)):
            found.append({"run": folder.name, "status": "unfinished", "last": last})
    return found


def shares(parts: Figures) -> dict[str, float]:
    """What part of the measured product's speed is reached, by precision.

    A simulated minibatch is named by the precision alone, stacked gradients by their replicas too.
    """
    if "ceilings" not in parts:
        return {}
    steps, stacks, ceiling = (parts.get(p, {}) for p in ("steps", "replicas", "ceilings"))
    found: dict[str, float] = {}
    for precision in get_args(Precision):
        named: Figures = {precision: steps[precision]} if precision in steps else {}
        for count, each in stacks.get(precision, {}).items():
            named[f"{precision}, {count} replicas"] = each
        fastest = ceiling.get(f"{precision}_flops_per_s")
        found |= {name: each["flops_per_s"] / fastest for name, each in named.items()}
    return found


def pack(out: Path, presets: Sequence[Reproduction]) -> Path:
    """The archive: the figures, and of every reproduction its results and report."""
    kept = [str(p.folder / name) for p in dict.fromkeys(presets) for name in KEPT]
    with replacing(out / ARCHIVE) as path, tarfile.open(path, "w:gz") as archive:
        for name in dict.fromkeys(["results.json", *kept]):
            if (out / name).is_file():
                archive.add(out / name, f"lagbench-device/{name}")
    return out / ARCHIVE


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str:
    """The commit of the source tree, or "unknown" where there is none."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
