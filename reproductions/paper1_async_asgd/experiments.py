"""Paper 1's runs as complete configurations, and the presets of each scale.

A preset has the network, the data's cut, and the tuned settings; a variant of a training is two
lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from data_synth.corpus import Corpus
from harness.acoustics.rbm import Recipe
from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.schedules import Constant, Halving, Hand, Search
from harness.base.settings import load_toml
from harness.experiment.experiment import Experiment, Stage
from harness.networks.feedforward import Precision
from harness.simulator.cluster import load_cluster
from harness.speech.frames import shuffling_of
from harness.speech.task import ENOUGH, Frames
from reproductions.paper import Differences, Subject, levels

FOLDER = Path(__file__).parent

REPORTED = load_toml(FOLDER / "reported.toml")

RATE: float = REPORTED["paper"]["first_rate"]


class MethodSettings(NamedTuple):
    """A method's first rate, and its one other setting, which ``tuning.OTHERS`` names."""

    rate: float
    other: float


AS_PRINTED: Mapping[str, MethodSettings] = {
    "hand": MethodSettings(RATE, 0.003),
    "adapt": MethodSettings(RATE, 1.0),
    "search": MethodSettings(RATE, 0.003),
    "multi_pass": MethodSettings(RATE, 0.005),
}
"""The paper's rate for every method, and untuned defaults of the settings it leaves open."""

METHODS = tuple(AS_PRINTED)
"""The compared methods; all are tuned alike."""

WINDOW = 0.1
"""Share of the iterates that a second average spans, which shows how far the paper's lags."""


@dataclass(frozen=True)
class Preset:
    """Settings of one scale.

    Args:
        hidden: units of the hidden layers (the paper: seven of 2048).
        minibatch: frames, where the paper has 256. A small corpus gets a smaller one so
            that a pass still makes thousands of folds.
        folds: most folds of a pass; the minibatch of a larger corpus is doubled until they
            suffice.
        chunk: the smallest chunk's share of the training set (the paper: 1 h of 500);
            table 1's others are as many times larger as in the paper.
        subset: figure 2's share of the training set (the paper: 100 h of 500).
        seeds: default number.
        baseline_passes: the multi-pass baseline's limit; its own rule stops it earlier.
        evaluations: development scores a pass; 50 are ten in its first fifth.
        chosen: settings found on development data, by method.
    """

    hidden: tuple[int, ...]
    minibatch: int
    folds: float
    chunk: float
    subset: float
    seeds: int
    baseline_passes: int
    evaluations: int
    chosen: Mapping[str, MethodSettings]


AT_LAPTOP: Mapping[str, MethodSettings] = {
    "hand": MethodSettings(0.032, 0.001),
    "adapt": MethodSettings(0.032, 1.0),
    "search": MethodSettings(0.032, 0.01),
    "multi_pass": MethodSettings(0.004, 0.005),
}

AT_OVERNIGHT: Mapping[str, MethodSettings] = {
    "hand": MethodSettings(0.016, 0.001),
    "adapt": MethodSettings(RATE, 1.0),
    "search": MethodSettings(0.016, 0.01),
    "multi_pass": MethodSettings(0.004, 0.001),
}

PRESETS = {
    "smoke": Preset((192,) * 2, 16, 5000, 1 / 25, 1.0, 2, 16, 10, AT_LAPTOP),
    "laptop": Preset((128,) * 3, 32, math.inf, 1 / 100, 1.0, 3, 20, 50, AT_LAPTOP),
    "overnight": Preset((64,) * 3, 32, math.inf, 1 / 100, 1.0, 6, 20, 50, AT_OVERNIGHT),
    "gpu": Preset((1024,) * 7, 128, math.inf, 1 / 500, 0.2, 3, 16, 50, AS_PRINTED),
    "paper": Preset((2048,) * 7, 256, math.inf, 1 / 500, 0.2, 3, 20, 50, AS_PRINTED),
}

CLUSTER = FOLDER.parent / "clusters" / "k20m-server.toml"

OF_CHARACTERS = ("mandarin-like", "aishell")
"""Corpora with single characters as words."""

CHUNK_HOURS: tuple[int, ...] = tuple(REPORTED["table1"]["hours"])


def minibatch_of(subject: Subject, preset: Preset | None = None) -> int:
    """Frames of a minibatch in place of the paper's 256; the scale's preset if none is given."""
    preset = preset or PRESETS[subject.scale]
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


def methods(
    subject: Subject, seed: int, preset: Preset | None = None
) -> dict[str, Experiment[Frames]]:
    """Every method, with the settings of a preset: the scale's if none is given.

    Asynchronous averaged SGD has two passes: one to judge, one to see the curve flatten. The rates
    of *hand* and *search* fall within the first, as the paper's do: a search tries no rate above
    the last one. The other settings are: of *hand* the gain in held-out loss that leaves the rate
    alone, of *adapt* the K of equation 2, of *search* the margin by which a lower rate must be
    better. The multi-pass baseline has 64 on a quarter of the data, twice 256, then 1024 (section
    4.3); its other setting is the gain of a pass below which halving begins.
    """
    preset, eta = preset or PRESETS[subject.scale], REPORTED["paper"]["eta"]
    hand, adapt, search, multi_pass = (preset.chosen[name] for name in METHODS)
    minibatch = minibatch_of(subject, preset)

    def stage(paper_minibatch: int = 256, share: float = 1.0) -> Stage:
        return Stage(max(1, round(paper_minibatch * minibatch / 256)), paper_minibatch, share)

    asgd = Experiment(
        task=Frames(
            **subject.names,
            hidden=preset.hidden,
            initial=Recipe(),
            timed_layers=tuple(REPORTED["paper"]["layers"]),
            precision=precision_of(subject),
        ),
        algorithm=AveragedSgd(eta=eta, window=WINDOW),
        schedule=Hand(hand.rate, gain=hand.other),
        stages=(stage(),),
        passes=2,
        chunk=preset.chunk,
        evaluations=preset.evaluations,
        cluster=load_cluster(CLUSTER),
        workers=REPORTED["paper"]["workers"],
        seed=seed,
        device=subject.device,
        shuffling=shuffling_of(subject.corpus),
        tested="first pass",
    )
    falls = Search(search.rate, clear=search.other, whole_trials=True, rises=False)
    memory_of_one = AveragedSgd(AsyncSgd("memory_of_one", adapt.other), eta, window=WINDOW)
    return {
        "hand": asgd,
        "adapt": asgd.vary(algorithm=memory_of_one, schedule=Constant(adapt.rate), tested="never"),
        "search": asgd.vary(schedule=falls),
        "multi_pass": asgd.vary(
            algorithm=AsyncSgd(),
            schedule=Halving(multi_pass.rate, halve_below=multi_pass.other),
            stages=(stage(64, 0.25), stage(), stage(), stage(1024)),
            passes=preset.baseline_passes,
            tested="at the end",
        ),
    }


def with_share(config: Experiment[Frames], share: float) -> Experiment[Frames]:
    """The run on a share of the training set."""
    stages = (replace(stage, share=share * stage.share) for stage in config.stages)
    return config.vary(stages=tuple(stages))


def chunk_name(hours: int) -> str:
    """The setting with table 1's chunk of ``hours``; 1 h is the standard one."""
    return "one_pass" if hours == CHUNK_HOURS[0] else f"chunk_{hours}"


def experiments(subject: Subject, seed: int) -> dict[str, Experiment[Frames]]:
    """Every run of one seed, by the name the exhibits use."""
    subset, runs = PRESETS[subject.scale].subset, methods(subject, seed)
    hand, one_pass = runs["hand"], runs["search"]
    larger = {chunk_name(hours): hours * one_pass.chunk for hours in CHUNK_HOURS[1:]}
    return {
        **{name: with_share(runs[name], subset) for name in ("hand", "adapt", "search")},
        "one_pass": one_pass,
        "one_pass_hand": hand,
        "one_worker": hand.vary(workers=1, passes=1),
        "multi_pass": runs["multi_pass"],
        **{
            name: one_pass.vary(passes=1, chunk=chunk, tested_models="deployed")
            for name, chunk in larger.items()
        },
    }


def precision_of(subject: Subject) -> Precision:
    """Precision of matrix products; at the paper's size, TF32 makes a GPU three times as fast."""
    return "tf32" if (subject.scale, subject.device) == ("paper", "cuda") else "float32"


def differences(subject: Subject) -> Differences:
    """Differences from the paper at this scale."""
    preset, corpus, paper = PRESETS[subject.scale], subject.corpus, REPORTED["paper"]
    minibatch = minibatch_of(subject)
    hours = corpus.frames_of("train") * corpus.frame_shift_s / 3600.0
    return [
        (
            "training speech",
            f"{paper['training_hours']} h Mandarin",
            f"{hours:.2f} h {corpus.name}",
        ),
        ("network", levels(paper["layers"]), levels(corpus.layers(preset.hidden))),
        ("minibatch", "256 frames", f"{minibatch} frames (timed as 256)"),
        *(
            [("pretraining", "not said how long", f"on {ENOUGH:,} frames")]
            if shuffling_of(corpus) == "in blocks"
            else []
        ),
        *(
            [("products in gradients", "float32", "TF32, of factors with 10 bits")]
            if precision_of(subject) == "tf32"
            else []
        ),
        ("first rates", "0.008, of hand not printed", _rates(preset)),
        (
            "K of equation 2",
            "1, of sums over 256",
            f"{preset.chosen['adapt'].other:g}, of sums over {minibatch}",
        ),
        ("chunk of 1 h", "1/500 of the data", f"1/{1 / preset.chunk:.0f} of the data"),
        ("subset of figure 2", "20% of the data", f"{preset.subset:.0%} of the data"),
        ("error on the test sets", "characters, decoded", _measure(corpus)),
        ("test sets", "clean7k, noise360", _tests(corpus)),
    ]


def _rates(preset: Preset) -> str:
    """First rates of the sum over a minibatch, as in the paper's equation 1."""
    return ", ".join(f"{name} {chosen.rate:g}" for name, chosen in preset.chosen.items())


def _measure(corpus: Corpus) -> str:
    if not corpus.lm_text:
        return "isolated words, not decoded"
    unit = "characters" if corpus.name in OF_CHARACTERS else "words"
    return f"{unit}, decoded with a bigram"


def _tests(corpus: Corpus) -> str:
    """Each test set's size, and whether its speakers were heard in training."""
    speakers = set(corpus.split("train").speaker.tolist())
    parts: list[str] = []
    for test in corpus.tests:
        part = corpus.split(test)
        new = speakers.isdisjoint(part.speaker.tolist())
        parts.append(f"{test}: {len(part)} utterances of {'other' if new else 'the same'} speakers")
    return "; ".join(parts)
