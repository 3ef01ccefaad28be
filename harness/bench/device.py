"""Measurement of a device in parts, over one or several commands; finished parts are kept.

Every part returns plain JSON values: seconds and rates of this device, and ratios measured in turns
within one run.

The folder holds ``asked.json`` (device, scale and presets, common to all parts),
``parts/NAME.json``, the reproductions' own folders, and after each command ``results.json`` and the
archive.
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import torch

from data_synth.continuous import Maker
from data_synth.made.speech import Speech
from data_synth.presets import recipe
from harness.base.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    UserError,
)
from harness.bench.baseline import machine
from harness.bench.steps import (
    WORKERS,
    Setting,
    SimulatedSteps,
    initial,
    median_ratio,
    pair,
    speech_for,
    time_in_turns,
    time_work,
)
from harness.networks.feedforward import Dnn, Layout, Precision, denormals_flushed, products_in
from harness.replay.block_replay import BLOCK, capture_graph
from harness.speech.frames import room_on
from harness.store.files import replacing, writable_folder, write_json
from harness.store.schema import CHECKPOINT, RUN
from harness.training.executors import IN_BLOCKS
from harness.training.loop import last_rows

PASS_FRAMES = 180_000_000
"""Paper 1's 500 h, at 100 frames a second."""

ROUNDS = 5

REPLICAS, TOGETHER, FRAMES = 50, (429, 128, 128, 128, 128, 352), 32

STACKED = (1, 4, 50)
"""Numbers of replicas in `measure_replicas`."""

MADE_UTTERANCES = {"cpu": 64, "cuda": 8192}

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Sizes of the parts.

    Args:
        layers, minibatch: layer sizes and minibatch of the trained network.
        speech: frames of speech on the device.
        product: rows and columns of the product that measures the ceiling in FLOP a second.
        copied: bytes of the copy that measures the ceiling in bytes a second.
        pass_s: seconds for the part of paper 1's pass.
        corpus: scale of the corpus in `measure_speech`.
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
"""Scales by name; ``paper`` has paper 1's network and minibatch, and a ninth of its 500 h."""


def fit_scale(scale: Scale, device: str) -> Scale:
    """The scale for a device: a CPU gets smaller ceilings and less speech."""
    if device != "cpu":
        return scale
    product, copied = min(scale.product, 2048), min(scale.copied, 1 << 28)
    return replace(scale, product=product, copied=copied, speech=min(scale.speech, 2_000_000))


def measure_ceilings(scale: Scale, device: str) -> Figures:
    """Measure FLOP a second of one large product by precision, and bytes a second of a copy."""
    a, b = (torch.randn(scale.product, scale.product, device=device) for _ in range(2))
    found: Figures = {"product": scale.product}
    for precision in possible(device):
        with products_in(precision):
            x, y = (each.bfloat16() if precision == "bf16" else each for each in (a, b))
            (took,) = time_in_turns([lambda x=x, y=y: torch.mm(x, y)], device, ROUNDS)
        found[f"{precision}_flops_per_s"] = 2.0 * scale.product**3 / min(took)
    source = torch.ones(scale.copied // 4, device=device)
    target = torch.empty_like(source)
    (took,) = time_in_turns([lambda: target.copy_(source)], device, ROUNDS)
    return {**found, "copy_bytes_per_s": 2.0 * scale.copied / min(took)}


def measure_steps(scale: Scale, device: str) -> Figures:
    """Time one simulated minibatch and the bare step, in every precision."""
    return {each: _step(setting_of(scale, device, each)) for each in possible(device)}


def _step(setting: Setting) -> Figures:
    # Less speech is enough for a few minibatches, and the two networks need the memory.
    ours, bare = pair(replace(setting, speech=min(setting.speech, 200_000)))
    works = [lambda: ours.run(WORKERS), lambda: bare.run(WORKERS)]
    harness_s, bare_s = time_in_turns(works, setting.device, ROUNDS)
    each_s = median(harness_s) / WORKERS
    return {
        "minibatch_s": each_s,
        "bare_step_s": median(bare_s) / WORKERS,
        "over_bare_step": median_ratio(harness_s, bare_s),
        "frames_per_s": setting.minibatch / each_s,
        "flops_per_s": setting.flops / each_s,
    }


def measure_replicas(scale: Scale, device: str) -> Figures:
    """Time the gradients of several replicas of the network as one batch, by precision."""
    return {
        each: {
            str(count): _measure_stack(setting_of(scale, device, each), count)
            for count in STACKED
            if _fits(scale, count, device)
        }
        for each in possible(device)
    }


def _fits(scale: Scale, count: int, device: str) -> bool:
    """Whether parameters and gradients of ``count`` replicas fit `room_on` the device."""
    taken = 8 * count * Layout(scale.layers).parameters
    return taken < room_on(device)


def _measure_stack(setting: Setting, count: int) -> Figures:
    layout = Layout(setting.layers)
    net = Dnn(layout, precision=setting.precision)
    stack = initial(layout).to(setting.device).repeat(count, 1)
    shape = (count, setting.minibatch)
    x = torch.randn(*shape, setting.layers[0], device=setting.device)
    targets = torch.randint(setting.layers[-1], shape, device=setting.device)
    out = torch.empty_like(stack)
    (took,) = time_in_turns([lambda: net.gradient(stack, x, targets, out)], setting.device, ROUNDS)
    each_s = median(took) / count
    return {
        "minibatch_s": each_s,
        "frames_per_s": setting.minibatch / each_s,
        "flops_per_s": setting.flops / each_s,
    }


def measure_speech(scale: Scale, device: str) -> Figures:
    """Time the synthesis of speech; and whether parts are bit-identical to the whole."""
    made = Speech(Maker(recipe("mandarin-like", scale.corpus)), "train", device)
    numbers = np.arange(MADE_UTTERANCES[device])
    whole = made.make(numbers)
    parts = [made.make(part).features for part in np.array_split(numbers[:100], 3)]
    front = torch.cat(parts)
    took = min(time_work(lambda: made.make(numbers), device) for _ in range(ROUNDS))
    return {
        "frames": len(whole.targets),
        "frames_per_s": len(whole.targets) / took,
        "same_in_pieces": torch.equal(front, whole.features[: len(front)]),
    }


def measure_batching(scale: Scale, device: str) -> Figures:
    """Time the gradients of 50 workers' 32 frames as one batch, and one at a time."""
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
    alone_s, together_s = time_in_turns(works, device, ROUNDS)
    return {
        "replicas": REPLICAS,
        "frames": FRAMES,
        "layers": list(TOGETHER),
        "together_s": median(together_s),
        "times_alone": median_ratio(alone_s, together_s),
    }


def measure_graphs(scale: Scale, device: str) -> Figures:
    """Time a gradient as one CUDA graph, and as separate launches."""
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
        graph = capture_graph(plain, stack.device)
        graph()  # the first call executes, as libraries allocate; the second captures
        plain_s, graph_s = time_in_turns([plain, graph], device, ROUNDS)
        found[name] = {"plain_s": median(plain_s), "times_plain": median_ratio(plain_s, graph_s)}
    return found


def _gradient(net: Dnn, stack: torch.Tensor, x: torch.Tensor, targets: torch.Tensor) -> None:
    net.gradient(stack, x, targets, torch.empty_like(stack))


def measure_blocks(scale: Scale, device: str) -> Figures:
    """Time folds launched in blocks, and folds one by one."""
    setting = setting_of(scale, device, precision_of_pass(device))
    setting = replace(setting, speech=min(setting.speech, 200_000))
    speech = speech_for(setting)
    one, many = SimulatedSteps(setting, speech), SimulatedSteps(setting, speech, in_blocks=True)
    for _ in range(2):  # the first block is executed, the second captured
        many.run(BLOCK)
    one_s, blocks_s = time_in_turns(
        [lambda: one.run(BLOCK), lambda: many.run(BLOCK)], device, ROUNDS
    )
    return {
        "folds": BLOCK,
        "fold_s": median(one_s) / BLOCK,
        "fold_in_blocks_s": median(blocks_s) / BLOCK,
        "times_one_by_one": median_ratio(one_s, blocks_s),
    }


def measure_pass(scale: Scale, device: str) -> Figures:
    """Time folds of paper 1's pass for ``scale.pass_s``, and extrapolate to the whole pass.

    The time includes simulation, gathering, gradients, folds, reads and the average, as in a run on
    this device; it excludes pretraining, rate searches, evaluation and checkpoints.
    """
    setting = setting_of(scale, device, precision_of_pass(device))
    ours = SimulatedSteps(setting, speech_for(setting), in_blocks=device in IN_BLOCKS)
    for _ in range(2):  # the first block is executed, the second captured
        ours.run(BLOCK)
    began, took, folds = time.perf_counter(), 0.0, 0
    for _ in count():
        took += time_work(lambda: ours.run(2 * BLOCK), device)
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
    """Precision of paper 1's runs at its own scale: TF32 if the device has it."""
    return "tf32" if "tf32" in possible(device) else "float32"


def setting_of(scale: Scale, device: str, precision: Precision) -> Setting:
    """Network, data and device of a scale, in a precision."""
    return Setting(scale.layers, scale.minibatch, scale.speech, device, precision)


def possible(device: str) -> tuple[Precision, ...]:
    """The precisions this device can compute in."""
    if device == "cpu":
        return ("float32", "bf16")
    modern = torch.cuda.get_device_capability()[0] >= 8
    return ("float32", "tf32", "bf16") if modern else ("float32",)


PARTS: dict[str, Callable[[Scale, str], Figures]] = {
    "ceilings": measure_ceilings,
    "replicas": measure_replicas,
    "steps": measure_steps,
    "speech": measure_speech,
    "batched": measure_batching,
    "graphs": measure_graphs,
    "blocks": measure_blocks,
    "pass": measure_pass,
}
"""Measurements by name of their part, in order of execution."""

SCHEMA = 2

ARCHIVE = "lagbench-device.tar.gz"

LEAST_S = {"replicas": 60.0, "steps": 60.0, "pass": 60.0}
"""Seconds left that a part needs to begin at scale ``paper``; other parts need none."""

PR_SET_PDEATHSIG = 1

STARTING_S = 20.0
"""Seconds that a reproduction needs to start, for its report, or to stop."""

KEPT = ("results.json", "report.html", "report.pdf", "runs.csv")
"""Files of a reproduction in the archive."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Reproduction:
    """A reproduction of a paper's exhibits, continued by each command until it is done.

    Args:
        paper: name of the paper, as ``paper1``.
        scale: one of its scales.
        exhibits: names of its exhibits; empty for all.
    """

    paper: str
    scale: str
    exhibits: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Reproduction:
        """Parse ``paper1/gpu``, or ``paper1/paper:fig1,table2``.

        Raises:
            UserError: the text has neither form.
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
        """Folder of its runs in ``--out``, shared by reproductions of one paper and scale."""
        return Path("reproductions") / f"{self.paper}-{self.scale}"

    @property
    def part(self) -> str:
        """Name of its part in the results."""
        return "-".join([self.paper, self.scale, *self.exhibits])

    def command(self, asked: MeasurementPlan, minutes: float) -> list[str]:
        """Command line that executes it with one seed, for ``minutes``."""
        program = [sys.executable, "-m", "reproductions", self.paper, "--scale", self.scale]
        only = ["--only", ",".join(self.exhibits)] if self.exhibits else []
        limits = ["--seeds", "1", "--device", asked.device, "--budget", f"{minutes:.3f}"]
        return [*program, *only, *limits, "--out", str(asked.out / self.folder)]


PLAN = tuple(
    map(
        Reproduction.from_text,
        (
            "paper1/paper:fig1,staleness",  # its one pass
            "paper1/paper:table2,table3,fig3,time-to-target",  # its baseline of many
            "paper2/gpu",
            "paper3/gpu",
        ),
    )
)
"""Default reproductions on a GPU, the most valuable first."""


@dataclass(frozen=True)
class MeasurementPlan:
    """Plan of a measurement.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        scale: scale of the parts, a key of `SCALES`.
        presets: reproductions, in order of execution.
        minutes: time limit of this command.
        out: folder of the results.
    """

    device: str
    scale: str
    presets: tuple[Reproduction, ...]
    minutes: float
    out: Path

    def describe(self) -> Figures:
        """Values that must be equal for all commands on one folder."""
        return {
            "device": self.device,
            "name": device_name(self.device),
            "scale": self.scale,
            "presets": list(map(str, self.presets)),
            "torch": torch.__version__,
        }


def device_name(device: str) -> str:
    """Model name of the GPU or processor."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return str(machine()["processor"])


def measure(asked: MeasurementPlan, say: Say) -> Figures:
    """Measure the parts that the folder lacks, within ``asked.minutes``, and write the archive.

    The archive is written after every finished part and at the end, also if the command is
    interrupted. A part that fails is listed in the results, and tried again by the next command.

    Returns:
        The content of ``results.json``; ``unfinished`` names the parts left for a further command.

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
                if (trouble := _run_part(part, asked, path)) is not None:
                    failed[name] = trouble
                keep(asked, failed)
        for preset in asked.presets:
            if not _run_reproduction(asked, preset, parts, ends, say):
                break
            keep(asked, failed)
    finally:
        results = keep(asked, failed)
    return results


def _run_part(
    part: Callable[[Scale, str], Figures], asked: MeasurementPlan, path: Path
) -> str | None:
    """Measure a part and write its file; returns the error in one line, or None."""
    try:
        with denormals_flushed():  # as runs have it
            found = part(fit_scale(SCALES[asked.scale], asked.device), asked.device)
    except Exception as error:  # an untested device may fail in one part; measure the others
        return f"{type(error).__name__}: {error}".splitlines()[0]
    write_json(path, {**found, "measured": _now()})
    return None


def keep(asked: MeasurementPlan, failed: Mapping[str, str]) -> Figures:
    """Write ``results.json`` and the archive; returns the results."""
    results = collect_results(asked, failed)
    write_json(asked.out / "results.json", results)
    pack(asked.out, asked.presets)
    return results


def _agree(asked: MeasurementPlan) -> None:
    """Reject a folder with results of another device, scale, preset or torch version."""
    path, told = writable_folder(asked.out, "--out") / "asked.json", asked.describe()
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


def _run_reproduction(
    asked: MeasurementPlan, preset: Reproduction, parts: Path, ends: float, say: Say
) -> bool:
    """Continue a reproduction for the time left; returns whether it is done.

    Raises:
        UserError: the reproduction's command rejects its arguments.
    """
    path, left_s = parts / f"{preset.part}.json", ends - time.monotonic() - 2.0 * STARTING_S
    if path.exists():
        return True
    if left_s <= 0.0:
        return False
    say(f"{preset}, {left_s / 60.0:.1f} minutes …")
    code = run_with_limit(preset.command(asked, left_s / 60.0), left_s + STARTING_S)
    if code == EXIT_BAD_INPUT:  # the command has printed the reason
        raise UserError(f"--preset {preset}: refused, as said above; allowed: paper1/gpu …")
    done = code in (EXIT_DONE, EXIT_RUN_FAILED)
    if done:
        write_json(path, {"preset": str(preset), "exit": code, "measured": _now()})
    return done


def run_with_limit(command: Sequence[str], limit_s: float) -> int:
    """Run a command, interrupt it as by Ctrl-C after ``limit_s``; returns its exit code.

    The limit is needed beside the command's ``--budget``, which covers its runs alone, and not the
    corpus that may have to be made first.
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
    """Have the kernel send SIGINT to this process when its parent ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def collect_results(asked: MeasurementPlan, failed: Mapping[str, str]) -> Figures:
    """All results so far, with their provenance and the progress of unfinished runs."""
    known = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((asked.out / "parts").glob("*.json"))
    }
    wanted = [*PARTS, *(preset.part for preset in asked.presets)]
    folders = dict.fromkeys(preset.folder for preset in asked.presets)
    return {
        "schema": SCHEMA,
        "asked": asked.describe(),
        "shares": shares(known),
        "parts": known,
        "failed": dict(failed),
        "runs": {str(f.name): standing(asked.out / f / "runs") for f in folders},
        "unfinished": [name for name in wanted if name not in known],
        "provenance": {"git": _commit(), "machine": machine(), "written": _now()},
    }


def standing(store: Path) -> list[Figures]:
    """Every run of a store: status and summary, or the last measurements in its checkpoint."""
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
    """FLOP a second of training as a share of the large product's, by precision.

    The key of a simulated minibatch is the precision, that of stacked gradients has the number of
    replicas, too.
    """
    if "ceilings" not in parts:
        return {}
    steps, stacks, ceiling = (parts.get(p, {}) for p in ("steps", "replicas", "ceilings"))
    found: dict[str, float] = {}
    for precision in get_args(Precision):
        named: Figures = {precision: steps[precision]} if precision in steps else {}
        for stacked, each in stacks.get(precision, {}).items():
            named[f"{precision}, {stacked} replicas"] = each
        fastest = ceiling.get(f"{precision}_flops_per_s")
        found |= {name: each["flops_per_s"] / fastest for name, each in named.items()}
    return found


def pack(out: Path, presets: Sequence[Reproduction]) -> Path:
    """Write the archive: ``results.json``, and results and report of every reproduction."""
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
