"""What one device does with the harness: figures, part by part.

Every part returns plain JSON values: seconds and rates of this device, and ratios measured
in turns within one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import torch

from data_synth.continuous import Maker
from data_synth.made.speech import Speech
from data_synth.presets import recipe
from harness.bench.steps import (
    WORKERS,
    Setting,
    SimulatedSteps,
    in_turns,
    initial,
    over,
    pair,
    speech_for,
    timed,
)
from harness.networks.feedforward import Dnn, Layout, Precision, products_in
from harness.replay.blocks import BLOCK, recorded
from harness.speech.frames import room_on
from harness.training.executors import IN_BLOCKS

PASS_FRAMES = 180_000_000
"""Paper 1's 500 h, at 100 frames a second."""
ROUNDS = 5
REPLICAS, TOGETHER, FRAMES = 50, (429, 128, 128, 128, 128, 352), 32
STACKED = (1, 4, 50)
"""Replicas whose gradients are computed together."""
MADE_UTTERANCES = {"cpu": 64, "cuda": 8192}
Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large the parts are.

    Args:
        layers, minibatch: of the network that is trained.
        speech: frames that lie on the device.
        product: rows and columns of the product that is the ceiling.
        copied: bytes of the copy that is the other ceiling.
        pass_s: seconds that the part of paper 1's pass is given.
        corpus: scale of the corpus whose speech is made.
    """

    layers: tuple[int, ...]
    minibatch: int
    speech: int
    product: int
    copied: int
    pass_s: float
    corpus: str


FULL = (429, *(2048,) * 7, 10217)
SCALES = {
    "small": Scale((429, 64, 64, 352), 32, 20_000, 512, 1 << 24, 1.0, "smoke"),
    "paper": Scale(FULL, 256, 20_000_000, 8192, 1 << 30, 30.0, "paper"),
}
"""``paper`` is paper 1's network and minibatch, on a ninth of its 500 h."""


def fitted(scale: Scale, device: str) -> Scale:
    """The scale as a device can have it: a processor measures its ceilings on less."""
    if device != "cpu":
        return scale
    product, copied = min(scale.product, 2048), min(scale.copied, 1 << 28)
    return replace(scale, product=product, copied=copied, speech=min(scale.speech, 2_000_000))


def ceilings(scale: Scale, device: str) -> Figures:
    """FLOP a second of one large product in each precision; bytes a second of a copy."""
    a, b = (torch.randn(scale.product, scale.product, device=device) for _ in range(2))
    found: Figures = {"product": scale.product}
    for precision in possible(device):
        with products_in(precision):
            x, y = (each.bfloat16() if precision == "bf16" else each for each in (a, b))
            (took,) = in_turns([lambda x=x, y=y: torch.mm(x, y)], device, ROUNDS)
        found[f"{precision}_flops_per_s"] = 2.0 * scale.product**3 / min(took)
    source = torch.ones(scale.copied // 4, device=device)
    target = torch.empty_like(source)
    (took,) = in_turns([lambda: target.copy_(source)], device, ROUNDS)
    return {**found, "copy_bytes_per_s": 2.0 * scale.copied / min(took)}


def steps(scale: Scale, device: str) -> Figures:
    """One simulated minibatch beside the bare step, in every precision."""
    return {each: _step(setting_of(scale, device, each)) for each in possible(device)}


def _step(setting: Setting) -> Figures:
    # A few minibatches are enough of the speech, and two networks need the memory.
    ours, bare = pair(replace(setting, speech=min(setting.speech, 200_000)))
    works = [lambda: ours.run(WORKERS), lambda: bare.run(WORKERS)]
    harness_s, bare_s = in_turns(works, setting.device, ROUNDS)
    each_s = median(harness_s) / WORKERS
    return {
        "minibatch_s": each_s,
        "bare_step_s": median(bare_s) / WORKERS,
        "over_bare_step": over(harness_s, bare_s),
        "frames_per_s": setting.minibatch / each_s,
        "flops_per_s": setting.flops / each_s,
    }


def replicas(scale: Scale, device: str) -> Figures:
    """Gradients of several replicas of the network as one batch, in every precision."""
    return {
        each: {
            str(count): _stacked(setting_of(scale, device, each), count)
            for count in STACKED
            if _fits(scale, count, device)
        }
        for each in possible(device)
    }


def _fits(scale: Scale, count: int, device: str) -> bool:
    """Whether parameters and gradients of so many replicas take less than half of the memory."""
    taken = 8 * count * Layout(scale.layers).parameters
    return taken < room_on(device)


def _stacked(setting: Setting, count: int) -> Figures:
    layout = Layout(setting.layers)
    net = Dnn(layout, precision=setting.precision)
    stack = initial(layout).to(setting.device).repeat(count, 1)
    shape = (count, setting.minibatch)
    x = torch.randn(*shape, setting.layers[0], device=setting.device)
    targets = torch.randint(setting.layers[-1], shape, device=setting.device)
    out = torch.empty_like(stack)
    (took,) = in_turns([lambda: net.gradient(stack, x, targets, out)], setting.device, ROUNDS)
    each_s = median(took) / count
    return {
        "minibatch_s": each_s,
        "frames_per_s": setting.minibatch / each_s,
        "flops_per_s": setting.flops / each_s,
    }


def speech(scale: Scale, device: str) -> Figures:
    """Training speech made on the device: frames a second, and whether pieces change a bit."""
    made = Speech(Maker(recipe("mandarin-like", scale.corpus)), "train", device)
    numbers = np.arange(MADE_UTTERANCES[device])
    whole = made.make(numbers)
    parts = [made.make(part).features for part in np.array_split(numbers[:100], 3)]
    front = torch.cat(parts)
    took = min(timed(lambda: made.make(numbers), device) for _ in range(ROUNDS))
    return {
        "frames": len(whole.targets),
        "frames_per_s": len(whole.targets) / took,
        "same_in_pieces": torch.equal(front, whole.features[: len(front)]),
    }


def batched(scale: Scale, device: str) -> Figures:
    """The gradients of 50 workers' 32 frames as one batch, beside one at a time."""
    del scale
    layout = Layout(TOGETHER)
    net, stack = Dnn(layout), initial(layout).to(device).repeat(REPLICAS, 1)
    x = torch.randn(REPLICAS, FRAMES, TOGETHER[0], device=device)
    targets = torch.randint(TOGETHER[-1], (REPLICAS, FRAMES), device=device)
    out = torch.empty_like(stack)

    def one_at_a_time() -> None:
        for k in range(REPLICAS):
            one = slice(k, k + 1)
            net.gradient(stack[one], x[one], targets[one], out[one])

    works = [one_at_a_time, lambda: net.gradient(stack, x, targets, out)]
    alone_s, together_s = in_turns(works, device, ROUNDS)
    return {
        "replicas": REPLICAS,
        "frames": FRAMES,
        "layers": list(TOGETHER),
        "together_s": median(together_s),
        "times_alone": over(alone_s, together_s),
    }


def graphs(scale: Scale, device: str) -> Figures:
    """A gradient as one CUDA graph, beside its operations one by one: whether graphs pay."""
    if device == "cpu":
        return {"unmeasured": "CUDA graphs need a GPU"}
    found: Figures = {}
    for name, layers, minibatch in (
        ("small", TOGETHER, FRAMES),
        ("full", scale.layers, scale.minibatch),
    ):
        net, stack = Dnn(Layout(layers)), initial(Layout(layers)).to(device).repeat(WORKERS, 1)
        x = torch.randn(WORKERS, minibatch, layers[0], device=device)
        targets = torch.randint(layers[-1], (WORKERS, minibatch), device=device)
        plain = partial(_gradient, net, stack, x, targets)
        graph = recorded(plain, stack.device)
        graph()  # executed, because libraries allocate then; the second call records
        plain_s, graph_s = in_turns([plain, graph], device, ROUNDS)
        found[name] = {"plain_s": median(plain_s), "times_plain": over(plain_s, graph_s)}
    return found


def _gradient(net: Dnn, stack: torch.Tensor, x: torch.Tensor, targets: torch.Tensor) -> None:
    net.gradient(stack, x, targets, torch.empty_like(stack))


def blocks(scale: Scale, device: str) -> Figures:
    """Folds that the device is told of in blocks, beside folds one by one."""
    setting = setting_of(scale, device, precision_of_pass(device))
    setting = replace(setting, speech=min(setting.speech, 200_000))
    speech = speech_for(setting)
    one, many = SimulatedSteps(setting, speech), SimulatedSteps(setting, speech, in_blocks=True)
    for _ in range(2):  # the first block is executed, and the second recorded
        many.run(BLOCK)
    one_s, blocks_s = in_turns([lambda: one.run(BLOCK), lambda: many.run(BLOCK)], device, ROUNDS)
    return {
        "folds": BLOCK,
        "fold_s": median(one_s) / BLOCK,
        "fold_in_blocks_s": median(blocks_s) / BLOCK,
        "times_one_by_one": over(one_s, blocks_s),
    }


def part_of_pass(scale: Scale, device: str) -> Figures:
    """Folds of paper 1's pass for a while, everything included, and the rest by proportion.

    Timing, gathering, gradients, folds, reads and the average are in it, as a run on this device
    has them; pretraining, rate searches, evaluation and checkpoints are not.
    """
    setting = setting_of(scale, device, precision_of_pass(device))
    ours = SimulatedSteps(setting, speech_for(setting), in_blocks=device in IN_BLOCKS)
    for _ in range(2):  # the first block is executed, and the second recorded
        ours.run(BLOCK)
    began, took, folds = time.perf_counter(), 0.0, 0
    for _ in count():
        took += timed(lambda: ours.run(2 * BLOCK), device)
        folds += 2 * BLOCK
        if time.perf_counter() - began > scale.pass_s:
            break
    frames = folds * setting.minibatch
    return {
        "precision": setting.precision,
        "in_blocks": device in IN_BLOCKS,
        "frames": frames,
        "seconds": took,
        "frames_per_s": frames / took,
        "part": frames / PASS_FRAMES,
        "whole_pass_extrapolated_s": PASS_FRAMES / frames * took,
    }


def precision_of_pass(device: str) -> Precision:
    """What paper 1 is trained in at its own scale: TF32 where the device has it."""
    return "tf32" if "tf32" in possible(device) else "float32"


def setting_of(scale: Scale, device: str, precision: Precision) -> Setting:
    """What is trained at a scale."""
    return Setting(scale.layers, scale.minibatch, scale.speech, device, precision)


def possible(device: str) -> tuple[Precision, ...]:
    """The precisions this device can compute in."""
    if device == "cpu":
        return ("float32", "bf16")
    modern = torch.cuda.get_device_capability()[0] >= 8
    return ("float32", "tf32", "bf16") if modern else ("float32",)


PARTS: dict[str, Callable[[Scale, str], Figures]] = {
    "ceilings": ceilings,
    "replicas": replicas,
    "steps": steps,
    "speech": speech,
    "batched": batched,
    "graphs": graphs,
    "blocks": blocks,
    "pass": part_of_pass,
}
"""In the order in which they are measured."""
