"""Paper 1's training runs, as complete configurations; a variant is two lines."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_synth.corpus import Corpus
from harness.acoustics.rbm import Recipe
from harness.algorithms.async_sgd import AsyncSgd, Scaling
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.schedules import Constant, Halving, Hand, Schedule, Search
from harness.execution.runs.config import RunConfig, Stage
from harness.execution.runs.timing import TimingConfig
from harness.simulator import load_cluster
from reproductions.paper import Subject, levels

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
        folds: the most folds a pass makes; a corpus too large for them gets minibatches
            twice the size, or four times, and so on.
        chunk: the smallest chunk's share of the training set (the paper: 1 h of 500);
            table 1's others are as many times larger as in the paper.
        subset: figure 2's share of the training set (the paper: 100 h of 500).
        seeds: how many by default.
        baseline_passes: the multi-pass baseline's limit; its own rule stops it earlier.
        evaluations: development scores a pass.
    """

    hidden: tuple[int, ...]
    minibatch: int
    folds: float
    chunk: float
    subset: float
    seeds: int
    baseline_passes: int
    evaluations: int


PRESETS = {
    "smoke": Preset((192,) * 2, 16, 5000, 1 / 25, 1.0, 2, 16, 10),
    "laptop": Preset((128,) * 3, 32, math.inf, 1 / 100, 1.0, 3, 20, 10),
    "overnight": Preset((64,) * 3, 32, math.inf, 1 / 100, 1.0, 7, 20, 20),
    "gpu": Preset((1024,) * 7, 128, math.inf, 1 / 500, 0.2, 3, 16, 25),
    "paper": Preset((2048,) * 7, 256, math.inf, 1 / 500, 0.2, 3, 20, 50),
}


OF_CHARACTERS = ("mandarin-like", "spoken-mandarin", "aishell")
"""Corpora whose words are single characters."""
RATE: float = REPORTED["paper"]["first_rate"]
SEARCH = Search(RATE, whole_trials=True)
CHUNK_HOURS: tuple[int, ...] = tuple(REPORTED["table1"]["hours"])
TIMED_WORKERS = (1, 2, 4, 8, 16, 32, 64)


def stage(subject: Subject, paper_minibatch: int = 256, share: float = 1.0) -> Stage:
    """A stage at the paper's minibatch size, scaled as the preset scales 256."""
    scaled = max(1, round(paper_minibatch * minibatch_of(subject) / 256))
    return Stage(scaled, paper_minibatch, share)


def minibatch_of(subject: Subject) -> int:
    """Frames of a minibatch in place of the paper's 256."""
    preset = PRESETS[subject.scale]
    size, frames = preset.minibatch, subject.corpus.frames_of("train")
    while frames / size > preset.folds:
        size *= 2
    return size


def hours_factor(subject: Subject) -> float:
    """Hours on the paper's 500 h corpus for one simulated second of ours.

    The cluster is charged for the paper's minibatches, so a pass over our training set
    stands for as many of the paper's frames as it has minibatches times 256.
    """
    minibatches = subject.corpus.frames_of("train") / minibatch_of(subject)
    return REPORTED["paper"]["frames"] / (minibatches * REPORTED["paper"]["minibatch"]) / 3600.0


def averaged(
    subject: Subject, seed: int, schedule: Schedule, scaling: Scaling = "plain", share: float = 1.0
) -> RunConfig:
    """Asynchronous averaged SGD for two passes: one to judge, one to see the curve flatten."""
    algorithm = AveragedSgd(AsyncSgd(scaling), eta=REPORTED["paper"]["eta"])
    stages = (stage(subject, share=share),)
    return _run(subject, seed, algorithm, schedule, stages, passes=2)


def chunked(subject: Subject, seed: int) -> dict[str, RunConfig]:
    """Table 1's runs: one pass with each of the larger chunks."""
    one_pass = replace(averaged(subject, seed, SEARCH), passes=1)
    chunk = PRESETS[subject.scale].chunk
    return {chunk_name(h): replace(one_pass, chunk=chunk * h) for h in CHUNK_HOURS[1:]}


def chunk_name(hours: int) -> str:
    """The setting that has table 1's chunk of so many hours; 1 h is the standard one."""
    return "one_pass" if hours == CHUNK_HOURS[0] else f"chunk_{hours}"


def variants(subject: Subject, seed: int) -> dict[str, RunConfig]:
    """What the defaults of decision 3 decide: one pass each, one choice changed."""
    search = averaged(subject, seed, SEARCH)
    others = {
        "search, no margin": replace(search, schedule=replace(SEARCH, clear=0.0)),
        "search, factor 1.5": replace(search, schedule=replace(SEARCH, factor=1.5)),
        "hand from 0.016": replace(search, schedule=Hand(2 * RATE)),
        "constant 0.008": replace(search, schedule=Constant(RATE)),
        "random initial parameters": replace(search, initial=None),
        "one worker": replace(search, workers=1),
    }
    return {name: replace(config, passes=1) for name, config in others.items()}


def baseline(subject: Subject, seed: int) -> RunConfig:
    """The multi-pass baseline: 64 on a quarter of the data, twice 256, then 1024 (section 4.3)."""
    stages = (stage(subject, 64, 0.25), stage(subject), stage(subject), stage(subject, 1024))
    passes = PRESETS[subject.scale].baseline_passes
    return _run(subject, seed, AsyncSgd(), Halving(RATE), stages, passes)


def timing(
    seed: int, workers: int, minibatch: int = REPORTED["paper"]["minibatch"]
) -> TimingConfig:
    """The paper's network on the paper's server, timed without training."""
    layers = tuple(REPORTED["paper"]["layers"])
    return TimingConfig(load_cluster(CLUSTER), workers, layers, minibatch, 2000, seed)


def experiments(subject: Subject, seed: int) -> dict[str, RunConfig | TimingConfig]:
    """Every run of one seed, by the name the exhibits use."""
    subset = PRESETS[subject.scale].subset
    return {
        "hand": averaged(subject, seed, Hand(RATE), "plain", subset),
        "adapt": averaged(subject, seed, Constant(RATE), "memory_of_one", subset),
        "search": averaged(subject, seed, SEARCH, "plain", subset),
        "one_pass": averaged(subject, seed, SEARCH),
        "multi_pass": baseline(subject, seed),
        **chunked(subject, seed),
        **variants(subject, seed),
        **{f"timing_{n}": timing(seed, n) for n in TIMED_WORKERS},
    }


def differences(subject: Subject) -> list[dict[str, str]]:
    """What is not as in the paper at this scale."""
    preset, corpus, paper = PRESETS[subject.scale], subject.corpus, REPORTED["paper"]
    minibatch = minibatch_of(subject)
    hours = corpus.frames_of("train") * corpus.frame_shift_s / 3600.0
    rows = [
        (
            "training speech",
            f"{paper['training_hours']} h Mandarin",
            f"{hours:.2f} h {corpus.name}",
        ),
        (
            "network",
            levels(paper["layers"]),
            levels(corpus.layers(preset.hidden)),
        ),
        ("minibatch", "256 frames", f"{minibatch} frames (timed as 256)"),
        (
            "rate of a mean gradient",
            f"{256 * RATE:.2f}",
            f"{minibatch * RATE:.3f} (0.008 x the sum over a minibatch, as there)",
        ),
        ("K of equation 2", "1, of sums over 256", f"1, of sums over {minibatch}"),
        ("chunk of 1 h", "1/500 of the data", f"1/{1 / preset.chunk:.0f} of the data"),
        ("subset of figure 2", "20% of the data", f"{preset.subset:.0%} of the data"),
        ("error on the test sets", "characters, decoded", _measure(corpus)),
        ("test sets", "clean7k, noise360", _tests(corpus)),
    ]
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]


def _measure(corpus: Corpus) -> str:
    if not corpus.lm_text:
        return "isolated words, not decoded"
    what = "characters" if corpus.name in OF_CHARACTERS else "words"
    return f"{what}, decoded with a bigram"


def _tests(corpus: Corpus) -> str:
    """Each test set's size, and whether its speakers were heard in training."""
    heard = set(corpus.split("train").speaker.tolist())
    told: list[str] = []
    for test in corpus.tests:
        part = corpus.split(test)
        new = heard.isdisjoint(part.speaker.tolist())
        told.append(f"{test}: {len(part)} utterances of {'other' if new else 'the same'} speakers")
    return "; ".join(told)


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
        corpus_seed=subject.corpus_seed,
        fingerprint=subject.corpus.fingerprint,
        hidden=preset.hidden,
        activation="sigmoid",
        initial=Recipe(),
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
