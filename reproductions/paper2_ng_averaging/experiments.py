"""Paper 2's runs as complete configurations: training by setting, and one epoch timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from data_synth.corpus import Corpus
from harness.acoustics.rbm import Recipe, WideRandom
from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.schedules import Exponential, Halving
from harness.runs.config import Stage
from harness.runs.executed import Configuration, TimingConfig
from harness.speech.frames import RunConfig, shuffling_of
from harness.speech.task import ENOUGH
from reproductions.paper import DEVELOPMENT, Subject, levels
from reproductions.paper2_ng_averaging.all_reduce import AllReduceConfig
from reproductions.paper2_ng_averaging.cells import SEARCHED_CELLS, STEPS, cells, rate_of
from reproductions.paper2_ng_averaging.equivalence import EquivalenceConfig
from reproductions.paper2_ng_averaging.prediction import (
    COLLECTIVE,
    EVERY,
    REPORTED,
    averaging,
    cluster,
    fitted,
    workload,
)
from reproductions.paper2_ng_averaging.presets import PRESETS, Preset, natural, plain
from reproductions.paper2_ng_averaging.rates import (
    SWEPT_AT,
    newbob_passes,
    rated,
    tuning,
    with_rate,
)

PRINTED: dict[str, Any] = REPORTED["paper"]
GPUS: tuple[int, ...] = tuple(REPORTED["timings"]["gpus"])
NODES: tuple[int, ...] = tuple(PRINTED["nodes"])
MANY = 16
"""The nodes of tables 3 to 6."""
BEYOND = 64
"""Twice the paper's most: where the law says whether averaging still pays."""
SEARCHED = (
    *(f"ng_{n}" for n in (*NODES, BEYOND)),
    *("random_1", "random_32", "rbm_1", "rbm_32", "every_20", "small_1", "small_16"),
    *("newbob_1", "newbob_16", "exponential_1", "exponential_16", "sgd_1", "sgd_16"),
    *("gradients", "bmuf", "outer"),
    *SEARCHED_CELLS,
)
"""Settings with a rate that was searched for, in the order of the report."""


def gpus(n: int) -> str:
    """So many GPUs, as tables have it."""
    return "1 GPU" if n == 1 else f"{n} GPUs"


def trained(subject: Subject, seed: int, workers: int) -> RunConfig:
    """Model averaging of so many workers as the paper runs it by default, from its first rate."""
    preset = PRESETS[subject.scale]
    return RunConfig(
        corpus=subject.corpus.name,
        scale=subject.scale,
        corpus_seed=subject.corpus_seed,
        fingerprint=subject.corpus.fingerprint,
        hidden=preset.hidden,
        activation="sigmoid",
        initial=Recipe(),
        algorithm=ModelAveraging(natural(preset)),
        schedule=Exponential(PRINTED["first_rate"], preset.passes, PRINTED["last_rate_share"]),
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
        shuffling=shuffling_of(subject.corpus),
    )


def small(config: RunConfig) -> RunConfig:
    """The paper's minibatch of 256."""
    (stage,) = config.stages
    share = PRINTED["small_minibatch"] / PRINTED["minibatch"]
    minibatch = max(1, round(stage.minibatch * share))
    less = replace(stage, minibatch=minibatch, timed_minibatch=PRINTED["small_minibatch"])
    return replace(config, stages=(less,))


def newbob(config: RunConfig, scale: str) -> RunConfig:
    """Kaldi's rule in place of the exponential schedule."""
    halving = Halving(config.schedule.rate)
    return replace(config, schedule=halving, passes=PRESETS[scale].most_passes)


def as_long_as_newbob(config: RunConfig, scale: str) -> RunConfig:
    """The exponential schedule over the passes that newbob took, as in section 5.6."""
    assert isinstance(config.schedule, Exponential)
    passes = min(newbob_passes(scale, config.passes), PRESETS[scale].most_passes)
    return replace(config, schedule=replace(config.schedule, passes=passes), passes=passes)


def pretraining(passes: int) -> Recipe:
    """Machines trained for so many passes, the first layer's for twice as many (Kaldi's nnet1)."""
    return Recipe(gaussian_epochs=2 * passes, bernoulli_epochs=passes)


def compared(subject: Subject, seed: int) -> dict[str, RunConfig]:
    """Every setting with a rate of its own, at that rate."""
    scale, preset = subject.scale, PRESETS[subject.scale]
    ng = {n: trained(subject, seed, n) for n in NODES}
    many, averaged = ng[MANY], ModelAveraging(natural(preset))
    sgd = {n: replace(ng[n], algorithm=ModelAveraging(plain(preset))) for n in (1, MANY)}
    each = replace(averaging(), every=1)
    settings = {
        **{f"ng_{n}": config for n, config in ng.items()},
        f"ng_{BEYOND}": trained(subject, seed, BEYOND),
        **{f"random_{n}": replace(ng[n], initial=WideRandom()) for n in (1, 32)},
        **{f"rbm_{n}": replace(ng[n], initial=pretraining(preset.pretraining)) for n in (1, 32)},
        "every_20": replace(many, protocol=averaging(2 * EVERY)),
        **{f"small_{n}": small(ng[n]) for n in (1, MANY)},
        **{f"newbob_{n}": newbob(ng[n], scale) for n in (1, MANY)},
        **{f"exponential_{n}": as_long_as_newbob(ng[n], scale) for n in (1, MANY)},
        **{f"sgd_{n}": config for n, config in sgd.items()},
        "gradients": replace(
            sgd[MANY], algorithm=GradientAveraging(plain(preset)), protocol=each
        ),
        "bmuf": replace(many, algorithm=replace(averaged, outer=STEPS["bmuf"])),
        "outer": replace(many, algorithm=replace(averaged, outer=STEPS["outer"])),
        **cells(ng[1], preset.cells),
    }  # fmt: skip
    return {name: rated(scale, rate_of(name), config) for name, config in settings.items()}


def derived(runs: Mapping[str, RunConfig]) -> dict[str, RunConfig]:
    """Settings whose rate follows from another's, which is what they are about."""
    many = runs[f"ng_{MANY}"]
    assert isinstance(many.algorithm, ModelAveraging)
    one = runs["ng_1"].schedule.rate
    return {
        "scaled": with_rate(many, MANY * one),
        "unscaled": with_rate(many, one),
        "overlapped": replace(many, protocol=replace(averaging(), overlap=True)),
        "restarted": replace(many, algorithm=replace(many.algorithm, restart="pass")),
        "restarted_each": replace(many, algorithm=replace(many.algorithm, restart="round")),
    }


def search(subject: Subject) -> dict[str, RunConfig]:
    """Every setting around its rate on development data: the same for every seed."""
    settings = compared(subject.development, DEVELOPMENT)
    return {n: c for name in SEARCHED for n, c in tuning(name, settings[name]).items()}


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
    runs = compared(subject, seed)
    return {**runs, **derived(runs), **search(subject), **timings(seed), **once()}


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
        ("pretraining", "not said how long", _pretraining(corpus, preset)),
        (
            "random output layer",
            "drawn alike with and without RBM in Kaldi's nnet1",
            "after RBM a standard deviation 3.5 times as small",
        ),
        (
            "epochs, exponential",
            str(PRINTED["epochs"]),
            f"{preset.passes}; {newbob_passes(subject.scale, preset.passes)} beside newbob",
        ),
        ("newbob", "Kaldi's, whose script rejects a pass that made things worse", "keeps its last"),
        ("first rate", "0.32 times the GPUs", _rates_told(subject.scale)),
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


def _pretraining(corpus: Corpus, preset: Preset) -> str:
    """How often, and over how many frames, the machines go; what is compared has its own length."""
    seen = ENOUGH if shuffling_of(corpus) == "in blocks" else corpus.frames_of("train")
    recipe, longer = Recipe(), preset.pretraining
    passes = (
        f"{recipe.gaussian_epochs} passes of the first layer, {recipe.bernoulli_epochs} of others"
    )
    compared = f"; {longer} times as many in Table 2 and the claims on RBM" if longer > 1 else ""
    return f"{passes}, over {seen:,} frames{compared}"


def _rates_told(scale: str) -> str:
    if scale not in SWEPT_AT:
        return "0.32 times the workers"
    return "swept on development data for each setting that is compared"
