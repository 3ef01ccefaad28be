"""What a worker computes with, and a catalogue of devices that need no description."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, cast

from harness.base.settings import Spec, build, load_toml, setting
from harness.simulator.quantities import duration, rate, size
from harness.simulator.workload import Workload

__all__ = ["Device", "catalogue", "unknown_device", "with_catalogue"]

CATALOGUE = Path(__file__).with_name("devices.toml")
LAUNCH_S = 3e-6
"""From one empty kernel to the next, whatever the card: see the head of devices.toml."""
LEAST_STEP_S = 10 * LAUNCH_S
"""Of a minibatch: forward, backward and update of two layers and a loss are ten kernels or more."""


@dataclass(frozen=True)
class Device(Spec):
    """What a worker computes with.

    Attributes:
        achieved_flops_per_s: rate of training arithmetic at large minibatches; none is
            infinitely fast.
        half_rate_frames: minibatch at which half of that rate is reached.
        launch_s: fixed time a minibatch costs whatever its size.
        peak_flops_per_s: the maker's figure; nothing is computed from it.
        memory_bytes_per_s: of the device's own memory, the maker's figure; nothing is
            computed from it.
        source: where the figures come from, and which of them are assumed.
    """

    achieved_flops_per_s: float | None = rate()
    half_rate_frames: float = size(0.0)
    launch_s: float = duration()
    peak_flops_per_s: float | None = rate()
    memory_bytes_per_s: float | None = rate()
    source: str = setting("")

    def trouble(self) -> tuple[str, str] | None:
        """A device that is described in part must not be taken for an infinitely fast one."""
        described = self.half_rate_frames > 0.0 or self.peak_flops_per_s is not None
        if self.achieved_flops_per_s is None and described:
            return "achieved_flops_per_s", "missing; needed with half_rate_frames or a peak"
        return None

    def rate_flops_per_s(self, frames: float) -> float:
        """Achieved rate for a minibatch of ``frames``: saturating, r·b / (b + h)."""
        if self.achieved_flops_per_s is None:
            return math.inf
        return self.achieved_flops_per_s * frames / (frames + self.half_rate_frames)

    def minibatch_s(self, workload: Workload) -> float:
        """Seconds for one minibatch, without variation."""
        rate = self.rate_flops_per_s(workload.minibatch_frames)
        return self.launch_s + workload.minibatch_flops / rate

    def is_too_quick(self, workload: Workload) -> bool:
        """Whether a minibatch takes less than its launch would, and no ``launch_s`` says so."""
        return self.launch_s == 0.0 and 0.0 < self.minibatch_s(workload) < LEAST_STEP_S


@cache
def catalogue() -> Mapping[str, Device]:
    """The devices known by name, each with the sources of its figures."""
    known = load_toml(CATALOGUE)
    return {name: build(Device, table, CATALOGUE.name, name) for name, table in known.items()}


def with_catalogue(table: dict[str, Any]) -> None:
    """Describe, in a cluster file's table, the devices that its workers name and it does not.

    Whatever is malformed is left as it is, for the schema to refuse.
    """
    devices, groups = table.setdefault("devices", {}), table.get("workers")
    if not isinstance(devices, dict) or not isinstance(groups, list):
        return
    described = cast(dict[str, Any], devices)
    for group in cast(list[Any], groups):
        name = cast(dict[str, Any], group).get("device") if isinstance(group, dict) else None
        if isinstance(name, str) and name in catalogue():
            described.setdefault(name, catalogue()[name].to_dict())


def unknown_device(name: str, described: Collection[str]) -> str:
    """What to say of a device that is neither described in a file nor in the catalogue."""
    near = get_close_matches(name, [*described, *catalogue()], n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = repr(name) if len(name) <= 60 else f"{name[:57]!r}..."
    return (
        f"unknown {shown}{hint}; allowed: {', '.join(sorted(described)) or 'none'} in [devices],"
        f" and in the catalogue {', '.join(catalogue())}"
    )
