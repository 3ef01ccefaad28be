"""A device measured in several commands: finished parts are kept, the rest goes on.

The folder holds ``asked.json`` (what all its parts are of), ``parts/NAME.json``, the
reproduction's own folder, and after each command ``results.json`` and the archive.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from harness.acoustics.denormals import denormals_flushed
from harness.bench.baseline import machine
from harness.bench.device import PARTS, SCALES, fitted
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    UserError,
)
from harness.store.atomic import replacing, writable_folder, write_json

SCHEMA = 1
ARCHIVE = "lagbench-device.tar.gz"
LEAST_S = {"steps": 60.0, "pass": 120.0}
"""A part of paper scale is begun with at least so much time left; others with any."""
STARTING_S = 20.0
"""What a reproduction needs before it can do anything, for its report, or to stop."""
KEPT = ("results.json", "report.pdf")
"""Of a reproduction, in the archive."""

Figures = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What is to be measured.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        scale: of the parts, a key of `SCALES`.
        preset: the reproduction, as ``paper1/smoke``; empty for none.
        minutes: that this command may take.
        out: the folder.
    """

    device: str
    scale: str
    preset: str
    minutes: float
    out: Path

    def told(self) -> Figures:
        """What all commands on one folder must agree in."""
        return {
            "device": self.device,
            "name": device_name(self.device),
            "scale": self.scale,
            "preset": self.preset,
            "torch": torch.__version__,
        }


def device_name(device: str) -> str:
    """The device in words."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return str(machine()["processor"])


def measure(asked: Asked, say: Say) -> Figures:
    """Go on where the folder stands, for at most the minutes asked for, and pack it.

    Returns:
        What ``results.json`` holds; ``unfinished`` names what a further command would do.

    Raises:
        UserError: the folder is of another device, scale or preset, or cannot be written.
    """
    began = time.monotonic()
    _agree(asked)
    parts = writable_folder(asked.out / "parts", "--out")
    for name, part in PARTS.items():
        path, left_s = parts / f"{name}.json", 60.0 * asked.minutes - (time.monotonic() - began)
        needed_s = LEAST_S.get(name, 0.0) if asked.scale == "paper" else 0.0
        if path.exists() or left_s <= needed_s:
            continue
        say(f"{name} …")
        with denormals_flushed():  # as runs have it
            found = part(fitted(SCALES[asked.scale], asked.device), asked.device)
        write_json(path, {**found, "measured": _now()})
    if asked.preset:
        left_s = 60.0 * asked.minutes - (time.monotonic() - began) - 2.0 * STARTING_S
        _reproduce(asked, parts, left_s, say)
    results = gathered(asked)
    write_json(asked.out / "results.json", results)
    pack(asked.out, asked.preset)
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


def _reproduce(asked: Asked, parts: Path, left_s: float, say: Say) -> None:
    """Let a reproduction go on for the time that is left.

    Raises:
        UserError: there is no such reproduction.
    """
    path = parts / "reproduction.json"
    if path.exists() or left_s <= 0.0:
        return
    paper, _, scale = asked.preset.partition("/")
    say(f"{asked.preset}, {left_s / 60.0:.1f} minutes …")
    command = [sys.executable, "-m", "reproductions", paper, "--scale", scale]
    options = ["--device", asked.device, "--budget", f"{left_s / 60.0:.3f}"]
    folder = ["--out", str(asked.out / "reproduction")]
    code = within([*command, *options, *folder], left_s + STARTING_S)
    if code == EXIT_BAD_INPUT:  # which has said so in a line of its own
        raise UserError(f"--preset {asked.preset}: refused, as said above; allowed: paper1/gpu …")
    if code in (EXIT_DONE, EXIT_RUN_FAILED):
        write_json(path, {"preset": asked.preset, "exit": code, "measured": _now()})


def within(command: Sequence[str], limit_s: float) -> int:
    """Run a command, interrupted as by Ctrl-C if it takes longer; its exit code.

    Its budget is of its runs: the corpus they need may have to be made first.
    """
    with subprocess.Popen(command) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STARTING_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return EXIT_INTERRUPTED


def gathered(asked: Asked) -> Figures:
    """Everything measured so far, with where it comes from."""
    known = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((asked.out / "parts").glob("*.json"))
    }
    wanted = [*PARTS, *(["reproduction"] if asked.preset else [])]
    return {
        "schema": SCHEMA,
        "asked": asked.told(),
        "shares": shares(known),
        "parts": known,
        "unfinished": [name for name in wanted if name not in known],
        "provenance": {"git": _commit(), "machine": machine(), "written": _now()},
    }


def shares(parts: Figures) -> dict[str, float]:
    """What part of the measured product's speed a simulated minibatch reaches, by precision."""
    if not {"ceilings", "steps"} <= parts.keys():
        return {}
    ceiling = parts["ceilings"]
    return {
        precision: step["flops_per_s"] / ceiling[f"{precision}_flops_per_s"]
        for precision, step in parts["steps"].items()
        if isinstance(step, dict)
    }


def pack(out: Path, preset: str) -> Path:
    """The archive: the figures, and of a reproduction its results and report."""
    kept = [f"reproduction/{name}" for name in KEPT] if preset else []
    with replacing(out / ARCHIVE) as path, tarfile.open(path, "w:gz") as archive:
        for name in ("results.json", *kept):
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
