"""Work that the simulated time of runs is charged for, read from their configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from harness.base.settings import format_quantity, format_seconds
from harness.simulator import Workload
from harness.store import Cell, Run


def charge_line(cells: Sequence[Cell]) -> str:
    """A line on the size of a minibatch and of a parameter copy; empty if no run records them."""
    found = dict.fromkeys(_charge(run) for cell in cells for run in cell.runs[:1])
    said = " or ".join(each for each in found if each)
    return f"time is charged for {said}" if said else ""


def _charge(run: Run) -> str:
    config, work = run.config, _work(run.config)
    if work is None:
        return ""
    copies = f"copies of {format_quantity(work.parameter_bytes, 'B')}"
    if work.operators:
        launched = f"{work.operators:.0f} operators, {format_quantity(work.moved_bytes, 'B')} moved"
        return f"minibatches of {launched}, {work.minibatch_flops:.4g} operations, and {copies}"
    if work.minibatch_flops:
        return f"minibatches of {work.minibatch_flops:.4g} operations and {copies}"
    devices = config["cluster"]["devices"].values()
    launches = {float(device.get("launch_s", 0.0)) for device in devices}
    steps = " or ".join(map(format_seconds, sorted(launches)))
    return f"minibatches of {steps} and {copies}"


def _work(config: dict[str, Any]) -> Workload | None:
    """The work that a run of modules or of frames of speech is charged for."""
    if "work" in config:
        names = {entry.name for entry in fields(Workload)} & config["work"].keys()
        return Workload(**{name: config["work"][name] for name in names})
    if "timed_layers" in config and "stages" in config:
        return Workload.of_network(config["timed_layers"], config["stages"][0]["timed_minibatch"])
    return None
