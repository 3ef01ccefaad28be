"""Paper 2's runs as complete configurations, with the presets of each scale and the rates found.

Runs train by setting, or time one epoch. Every compared setting has a first rate of its own, of the
mean gradient, found by the same search (`sweep`) on development data. A scale that was not searched
takes the paper's rate, 0.32 times the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from data_synth.corpus import Corpus
from harness.acoustics.rbm import Recipe, WideRandom
from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.schedules import Exponential, Halving
from harness.base.settings import load_toml
from harness.experiment.contract import Configuration
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.timing import TimingConfig
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.speech.frames import shuffling_of
from harness.speech.task import ENOUGH, Frames
from reproductions.paper import DEVELOPMENT, Differences, Subject, levels
from reproductions.paper2_ng_averaging.checks import AllReduceConfig, EquivalenceConfig
from reproductions.paper2_ng_averaging.prediction import (
    COLLECTIVE,
    EVERY,
    FOLDER,
    REPORTED,
    averaging,
    cluster,
    load_fit,
    workload,
)


@dataclass(frozen=True)
class Preset:
    """Settings of one scale.

    Args:
        hidden: units of the hidden layers (the paper: six of 2048).
        minibatch: frames, where the paper has 1024; a small one, so that a pass over a small
            corpus still makes many rounds.
        share: of the training set that is trained on.
        passes: over the training data, where the paper has 15.
        most_passes: limit of newbob, which usually ends by itself.
        ranks: of natural gradient's estimates, of inputs and of output derivatives.
        period: minibatches between their updates.
        history: frames over which they forget.
        max_change: largest average change of a layer's parameters by a frame, for SGD too.
        seeds: default number.
        pretraining: passes of each machine, the first layer's twice as many, where pretraining is
            compared with none; elsewhere 1.
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
    pretraining: int = 1


PRESETS = {
    "smoke": Preset((64,) * 2, 32, 0.25, 2, 3, (10, 20), 4, 500.0, 0.4, 2),
    "laptop": Preset((128,) * 4, 32, 0.105, 8, 40, (10, 20), 4, 500.0, 0.4, 3),
    "overnight": Preset((128,) * 4, 32, 1.0, 8, 40, (10, 20), 4, 500.0, 0.4, 6, 5),
    "gpu": Preset((512,) * 6, 256, 1.0, 4, 20, (30, 60), 4, 2000.0, 0.075, 3),
    "paper": Preset((2048,) * 6, 1024, 1.0, 15, 40, (40, 40), 1, 2000.0, 0.075, 3),
}


def natural(preset: Preset) -> NaturalGradient:
    """Natural gradient under the preset's max-change."""
    inputs, outputs = (
        Preconditioner(rank, preset.period, history=preset.history) for rank in preset.ranks
    )
    return NaturalGradient(inputs, outputs, PerSample(preset.max_change))


def plain(preset: Preset) -> NaturalGradient:
    """Plain SGD under the same max-change."""
    return NaturalGradient(None, None, PerSample(preset.max_change))


RATES = FOLDER / "rates.toml"

SWEPT_AT = {"smoke": "laptop", "laptop": "laptop", "overnight": "overnight"}
"""Scale -> the scale of the search that its rates come from."""

AROUND = {"half": 0.5, "chosen": 1.0, "double": 2.0}
"""Multiples of the chosen rate that the report shows; the chosen one is the best of them."""


@lru_cache
def load_rates(scale: str) -> Mapping[str, Any]:
    """Results of the search for a scale: ``rates`` by setting, and ``newbob_passes``."""
    return load_toml(RATES).get(SWEPT_AT.get(scale, scale), {})


def load_rate(scale: str, name: str, workers: int) -> float:
    """The chosen rate of a setting, or the paper's."""
    paper = REPORTED["paper"]["first_rate"] * workers
    return float(load_rates(scale).get("rates", {}).get(name, paper))


def newbob_passes(scale: str, otherwise: int) -> int:
    """Number of passes that newbob took on 16 workers on development data."""
    return int(load_rates(scale).get("newbob_passes", otherwise))


def trial_name(name: str, label: str) -> str:
    """Name of a run of a search."""
    return f"{name}, {label} the rate" if label != "chosen" else f"{name}, its rate"


PRINTED: dict[str, Any] = REPORTED["paper"]

GPUS: tuple[int, ...] = tuple(REPORTED["timings"]["gpus"])

NODES: tuple[int, ...] = tuple(PRINTED["nodes"])

MANY = 16
"""The nodes of tables 3 to 6."""

SEARCHED = (
    *(f"ng_{n}" for n in NODES),
    *("random_1", "random_32", "rbm_1", "rbm_32", "every_20", "small_1", "small_16"),
    *("newbob_1", "newbob_16", "exponential_1", "exponential_16", "sgd_1", "sgd_16"),
)
"""Settings with a rate that was searched for, in the order of the report."""


def gpus(n: int) -> str:
    """Label of ``n`` GPUs in tables."""
    return "1 GPU" if n == 1 else f"{n} GPUs"


def number_of(setting: str) -> int:
    """GPUs of a setting that is named by them, such as ``ng_16``."""
    return int(setting.partition("_")[2])


def build_averaging(subject: Subject, seed: int, workers: int) -> Experiment[Frames]:
    """Model averaging with the paper's default settings and first rate."""
    preset = PRESETS[subject.scale]
    layers = tuple(PRINTED["layers"])
    task = Frames(**subject.names, hidden=preset.hidden, initial=Recipe(), timed_layers=layers)
    return Experiment(
        task=task,
        algorithm=ModelAveraging(natural(preset)),
        schedule=Exponential(PRINTED["first_rate"], preset.passes, PRINTED["last_rate_share"]),
        stages=(Stage(preset.minibatch, PRINTED["minibatch"], preset.share),),
        passes=preset.passes,
        evaluations=1,
        cluster=cluster(load_fit().free),
        workers=workers,
        seed=seed,
        device=subject.device,
        protocol=averaging(),
        tested="at the end",
        shuffling=shuffling_of(subject.corpus),
    )


def pretraining(passes: int) -> Recipe:
    """RBMs trained for ``passes``, the first layer's for twice as many (Kaldi's nnet1)."""
    return Recipe(gaussian_epochs=2 * passes, bernoulli_epochs=passes)


def build_configs(subject: Subject, seed: int) -> dict[str, Experiment[Frames]]:
    """Every setting with a rate of its own, at that rate."""
    scale, preset = subject.scale, PRESETS[subject.scale]
    ng = {n: build_averaging(subject, seed, n) for n in NODES}
    smaller, (stage,) = PRINTED["small_minibatch"], ng[1].stages
    minibatch = max(1, round(preset.minibatch * smaller / PRINTED["minibatch"]))
    small = (replace(stage, minibatch=minibatch, timed_minibatch=smaller),)
    newbob = {"schedule": Halving(PRINTED["first_rate"]), "passes": preset.most_passes}
    # As in section 5.6: over the passes that newbob took.
    passes = min(newbob_passes(scale, preset.passes), preset.most_passes)
    exponential = replace(cast(Exponential, ng[1].schedule), passes=passes)
    settings = {
        **{f"ng_{n}": config for n, config in ng.items()},
        **{f"random_{n}": ng[n].vary(initial=WideRandom()) for n in (1, 32)},
        **{f"rbm_{n}": ng[n].vary(initial=pretraining(preset.pretraining)) for n in (1, 32)},
        "every_20": ng[MANY].vary(protocol=averaging(2 * EVERY)),
        **{f"small_{n}": ng[n].vary(stages=small) for n in (1, MANY)},
        **{f"newbob_{n}": ng[n].vary(**newbob) for n in (1, MANY)},
        **{f"exponential_{n}": ng[n].vary(schedule=exponential, passes=passes) for n in (1, MANY)},
        **{f"sgd_{n}": ng[n].vary(algorithm=ModelAveraging(plain(preset))) for n in (1, MANY)},
    }
    return {n: c.with_rate(load_rate(scale, n, c.workers)) for n, c in settings.items()}


def derive_configs(runs: Mapping[str, Experiment[Frames]]) -> dict[str, Experiment[Frames]]:
    """Sixteen workers at one worker's rate, as it is and by the paper's rule."""
    sixteen, rate = runs[f"ng_{MANY}"], runs["ng_1"].schedule.rate
    scaled = sixteen.with_rate(MANY * rate)
    return {
        "scaled": scaled,
        "scaled_20": scaled.vary(protocol=averaging(2 * EVERY)),
        "unscaled": sixteen.with_rate(rate),
    }


def search(subject: Subject) -> dict[str, Experiment[Frames]]:
    """Every setting around its rate on the development seed's corpus: the same for every seed."""
    settings = build_configs(subject.development, DEVELOPMENT)
    return {
        trial_name(name, label): settings[name].with_rate(factor * settings[name].schedule.rate)
        for name in SEARCHED
        for label, factor in AROUND.items()
    }


def epoch(seed: int, workers: int, every: int = EVERY, reading: str = "minibatch") -> TimingConfig:
    """One epoch of the paper's training on the fitted cluster."""
    machine, rules = cluster(load_fit(reading).free), averaging(every)
    return TimingConfig(
        machine, workers, tuple(PRINTED["layers"]), PRINTED["minibatch"],
        rules.epoch_folds(machine, workers), seed, rules,
    )  # fmt: skip


def timings(seed: int) -> dict[str, Configuration]:
    """Every timing run of one seed, and what all seeds share.

    These are figure 1's all-reduce, and section 3's equivalence in small.
    """
    machine, size_bytes = cluster(load_fit().free), workload().parameter_bytes
    return {
        **{f"timing_{n}": epoch(seed, n) for n in GPUS},
        "timing_16_every_20": epoch(seed, MANY, 2 * EVERY),
        "other_1": epoch(seed, 1, reading="average"),
        "other_16_every_20": epoch(seed, MANY, 2 * EVERY, "average"),
        "all_reduce": AllReduceConfig(machine, 4, COLLECTIVE, size_bytes),
        "equivalence": EquivalenceConfig(
            algorithms=(ModelAveraging(), GradientAveraging()), layers=(20, 16, 16, 10),
            workers=MANY, frames=8, folds=50, rate=2.0,
        ),
    }  # fmt: skip


def experiments(subject: Subject, seed: int) -> dict[str, Configuration]:
    """Every run of one seed, by the name the exhibits use."""
    runs = build_configs(subject, seed)
    return {**runs, **derive_configs(runs), **search(subject), **timings(seed)}


def differences(subject: Subject) -> Differences:
    """Differences from the paper at this scale."""
    preset, corpus = PRESETS[subject.scale], subject.corpus
    hours = preset.share * corpus.frames_of("train") * corpus.frame_shift_s / 3600.0
    spliced, minibatch = 2 * corpus.context + 1, preset.minibatch
    ranks = "/".join(map(str, preset.ranks))
    trained = preset.share * corpus.frames_of("train") * preset.passes
    swept = "swept on development data for each setting that is compared"
    unswept = "0.32 times the workers"
    return [
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
        (
            "averages, 16 GPUs",
            "8,910",
            f"about {trained / (minibatch * EVERY * MANY):,.0f}; with a quarter of the minibatch "
            "four times as many",
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
        ("first rate", "0.32 times the GPUs", swept if subject.scale in SWEPT_AT else unswept),
        ("cross-validation", "a held-out tenth of the training set", "the development set"),
        (
            "NG-SGD",
            "ranks, period and max-change not given",
            f"ranks {ranks}, period {preset.period}, history {preset.history:g} frames, "
            f"max-change {preset.max_change:g} a frame",
        ),
        ("cluster", "Stampede, one K20 a node", "simulated; four figures fitted on 1, 2, 4 GPUs"),
        ("all-reduce", "MPI's choice", "Rabenseifner's algorithm"),
        ("test sets", "Hub5'00, Hub5'01", f"{len(corpus.tests)} sets of {corpus.name}"),
        ("decoding", "trigram", "bigram, scale tuned on the development set"),
    ]


def _pretraining(corpus: Corpus, preset: Preset) -> str:
    """Passes and frames of pretraining, with those of the compared settings."""
    frames = ENOUGH if shuffling_of(corpus) == "in blocks" else corpus.frames_of("train")
    recipe, longer = Recipe(), preset.pretraining
    passes = (
        f"{recipe.gaussian_epochs} passes of the first layer, {recipe.bernoulli_epochs} of others"
    )
    compared = f"; {longer} times as many in Table 2 and the claims on RBM" if longer > 1 else ""
    return f"{passes}, over {frames:,} frames{compared}"
