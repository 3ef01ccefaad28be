"""Paper 2's runs as complete configurations: training by setting, and one epoch timed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from harness.acoustics.initial import WideRandom
from harness.acoustics.rbm import Recipe
from harness.algorithms.gradient_averaging import GradientAveraging
from harness.algorithms.model_averaging import ModelAveraging
from harness.algorithms.outer_step import BlockMomentum, OuterNesterov
from harness.algorithms.schedules import Exponential, Halving
from harness.execution.jobs.all_reduce import AllReduceConfig
from harness.execution.jobs.equivalence import EquivalenceConfig
from harness.execution.runs.config import RunConfig, Stage
from harness.execution.runs.executed import Configuration
from harness.execution.runs.timing import TimingConfig
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from reproductions.paper import Subject, levels
from reproductions.paper2_ng_averaging.prediction import (
    COLLECTIVE,
    EVERY,
    FOLDER,
    REPORTED,
    averaging,
    cluster,
    fitted,
    workload,
)

PRINTED: dict[str, Any] = REPORTED["paper"]
GPUS: tuple[int, ...] = tuple(REPORTED["timings"]["gpus"])
NODES: tuple[int, ...] = tuple(PRINTED["nodes"])
MANY = 16
"""The nodes of tables 3 to 6."""
RATES = FOLDER / "rates.toml"


@dataclass(frozen=True)
class Preset:
    """What a scale decides.

    Args:
        hidden: units of the hidden layers (the paper: six of 2048).
        minibatch: frames, where the paper has 1024; a small one, so that a pass over a small
            corpus still makes many rounds.
        share: of the training set that is trained on.
        passes: where the paper has 15.
        most_passes: a limit for newbob, which ends by itself.
        ranks: of natural gradient's estimates, of inputs and of output derivatives.
        period: minibatches between their updates.
        history: frames over which they forget.
        max_change: how far a frame may move a layer's parameters on average, for SGD too.
        seeds: how many by default.
    """

    hidden: tuple[int, ...]
    minibatch: int
    share: float
    passes: int
    most_passes: int
    ranks: tuple[int, int]
    period: int
    history: float
    max_change: float
    seeds: int


PRESETS = {
    "smoke": Preset((64,) * 2, 32, 0.25, 2, 3, (10, 20), 4, 500.0, 0.4, 2),
    "laptop": Preset((128,) * 4, 32, 0.105, 8, 14, (10, 20), 4, 500.0, 0.4, 3),
    "gpu": Preset((512,) * 6, 256, 1.0, 4, 8, (30, 60), 4, 2000.0, 0.075, 3),
    "paper": Preset((2048,) * 6, 1024, 1.0, 15, 20, (40, 40), 1, 2000.0, 0.075, 3),
}
SWEPT_AT = {"smoke": "laptop", "laptop": "laptop"}
"""Whose rates a scale uses; the others take the paper's."""
SEEDS = {scale: preset.seeds for scale, preset in PRESETS.items()}


def gpus(n: int) -> str:
    """So many GPUs, as tables have it."""
    return "1 GPU" if n == 1 else f"{n} GPUs"


@lru_cache
def swept() -> dict[str, Any]:
    """The rates that were best on development data, by scale, descent and workers."""
    return tomllib.loads(RATES.read_text(encoding="utf-8"))


def rate_of(scale: str, descent: str, workers: int) -> float:
    """The first rate, of the mean gradient: swept, or the paper's times the workers.

    Args:
        scale: of the preset.
        descent: ``"ng"`` or ``"sgd"``.
        workers: how many train.
    """
    of_scale = swept()["rates"].get(SWEPT_AT.get(scale))
    if of_scale is None:
        return PRINTED["first_rate"] * workers
    return float(of_scale[descent][str(workers)])


def natural(preset: Preset) -> NaturalGradient:
    """Natural gradient under the preset's max-change."""
    inputs, outputs = (
        Preconditioner(rank, preset.period, history=preset.history) for rank in preset.ranks
    )
    return NaturalGradient(inputs, outputs, PerSample(preset.max_change))


def plain(preset: Preset) -> NaturalGradient:
    """Plain SGD under the same max-change."""
    return NaturalGradient(None, None, PerSample(preset.max_change))


def trained(subject: Subject, seed: int, workers: int, descent: str = "ng") -> RunConfig:
    """Model averaging of so many workers as the paper runs it by default."""
    preset = PRESETS[subject.scale]
    local = natural(preset) if descent == "ng" else plain(preset)
    rate = rate_of(subject.scale, descent, workers)
    return RunConfig(
        corpus=subject.corpus.name,
        scale=subject.scale,
        corpus_seed=subject.corpus_seed,
        fingerprint=subject.corpus.fingerprint,
        hidden=preset.hidden,
        activation="sigmoid",
        initial=Recipe(),
        algorithm=ModelAveraging(local),
        schedule=Exponential(rate, preset.passes, PRINTED["last_rate_share"]),
        stages=(Stage(preset.minibatch, PRINTED["minibatch"], preset.share),),
        passes=preset.passes,
        chunk=1.0,
        evaluations=1,
        cluster=cluster(fitted().free),
        workers=workers,
        timed_layers=tuple(PRINTED["layers"]),
        seed=seed,
        device=subject.device,
        protocol=averaging(),
        tested="at the end",
    )


def with_rate(config: RunConfig, rate: float) -> RunConfig:
    """The same run from another first rate."""
    assert isinstance(config.schedule, Exponential)
    return replace(config, schedule=replace(config.schedule, rate=rate))


def small(config: RunConfig) -> RunConfig:
    """The paper's minibatch of 256: the rate a frame stays."""
    share = PRINTED["small_minibatch"] / PRINTED["minibatch"]
    (stage,) = config.stages
    minibatch = max(1, round(stage.minibatch * share))
    less = replace(stage, minibatch=minibatch, timed_minibatch=PRINTED["small_minibatch"])
    return with_rate(replace(config, stages=(less,)), config.schedule.rate * share)


def newbob(config: RunConfig, scale: str) -> RunConfig:
    """Kaldi's rule in place of the exponential schedule, from the same rate."""
    passes = PRESETS[scale].most_passes
    return replace(config, schedule=Halving(config.schedule.rate), passes=passes)


def tables(subject: Subject, seed: int) -> dict[str, RunConfig]:
    """The settings of tables 1 to 6, and the unscaled rate."""
    ng = {n: trained(subject, seed, n) for n in NODES}
    many = ng[MANY]
    random = {n: replace(ng[n], initial=WideRandom()) for n in (1, 32)}
    return {
        **{f"ng_{n}": config for n, config in ng.items()},
        **{f"random_{n}": config for n, config in random.items()},
        "every_20": replace(many, protocol=averaging(2 * EVERY)),
        **{f"small_{n}": small(ng[n]) for n in (1, MANY)},
        **{f"newbob_{n}": newbob(ng[n], subject.scale) for n in (1, MANY)},
        **{f"sgd_{n}": trained(subject, seed, n, "sgd") for n in (1, MANY)},
        "scaled": with_rate(many, MANY * ng[1].schedule.rate),
        "unscaled": with_rate(many, ng[1].schedule.rate),
    }


def beyond(subject: Subject, seed: int) -> dict[str, RunConfig]:
    """What the paper does not try, on as many workers as tables 3 to 6; all else is shared."""
    many, sgd = trained(subject, seed, MANY), trained(subject, seed, MANY, "sgd")
    assert isinstance(many.algorithm, ModelAveraging)
    local = many.algorithm
    each = replace(averaging(), every=1)
    return {
        "gradients": replace(
            sgd, algorithm=GradientAveraging(plain(PRESETS[subject.scale])), protocol=each
        ),
        "overlapped": replace(many, protocol=replace(averaging(), overlap=True)),
        "bmuf": replace(many, algorithm=replace(local, outer=BlockMomentum())),
        "outer": replace(many, algorithm=replace(local, outer=OuterNesterov())),
        "restarted": replace(many, algorithm=replace(local, restart="pass")),
        "restarted_each": replace(many, algorithm=replace(local, restart="round")),
    }


def epoch(seed: int, workers: int, every: int = EVERY, reading: str = "minibatch") -> TimingConfig:
    """One epoch of the paper's training on the fitted cluster."""
    fresh, rules = cluster(fitted(reading).free), averaging(every)
    return TimingConfig(
        fresh, workers, tuple(PRINTED["layers"]), PRINTED["minibatch"],
        rules.epoch_folds(fresh, workers), seed, rules,
    )  # fmt: skip


def timings(seed: int) -> dict[str, TimingConfig]:
    """Every timing run of one seed."""
    return {
        **{f"timing_{n}": epoch(seed, n) for n in GPUS},
        "timing_16_every_20": epoch(seed, MANY, 2 * EVERY),
        "other_1": epoch(seed, 1, reading="average"),
        "other_16_every_20": epoch(seed, MANY, 2 * EVERY, "average"),
    }


def once() -> dict[str, Configuration]:
    """What no seed changes: figure 1's all-reduce, and section 3's equivalence in small."""
    stampede = cluster(fitted().free)
    return {
        "all_reduce": AllReduceConfig(stampede, 4, COLLECTIVE, workload().parameter_bytes),
        "equivalence": EquivalenceConfig(
            algorithms=(ModelAveraging(), GradientAveraging()), layers=(20, 16, 16, 10),
            workers=MANY, frames=8, folds=50, rate=2.0,
        ),
    }  # fmt: skip


def experiments(subject: Subject, seed: int) -> dict[str, Configuration]:
    """Every run of one seed, by the name the exhibits use."""
    return {**tables(subject, seed), **beyond(subject, seed), **timings(seed), **once()}


def differences(subject: Subject) -> list[dict[str, str]]:
    """What is not as in the paper at this scale."""
    preset, corpus = PRESETS[subject.scale], subject.corpus
    hours = preset.share * corpus.frames_of("train") * corpus.frame_shift_s / 3600.0
    spliced, minibatch = 2 * corpus.context + 1, preset.minibatch
    ranks = "/".join(map(str, preset.ranks))
    rows = [
        (
            "training speech",
            f"{PRINTED['training_hours']} h Switchboard",
            f"{hours:.2f} h {corpus.name}",
        ),
        ("network", levels(PRINTED["layers"]), levels(corpus.layers(preset.hidden))),
        ("features", "fMLLR, 11 frames of 40", f"{spliced} frames of {corpus.dim}"),
        (
            "minibatch",
            "1024 and 256 frames",
            f"{minibatch} and {minibatch // 4} frames (timed as 1024 and 256)",
        ),
        ("epochs, exponential", str(PRINTED["epochs"]), str(preset.passes)),
        ("first rate", "0.32 times the GPUs", _rates_told(subject.scale)),
        ("rate with 256 frames", "not given", "a quarter: the rate a frame stays"),
        ("cross-validation", "a held-out tenth of the training set", "the development set"),
        (
            "NG-SGD",
            "ranks, period and max-change not given",
            f"ranks {ranks}, period {preset.period}, history {preset.history:g} frames, "
            f"max-change {preset.max_change:g} a frame",
        ),
        ("cluster", "Stampede, one K20 a node", "simulated; four figures fitted on 1, 2, 4 GPUs"),
        ("all-reduce", "MPI's choice", "Rabenseifner's algorithm"),
        ("decoding", "trigram", "bigram, scale tuned on the development set"),
    ]
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]


def _rates_told(scale: str) -> str:
    if scale not in SWEPT_AT:
        return "0.32 times the workers"
    return "swept on development data for SGD and NG-SGD at each number of workers"
