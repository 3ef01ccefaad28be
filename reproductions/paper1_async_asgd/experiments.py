"""Paper 1's training runs, as complete configurations; a variant is two lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from data_synth.corpus import Corpus
from harness.acoustics.rbm import Recipe
from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd, Scaling
from harness.algorithms.schedules import Constant, Halving, Hand, Schedule, Search
from harness.networks.feedforward import Precision
from harness.runs.config import Stage
from harness.runs.executed import TimingConfig
from harness.simulator import load_cluster
from harness.speech.frames import RunConfig, shuffling_of
from harness.speech.task import ENOUGH
from reproductions.paper import Subject, levels
from reproductions.paper1_async_asgd.presets import FOLDER, PRESETS, REPORTED, Chosen, Preset

CLUSTER = FOLDER.parent / "clusters" / "k20m-server.toml"

OF_CHARACTERS = ("mandarin-like", "spoken-mandarin", "aishell")
"""Corpora whose words are single characters."""
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
    subject: Subject, seed: int, schedule: Schedule, scaling: Scaling = "plain", k: float = 1.0
) -> RunConfig:
    """Asynchronous averaged SGD for two passes: one to judge, one to see the curve flatten."""
    algorithm = AveragedSgd(AsyncSgd(scaling, k), eta=REPORTED["paper"]["eta"])
    return _run(subject, seed, algorithm, schedule, (stage(subject),), passes=2)


def hand(subject: Subject, seed: int, chosen: Chosen) -> RunConfig:
    """*ASGD-hand*; its other setting is the gain in held-out loss that leaves the rate alone."""
    return averaged(subject, seed, Hand(chosen.rate, gain=chosen.other))


def adapt(subject: Subject, seed: int, chosen: Chosen) -> RunConfig:
    """*ASGD-adapt*; its other setting is K of equation 2."""
    return averaged(subject, seed, Constant(chosen.rate), "memory_of_one", chosen.other)


def search(subject: Subject, seed: int, chosen: Chosen) -> RunConfig:
    """*ASGD-search*; its other setting is the margin by which another rate must be better."""
    schedule = Search(chosen.rate, clear=chosen.other, whole_trials=True)
    return averaged(subject, seed, schedule)


def multi_pass(subject: Subject, seed: int, chosen: Chosen) -> RunConfig:
    """The multi-pass baseline: 64 on a quarter of the data, twice 256, then 1024 (section 4.3).

    Its other setting is the gain of a pass below which halving begins.
    """
    stages = (stage(subject, 64, 0.25), stage(subject), stage(subject), stage(subject, 1024))
    schedule = Halving(chosen.rate, halve_below=chosen.other)
    passes = PRESETS[subject.scale].baseline_passes
    return _run(subject, seed, AsyncSgd(), schedule, stages, passes)


METHODS: Mapping[str, Callable[[Subject, int, Chosen], RunConfig]] = {
    "hand": hand,
    "adapt": adapt,
    "search": search,
    "multi_pass": multi_pass,
}
"""All that is compared; each is tuned as the others are."""


def as_chosen(subject: Subject, seed: int, method: str) -> RunConfig:
    """A method with the settings that development data chose for it."""
    return METHODS[method](subject, seed, PRESETS[subject.scale].chosen[method])


def on_share(config: RunConfig, share: float) -> RunConfig:
    """The same on a share of the training set."""
    stages = tuple(replace(each, share=share * each.share) for each in config.stages)
    return replace(config, stages=stages)


def chunked(one_pass: RunConfig) -> dict[str, RunConfig]:
    """Table 1's runs: one pass with each of the larger chunks."""
    return {
        chunk_name(hours): replace(
            one_pass, passes=1, chunk=hours * one_pass.chunk, tested_models="deployed"
        )
        for hours in CHUNK_HOURS[1:]
    }


def chunk_name(hours: int) -> str:
    """The setting that has table 1's chunk of so many hours; 1 h is the standard one."""
    return "one_pass" if hours == CHUNK_HOURS[0] else f"chunk_{hours}"


VARIANTS: Mapping[str, Callable[[RunConfig], dict[str, Any]]] = {
    "search, factor 1.5": lambda run: {"schedule": replace(cast(Search, run.schedule), factor=1.5)},
    "first rate kept": lambda run: {"schedule": Constant(run.schedule.rate)},
    "random initial parameters": lambda _: {"initial": None},
    "one worker": lambda _: {"workers": 1},
}
"""What the defaults of decision 3 decide: one choice of *search* changed at a time."""


def variants(one_pass: RunConfig) -> dict[str, RunConfig]:
    """One pass each, one choice changed."""
    short = replace(one_pass, passes=1, tested="never")
    return {name: replace(short, **change(short)) for name, change in VARIANTS.items()}


def timing(
    seed: int, workers: int, minibatch: int = REPORTED["paper"]["minibatch"]
) -> TimingConfig:
    """The paper's network on the paper's server, timed without training."""
    layers = tuple(REPORTED["paper"]["layers"])
    return TimingConfig(load_cluster(CLUSTER), workers, layers, minibatch, 2000, seed)


def experiments(subject: Subject, seed: int) -> dict[str, RunConfig | TimingConfig]:
    """Every run of one seed, by the name the exhibits use."""
    subset = PRESETS[subject.scale].subset
    one_pass = replace(as_chosen(subject, seed, "search"), tested="first pass")
    many = replace(as_chosen(subject, seed, "multi_pass"), tested="at the end")
    untested = {
        name: replace(on_share(as_chosen(subject, seed, name), subset), tested="never")
        for name in ("hand", "adapt")
    }
    return {
        **untested,
        "search": on_share(one_pass, subset),
        "one_pass": one_pass,
        "multi_pass": many,
        "multi_pass_half": on_share(many, 0.5),
        **chunked(one_pass),
        **variants(one_pass),
        **{f"timing_{n}": timing(seed, n) for n in TIMED_WORKERS},
    }


def precision_of(subject: Subject) -> Precision:
    """Of the products: at the paper's own size a GPU takes three times as long without TF32."""
    return "tf32" if (subject.scale, subject.device) == ("paper", "cuda") else "float32"


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
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]


def _rates(preset: Preset) -> str:
    """First rates of the sum over a minibatch, as in the paper's equation 1."""
    return ", ".join(f"{name} {chosen.rate:g}" for name, chosen in preset.chosen.items())


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
        shuffling=shuffling_of(subject.corpus),
        precision=precision_of(subject),
    )
