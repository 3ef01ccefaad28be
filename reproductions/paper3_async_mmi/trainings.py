"""Paper 3's trainings, as complete configurations; a variant is two lines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from data_synth import load_corpus
from data_synth.corpus import Corpus
from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Exponential
from harness.runs.config import Stage
from harness.search.search import LargestRateConfig
from harness.simulator import load_cluster
from harness.speech.frames import ForcedAlignment, RunConfig
from harness.speech.sequence import Plateau, SequenceConfig
from harness.tasks.order import Shuffling
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.presets import (
    CLUSTER,
    DECODE_COST,
    KAPPA,
    KEPT,
    LARGE,
    LATTICES,
    MOST_STATES,
    NUMERATOR,
    PRESETS,
    REPORTED,
    SMALL,
)

PAPER = REPORTED["paper"]
LAYERS: tuple[int, ...] = tuple(PAPER["layers"])
REPLICAS = {1: "one", 10: "ten", 50: "fifty"}
UNLIKE: tuple[Shuffling, ...] = ("none", "on the fly")
"""The shufflings that the start does not have."""
NEVER_S = 1e9
"""Decoders that never fetch again: the start's parameters decide every outer gradient."""
FIRST_PASSES = 2
"""Of the network whose forced alignments the start is trained on."""


def start(subject: Subject, seed: int, hidden: tuple[int, ...]) -> RunConfig:
    """Cross-entropy training of one worker: what sequence training starts from.

    As in the paper, its targets are forced alignments by another system: here a network of the
    small task's size, trained on the corpus's own targets.
    """
    preset = PRESETS[subject.scale]
    own = RunConfig(
        corpus=subject.corpus.name,
        scale=subject.scale,
        corpus_seed=subject.corpus_seed,
        fingerprint=subject.corpus.fingerprint,
        hidden=hidden,
        activation="relu",
        initial=None,
        algorithm=AsyncSgd(),
        schedule=_annealed(preset.rates["full"], preset.ce_passes),
        stages=(Stage(preset.minibatch, PAPER["minibatch_ce"]),),
        passes=preset.ce_passes,
        chunk=1.0,
        evaluations=1,
        cluster=load_cluster(CLUSTER),
        workers=1,
        timed_layers=LAYERS,
        seed=seed,
        device=subject.device,
        tested="never",
    )
    few = _annealed(preset.rates["full"], FIRST_PASSES)
    first = replace(own, hidden=preset.hidden, schedule=few, passes=FIRST_PASSES)
    return replace(own, targets=ForcedAlignment(first, KAPPA))


def _annealed(rate: float, passes: int) -> Exponential:
    return Exponential(rate, passes, 0.02)


def shuffled(subject: Subject, seed: int, shuffling: Shuffling, factor: float = 1.0) -> RunConfig:
    """The start with its frames in another order, at so many times the rate that suits it."""
    preset = PRESETS[subject.scale]
    at = _annealed(factor * preset.rates[shuffling], preset.ce_passes)
    return replace(start(subject, seed, preset.hidden), shuffling=shuffling, schedule=at)


def sequence(
    subject: Subject, seed: int, replicas: int, hidden: tuple[int, ...] | None = None
) -> SequenceConfig:
    """MMI training as the paper has it, with so many replicas."""
    preset = PRESETS[subject.scale]
    return SequenceConfig(
        corpus=subject.corpus.name,
        scale=subject.scale,
        corpus_seed=subject.corpus_seed,
        fingerprint=subject.corpus.fingerprint,
        start=start(subject, seed, hidden or preset.hidden),
        criterion=criterion(subject.corpus),
        cluster=load_cluster(CLUSTER),
        timed_layers=LAYERS,
        seed=seed,
        device=subject.device,
        replicas=replicas,
        slots=preset.slots,
        rate=preset.rates[REPLICAS[replicas]],
        plateau=Plateau() if preset.passes > 1 else None,
        passes=preset.passes,
        evaluations=preset.evaluations,
        held_out=preset.held_out,
        decode_cost=DECODE_COST,
    )


def criterion(corpus: Corpus) -> Criterion:
    """MMI over lattices made on the fly, or over their limit where that is the cheaper."""
    whole = Criterion(kappa=KAPPA, numerator=NUMERATOR, reject_below=PAPER["reject_below"])
    states = sum(map(len, corpus.lexicon.values()))
    return whole if states <= MOST_STATES else replace(whole, denominator="lattice", beam=LATTICES)


def measured(config: SequenceConfig) -> SequenceConfig:
    """The start of a run, measured as the run is: no training at all."""
    return replace(config, passes=0, replicas=1)


def variants(subject: Subject, seed: int) -> dict[str, SequenceConfig]:
    """Ten replicas with one choice changed; and what shuffling does to cross-entropy training."""
    preset, ten = PRESETS[subject.scale], sequence(subject, seed, 10)
    # Nothing cancels without a denominator: the minibatch is as much larger as the frames are more.
    alone = replace(
        ten,
        criterion=replace(ten.criterion, kind="numerator", numerator="alignment"),
        slots=round(preset.slots / KEPT),
    )
    return {
        "last": replace(ten, layers="last", rate=preset.rates["last"]),
        "realigned": alone,
        "aligned once": replace(alone, fetch_s=NEVER_S),
        **{name: measured(replace(ten, start=shuffled(subject, seed, name))) for name in UNLIKE},
    }


def fetch_base(subject: Subject, seed: int, sweep: str) -> SequenceConfig:
    """Of a fetch sweep, the run that fetches at every utterance: one pass of ten replicas."""
    rate = PRESETS[subject.scale].fetch_rate
    # Figure 5 draws the way; and who reads more often sees more runs collapse, so all do alike.
    base = replace(once(sequence(subject, seed, 10)), rate=rate, evaluations=4)
    if sweep == "last":
        return replace(base, layers="last")
    return base if sweep == "all" else replace(base, layers="last", update_silence=False)


def once(config: SequenceConfig) -> SequenceConfig:
    """One pass at one rate, at whose end no words are recognised."""
    return replace(config, passes=1, plateau=None, evaluations=2, test=False)


def fetches(subject: Subject, seed: int) -> dict[str, SequenceConfig]:
    """The fetch sweeps: last layer, all layers, last layer without silence."""
    found: dict[str, SequenceConfig] = {}
    for sweep, intervals in PRESETS[subject.scale].fetch.items():
        base = fetch_base(subject, seed, sweep)
        found[fetch_name(sweep, 0)] = base
        for i, passes in enumerate(intervals, start=1):
            found[fetch_name(sweep, i)] = replace(base, fetch_s=fetch_s(subject, passes))
    return found


def fetch_name(sweep: str, interval: int) -> str:
    """The setting of a sweep's interval, counted from 1; 0 fetches at every utterance."""
    return f"{sweep}, interval {interval}" if interval else f"{sweep}, every utterance"


def fetch_s(subject: Subject, passes: float) -> float:
    """Simulated seconds of so many passes of ten replicas, had each kept the usual share."""
    updates = subject.corpus.frames_of("train") * KEPT / PRESETS[subject.scale].slots
    return round(passes * updates / 10 * STEP_S, 1)


STEP_S = 0.44
"""A replica's step on the cluster file: next to its copies all else costs little."""


def largest(config: SequenceConfig, subject: Subject) -> LargestRateConfig:
    """The search for the largest stable rate of a training, about where the law has it.

    Args:
        config: with the replicas and slots in question.
        subject: whose scale says at which rate one replica is known to be stable.
    """
    preset = PRESETS[subject.scale]
    lowest = preset.rates["one"] * preset.slots / config.slots / (1 + config.replicas / 25)
    return LargestRateConfig(once(config), round(lowest, 7), round(16 * lowest, 7), preset.halvings)


@cache
def _loaded(scale: str, corpus_seed: int) -> Corpus:
    return load_corpus(LARGE, scale=scale, seed=corpus_seed)


def large(subject: Subject, seed: int) -> dict[str, SequenceConfig]:
    """One pass on the large task where the corpus is the small one of the two; else the only task.

    The paper gets "most of the gain within a few days", far from convergence.
    """
    if subject.corpus.name != SMALL:
        ten = sequence(subject, seed, 10)
        return {"large": ten, "large ce": measured(ten)}
    wide = replace(subject, corpus=_loaded(subject.scale, subject.corpus_seed))
    preset = PRESETS[subject.scale]
    ten = sequence(wide, seed, 10, preset.large_hidden)
    ten = replace(ten, rate=preset.rates["large"], passes=1, plateau=None)
    return {"large": ten, "large ce": measured(ten)}
