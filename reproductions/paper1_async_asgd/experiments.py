"""Paper 1's training runs, as complete configurations; a variant is two lines."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_synth.corpus import Corpus
from harness.algorithms.async_sgd import AsyncSgd, Scaling
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.schedules import Constant, Halving, Hand, Schedule, Search
from harness.execution.config import RunConfig, Stage
from harness.execution.timing import TimingConfig
from harness.simulator import load_cluster
from reproductions.paper import Subject

FOLDER = Path(__file__).parent
REPORTED: dict[str, Any] = tomllib.loads((FOLDER / "reported.toml").read_text(encoding="utf-8"))
CLUSTER = FOLDER.parent / "clusters" / "k20m-server.toml"


@dataclass(frozen=True)
class Preset:
    """What a scale decides.

    Args:
        hidden: units of the hidden layers (the paper: seven of 2048).
        minibatch: frames, where the paper has 256. A small corpus gets a smaller one so
            that a pass still makes thousands of folds.
        chunk: a chunk's share of the training set (the paper: 1 h of 500).
        subset: figure 2's share of the training set (the paper: 100 h of 500).
        seeds: how many by default.
        baseline_passes: the multi-pass baseline's limit; its own rule stops it earlier.
        evaluations: development scores a pass.
    """

    hidden: tuple[int, ...]
    minibatch: int
    chunk: float
    subset: float
    seeds: int
    baseline_passes: int
    evaluations: int


PRESETS = {
    "smoke": Preset((192,) * 2, 16, 1 / 50, 1.0, 2, 12, 10),
    "laptop": Preset((256,) * 3, 16, 1 / 100, 1.0, 3, 14, 20),
    "gpu": Preset((1024,) * 7, 128, 1 / 500, 0.2, 3, 16, 25),
    "paper": Preset((2048,) * 7, 256, 1 / 500, 0.2, 3, 20, 50),
}


RATE: float = REPORTED["paper"]["first_rate"]


def stage(subject: Subject, paper_minibatch: int = 256, share: float = 1.0) -> Stage:
    """A stage at the paper's minibatch size, scaled as the preset scales 256."""
    scaled = max(1, round(paper_minibatch * PRESETS[subject.scale].minibatch / 256))
    return Stage(scaled, paper_minibatch, share)


def hours_factor(subject: Subject) -> float:
    """Hours on the paper's 500 h corpus for one simulated second of ours.

    The cluster is charged for the paper's minibatches, so a pass over our training set
    stands for as many of the paper's frames as it has minibatches times 256.
    """
    minibatches = subject.corpus.frames_of("train") / PRESETS[subject.scale].minibatch
    return REPORTED["paper"]["frames"] / (minibatches * REPORTED["paper"]["minibatch"]) / 3600.0


def averaged(
    subject: Subject, seed: int, schedule: Schedule, scaling: Scaling, share: float
) -> RunConfig:
    """Asynchronous averaged SGD for two passes: one to judge, one to see the curve flatten."""
    algorithm = AveragedSgd(AsyncSgd(scaling), eta=REPORTED["paper"]["eta"])
    stages = (stage(subject, share=share),)
    return _run(subject, seed, algorithm, schedule, stages, passes=2)


def baseline(subject: Subject, seed: int) -> RunConfig:
    """The multi-pass baseline: 64 on a quarter of the data, twice 256, then 1024 (section 4.3)."""
    stages = (stage(subject, 64, 0.25), stage(subject), stage(subject), stage(subject, 1024))
    passes = PRESETS[subject.scale].baseline_passes
    return _run(subject, seed, AsyncSgd(), Halving(RATE), stages, passes)


def timing(seed: int, workers: int) -> TimingConfig:
    """The paper's network on the paper's server, timed without training."""
    paper = REPORTED["paper"]
    layers = tuple(paper["layers"])
    return TimingConfig(load_cluster(CLUSTER), workers, layers, paper["minibatch"], 2000, seed)


def experiments(subject: Subject, seed: int) -> dict[str, RunConfig | TimingConfig]:
    """Every run of one seed, by the name the exhibits use."""
    subset = PRESETS[subject.scale].subset
    return {
        "hand": averaged(subject, seed, Hand(RATE), "plain", subset),
        "adapt": averaged(subject, seed, Constant(RATE), "memory_of_one", subset),
        "search": averaged(subject, seed, Search(RATE), "plain", subset),
        "one_pass": averaged(subject, seed, Search(RATE), "plain", 1.0),
        "multi_pass": baseline(subject, seed),
        "timing_1": timing(seed, 1),
        "timing_4": timing(seed, 4),
    }


def differences(subject: Subject) -> list[dict[str, str]]:
    """What is not as in the paper at this scale."""
    preset, corpus, paper = PRESETS[subject.scale], subject.corpus, REPORTED["paper"]
    hours = corpus.frames_of("train") * corpus.frame_shift_s / 3600.0
    rows = [
        (
            "training speech",
            f"{paper['training_hours']} h Mandarin",
            f"{hours:.2f} h {corpus.name}",
        ),
        (
            "network",
            _levels(paper["layers"]),
            _levels([_inputs(corpus), *preset.hidden, corpus.n_targets]),
        ),
        ("minibatch", "256 frames", f"{preset.minibatch} frames (timed as 256)"),
        ("chunk", "1/500 of the data", f"1/{1 / preset.chunk:.0f} of the data"),
        ("subset of figure 2", "20% of the data", f"{preset.subset:.0%} of the data"),
        ("initialisation", "RBM pretraining", "random"),
        ("error on the test sets", "characters, decoded speech", "isolated words"),
    ]
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]


def _inputs(corpus: Corpus) -> int:
    return corpus.dim * (2 * corpus.context + 1)


def _levels(sizes: Sequence[int]) -> str:
    return "–".join(map(str, sizes))


def _run(
    subject: Subject,
    seed: int,
    algorithm: AsyncSgd | AveragedSgd,
    schedule: Schedule,
    stages: tuple[Stage, ...],
    passes: int,
) -> RunConfig:
    preset = PRESETS[subject.scale]
    return RunConfig(
        corpus=subject.corpus.name,
        scale=subject.scale,
        fingerprint=subject.corpus.fingerprint,
        hidden=preset.hidden,
        activation="sigmoid",
        algorithm=algorithm,
        schedule=schedule,
        stages=stages,
        passes=passes,
        chunk=preset.chunk,
        evaluations=preset.evaluations,
        cluster=load_cluster(CLUSTER),
        workers=REPORTED["paper"]["workers"],
        timed_layers=tuple(REPORTED["paper"]["layers"]),
        seed=seed,
        device=subject.device,
    )
