"""`lagbench device`: measure this device and run reproductions on it, into one archive."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, cast

__all__ = ["configure", "run"]

SCALES = ("small", "paper")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    parser.add_argument(
        "--scale", help="small (default without CUDA) or paper: paper 1's network (with it)"
    )
    parser.add_argument(
        "--preset",
        action="append",
        metavar="PAPER/SCALE[:EXHIBITS]",
        help="what is reproduced, as paper1/gpu or paper1/paper:fig1,table2; several times for one "
        "after the other; none. Default with CUDA: paper 1 at paper, then papers 2 and 3 at gpu",
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="time limit of this command (10)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reports/out/device"),
        help="folder that keeps finished parts; the same command resumes there",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure for ``--minutes``, print all results so far and write the archive."""
    from harness.base.errors import EXIT_DONE, UserError, name_error
    from harness.runs.device import resolve

    if not 0.0 < arguments.minutes <= 1e6:
        raise UserError(f"--minutes {arguments.minutes}: allowed: a positive number")
    if arguments.scale not in (None, *SCALES):
        raise name_error("--scale", arguments.scale, SCALES)
    device = resolve(arguments.device)
    gpu = device == "cuda"
    from harness.bench.device import ARCHIVE, PLAN, MeasurementPlan, Reproduction, measure

    # Without --preset: the default plan on a GPU, no reproduction on a CPU.
    named = arguments.preset or (None if gpu else ["none"])
    presets = (
        PLAN
        if named is None
        else ()
        if named == ["none"]
        else tuple(map(Reproduction.from_text, named))
    )
    scale = arguments.scale or ("paper" if gpu else "small")
    asked = MeasurementPlan(device, scale, presets, arguments.minutes, arguments.out)
    found = measure(asked, lambda line: print(line, file=sys.stderr, flush=True))
    for line in lines(found):
        print(line)
    print(f"archive: {asked.out / ARCHIVE}")
    return EXIT_DONE


def lines(results: dict[str, Any]) -> list[str]:
    """Every figure on a line of its own, and the parts that are left."""
    asked, parts = results["asked"], results["parts"]
    said = [f"{asked['name']} ({asked['device']}), scale {asked['scale']}"]
    said += [line for name, part in parts.items() for line in _figures(name, part)]
    said += [f"share of ceiling, {each:20} {s:.3f}" for each, s in results["shares"].items()]
    said += [f"failed: {name}: {why}" for name, why in results["failed"].items()]
    said += [_standing(run) for runs in results["runs"].values() for run in runs]
    left = results["unfinished"]
    return [*said, f"left for the same command: {', '.join(left)}"] if left else said


def _standing(run: dict[str, Any]) -> str:
    last = run.get("last", {})
    errors = {name: value for name, value in last.items() if name.startswith("dev_frame_error")}
    where = f", pass {last['epoch']:.4f}" if "epoch" in last else ""
    told = "".join(f", {name} {value:.4f}" for name, value in errors.items())
    return f"run {run['run'][:10]} {run['status']}{where}{told}"


def _figures(name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        parts = cast(dict[str, object], value)
        return [line for key, each in parts.items() for line in _figures(f"{name}, {key}", each)]
    return [f"{name:38} {value:.4g}" if isinstance(value, float) else f"{name:38} {value}"]
