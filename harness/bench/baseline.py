"""The committed baseline, and a record of every run: JSON files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.files import find_version
from harness.bench.comparison import BaselineEntry, Bound, Measurement, Row
from harness.store.files import writable_folder, write_json

SCHEMA = 1
KEPT = Path("reports") / "out" / "bench"
"""Default folder of records."""
PACKAGES = ("torch", "numpy", "numba", "simpy")


def load(path: Path) -> tuple[dict[str, BaselineEntry], dict[str, Any]]:
    """The benchmarks of a baseline, and its other keys: schema and renewals.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        benchmarks = {name: _entry_from_json(each) for name, each in held.pop("benchmarks").items()}
        same_processor(held)  # raises if the machines of its renewals are missing
        return benchmarks, held
    except FileNotFoundError:
        hint = "make one with --renew REASON"
        raise UserError(f"--baseline {path}: is not there; allowed: a baseline ({hint})") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"--baseline {path}: cannot be read as a baseline ({said})") from None


def _entry_from_json(held: Mapping[str, Any]) -> BaselineEntry:
    ratios = {name: Bound(**bound) for name, bound in held.get("ratios", {}).items()}
    return BaselineEntry(ratios, held.get("counts", {}))


def save(
    path: Path,
    benchmarks: Mapping[str, BaselineEntry],
    reason: str,
    runs: int,
    before: Sequence[Mapping[str, Any]] = (),
    counted: bool = False,
) -> None:
    """Write a baseline, with the reason of its renewal and the machine that measured it.

    Args:
        path: the file.
        benchmarks: all benchmarks of the baseline.
        reason: reason of this renewal.
        runs: number of runs that it was made from.
        before: earlier renewals that parts of the baseline are from.
        counted: whether only counts are new, which are independent of the machine.
    """
    where = {} if counted else {"machine": machine()}
    renewals = [*before, {"reason": reason, "runs": runs, **where}]
    kept = {name: _entry_to_json(benchmarks[name]) for name in sorted(benchmarks)}
    write_json(path, {"schema": SCHEMA, "renewals": renewals, "benchmarks": kept})


def same_processor(about: Mapping[str, Any]) -> bool:
    """Whether a baseline was measured on a processor of this kind."""
    return {each["processor"] for each in _machines(about)} == {processor()}


def _machines(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Machines that measured the ratios of a baseline."""
    return [each["machine"] for each in about["renewals"] if "machine" in each]


def _entry_to_json(each: BaselineEntry) -> dict[str, Any]:
    ratios = {
        name: {"value": float(f"{b.value:.4g}"), "tolerance": float(f"{b.tolerance:.2g}")}
        for name, b in sorted(each.ratios.items())
    }
    kept = {"ratios": ratios, "counts": dict(sorted(each.counts.items()))}
    return {name: held for name, held in kept.items() if held}


def record(
    folder: Path,
    measured: Mapping[str, Measurement],
    rows: Iterable[Row],
    about: Mapping[str, Any],
    whole: bool = True,
) -> Path:
    """Write the record of a run: one file, named by its time (UTC).

    Args:
        folder: folder of records.
        measured: measurements by benchmark.
        rows: comparison with the baseline.
        about: keys of the baseline; the record names its last machine.
        whole: whether all benchmarks were run.

    Raises:
        UserError: the folder cannot be written.
    """
    now = datetime.now(UTC)
    path = writable_folder(folder, "--out") / f"{now:%Y%m%dT%H%M%S}.json"
    held = {name: asdict(each) for name, each in measured.items()}
    machines = {"machine": machine(), "baseline": _machines(about)[-1]}
    told = {"schema": SCHEMA, "time": now.isoformat(timespec="seconds"), "whole": whole, **machines}
    write_json(path, {**told, "measured": held, "rows": [asdict(row) for row in rows]})
    return path


def latest(folder: Path) -> Path | None:
    """The last record in a folder of all benchmarks on this kind of processor; None without one."""
    return next((path for path in sorted(folder.glob("*.json"), reverse=True) if _ours(path)), None)


def _ours(path: Path) -> bool:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return bool(held["whole"]) and held["machine"]["processor"] == processor()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def machine() -> dict[str, Any]:
    """Conditions of a measurement: processor, cores, load average, and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := find_version(name))},
    }


def processor() -> str:
    """The processor's name, as the system gives it; on Linux with its model number."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in reversed(lines) if ":" in line)
    known = {key.strip(): value.strip() for key, _, value in pairs}
    named = (known.get(key, "") for key in ("model name", "cpu family", "model"))
    return " ".join(filter(None, named)) or platform.machine()
