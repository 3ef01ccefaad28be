"""What a GPU is foretold to take, of operations counted without one: run this file.

The programs run on torch's ``meta`` device, which computes shapes and nothing else. An operation
takes the longest of its arithmetic, its traffic and its launch; one after another, so a program
takes their sum. Nothing is fused, no cache holds anything, and launches do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import flop_registry

from data_synth.continuous import Maker
from data_synth.made.speech import AT_ONCE, Speech
from data_synth.presets import recipe
from harness.bench.device import FULL, PASS_FRAMES
from harness.bench.steps import Setting, SimulatedSteps, speech_for
from harness.networks.feedforward import Dnn, Layout
from tests.traffic import Traffic, floor

BANDWIDTH = 4.3e12
"""Bytes a second of an H200's memory, as read and written by a copy."""
PEAK = {"float32": 54e12, "tf32": 395e12, "bf16": 790e12}
"""FLOP a second of a large product: bf16 as others have measured it on this machine; TF32 half of
it, the maker's proportion; float32 without tensor cores, four fifths of the maker's 67."""
LAUNCH_S, REPLAY_S = 4e-6, 1e-6
"""Of an operation asked for by Python, and of one in a CUDA graph."""
WAYS = (("one by one", False, LAUNCH_S), ("in blocks, as graphs", True, REPLAY_S))
"""How folds are executed: in blocks or not, and what a launch takes then."""
MINIBATCH, FOLDS = 256, 16


class Counted(Traffic):
    """Arithmetic and traffic of every operation that moves something.

    Attributes:
        each: (FLOP, bytes) of every one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.each: list[tuple[float, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, given = self.bytes, dict(kwargs or {})
        found = super().__torch_dispatch__(func, types, args, given)
        known = flop_registry.get(func.overloadpacket)
        given.pop("out", None)
        flops = known(*args, **given, out_val=found) if known else 0
        if self.bytes > before:
            self.each.append((float(flops), float(self.bytes - before)))
        return found

    def seconds(self, peak: float, launch_s: float) -> float:
        """What they take, one after another."""
        return sum(max(f / peak, b / BANDWIDTH, launch_s) for f, b in self.each)


def gradient(replicas: int) -> Counted:
    """Of paper 1's network, of so many replicas at once."""
    layout = Layout(FULL)
    stack = torch.zeros(replicas, layout.parameters, device="meta")
    x = torch.zeros(replicas, MINIBATCH, FULL[0], device="meta")
    targets = torch.zeros(replicas, MINIBATCH, dtype=torch.int64, device="meta")
    with Counted() as counted:
        Dnn(layout).gradient(stack, x, targets, torch.empty_like(stack))
    return counted


def folds(in_blocks: bool) -> Counted:
    """Sixteen folds of paper 1's training: timing, gathering, gradients, folds, average, reads."""
    setting = Setting(FULL, MINIBATCH, 20_000, "meta")
    steps = SimulatedSteps(setting, speech_for(setting), in_blocks=in_blocks)
    steps.run(FOLDS)
    with Counted() as counted:
        steps.run(FOLDS)
    return counted


def speech() -> tuple[Counted, int]:
    """A piece of training speech; and its frames."""
    made = Speech(Maker(recipe("mandarin-like", "paper")), "train")
    made.make(np.arange(1))  # its tables
    with Counted() as counted:
        piece = made.piece(np.arange(AT_ONCE["cuda"]))
    return counted, len(piece.targets)


def rows() -> Iterator[tuple[str, str]]:
    """What is foretold, and how much."""
    for replicas in (1, 4, 50):
        counted, flops = gradient(replicas), 0.0
        flops = sum(f for f, _ in counted.each)
        for precision, peak in PEAK.items():
            took = counted.seconds(peak, LAUNCH_S)
            yield (
                f"gradient, {replicas} replicas, {precision}",
                f"{1e3 * took / replicas:.2f} ms a minibatch,"
                f" {replicas * MINIBATCH / took / 1e3:,.0f} k frames/s, {flops / took / peak:.0%}",
            )
    least = floor(FULL, MINIBATCH) / 1e9
    for how, in_blocks, launch_s in WAYS:
        counted = folds(in_blocks)
        took, launches = counted.bytes / FOLDS / 1e9, len(counted.each) / FOLDS
        moved = f"{took:.2f} GB, {took / least:.2f} times the floor; {launches:.1f} launches"
        yield f"a fold, {how}", moved
        for precision, peak in PEAK.items():
            took = counted.seconds(peak, launch_s) / FOLDS
            speed, whole = MINIBATCH / took / 1e3, PASS_FRAMES / MINIBATCH * took / 60.0
            told = f"{1e3 * took:.2f} ms, {speed:,.0f} k frames/s, a pass {whole:.1f} min"
            yield f"a fold, {how}, {precision}", told
    counted, frames = speech()
    took = counted.seconds(PEAK["float32"], LAUNCH_S)
    pieces = f"{len(counted.each)} launches of {frames:,} frames"
    speed, whole = frames / took / 1e6, PASS_FRAMES / frames * took
    told = f"{counted.bytes / frames / 1e3:.0f} kB a frame, {pieces}"
    yield "speech made", f"{told}, {speed:.1f} M frames/s, 500 h {whole:.0f} s"


def main() -> None:
    """Print a table in markdown."""
    print("| what | foretold |\n| --- | --- |")
    for what, told in rows():
        print(f"| {what} | {told} |")


if __name__ == "__main__":
    main()
