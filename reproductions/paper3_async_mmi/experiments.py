"""Paper 3's training runs, as complete configurations; a variant is two lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

from data_synth import load_corpus
from data_synth.corpus import Corpus
from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Exponential
from harness.execution.jobs.line import LineConfig
from harness.execution.runs.config import RunConfig, Stage
from harness.execution.runs.executed import Configuration
from harness.execution.runs.sequence import Plateau, SequenceConfig
from harness.execution.runs.timing import TimingConfig
from harness.simulator import Link, load_cluster
from harness.simulator.protocols.sequence import Sequence
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
RISK_RATE = 0.01
"""Of minimum Bayes risk's rate over MMI's: its gradients count frames, not probabilities."""
BOOST = 0.1
"""Nats a frame, as in Kaldi's recipes (Povey et al. have 0.5 a phone)."""
NEVER_S = 1e9
"""Decoders that never fetch again: the start's parameters decide every outer gradient."""
TIMED_STEPS = 400
"""Minibatches of each replica where only time is simulated."""
SWEEPS = {"last": "last layer", "all": "all layers", "no silence": "last layer, silence fixed"}


def start(subject: Subject, seed: int, hidden: tuple[int, ...]) -> RunConfig:
    """Cross-entropy training of one worker: what sequence training starts from."""
    preset = PRESETS[subject.scale]
    return RunConfig(
        corpus=subject.corpus.name,
        scale=subject.scale,
        corpus_seed=subject.corpus_seed,
        fingerprint=subject.corpus.fingerprint,
        hidden=hidden,
        activation="relu",
        initial=None,
        algorithm=AsyncSgd(),
        schedule=Exponential(preset.ce_rate, preset.ce_passes, 0.02),
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
        rate=preset.rate_one if replicas == 1 else preset.rate_many,
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
    """Ten replicas with one choice changed."""
    ten = sequence(subject, seed, 10)
    mmi = ten.criterion
    alone = replace(ten, criterion=replace(mmi, kind="numerator", numerator="alignment"))
    return {
        "unshuffled": replace(ten, shuffling="none"),
        "full": replace(ten, shuffling="full"),
        "last": replace(ten, layers="last"),
        "realigned": alone,
        "aligned once": replace(alone, fetch_s=NEVER_S),
        "boosted": replace(ten, criterion=replace(mmi, kind="bmmi", boost=BOOST)),
        "risk": replace(ten, criterion=replace(mmi, kind="smbr"), rate=RISK_RATE * ten.rate),
    }


def fetch_base(subject: Subject, seed: int, sweep: str) -> SequenceConfig:
    """Of a fetch sweep, the run that fetches at every utterance, at one replica's rate.

    Ten replicas bear it on development data, and the larger the rate, the sooner old outer
    gradients tell.
    """
    rate = PRESETS[subject.scale].rate_one
    fast = replace(sequence(subject, seed, 10), rate=rate, plateau=None, test=False)
    if sweep == "last":  # of which figure 5 draws the way, not the end alone
        return replace(fast, layers="last")
    seldom = replace(fast, evaluations=min(2, fast.evaluations))
    return seldom if sweep == "all" else replace(seldom, layers="last", update_silence=False)


def fetches(subject: Subject, seed: int) -> dict[str, SequenceConfig]:
    """The fetch sweeps: last layer, all layers, last layer without silence."""
    found: dict[str, SequenceConfig] = {}
    for sweep in SWEEPS:
        base = fetch_base(subject, seed, sweep)
        found[fetch_name(sweep, 0)] = base
        for i, passes in enumerate(PRESETS[subject.scale].fetch, start=1):
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


def stability(subject: Subject, seed: int) -> dict[str, SequenceConfig]:
    """The stability map: rates by replicas, one pass."""
    preset = PRESETS[subject.scale]
    return {
        map_name(replicas, i): replace(
            sequence(subject, seed, replicas),
            rate=rate,
            plateau=None,
            passes=1,
            evaluations=2,
            test=False,
        )
        for replicas in REPLICAS
        for i, rate in enumerate(preset.rates)
    }


def map_name(replicas: int, rate: int) -> str:
    """The setting of the stability map with the rate of this number, counted from 0."""
    return f"map {replicas}, rate {rate}"


@cache
def _loaded(scale: str, corpus_seed: int) -> Corpus:
    return load_corpus(LARGE, scale=scale, seed=corpus_seed)


def large(subject: Subject, seed: int) -> dict[str, SequenceConfig]:
    """The large task where the corpus is the small one of the two; else the only task again."""
    if subject.corpus.name != SMALL:
        ten = sequence(subject, seed, 10)
        return {"large": ten, "large ce": measured(ten)}
    wide = replace(subject, corpus=_loaded(subject.scale, subject.corpus_seed))
    preset = PRESETS[subject.scale]
    ten = replace(sequence(wide, seed, 10, preset.large_hidden), rate=preset.rate_large)
    return {"large": ten, "large ce": measured(ten)}


def lines(subject: Subject, seed: int) -> dict[str, LineConfig]:
    """Where auxiliary function and criterion touch; and both along the whole way."""
    return {
        "tangent": LineConfig(sequence(subject, seed, 1), points=()),
        "line": LineConfig(sequence(subject, seed, 1)),
    }


def timings(seed: int) -> dict[str, TimingConfig]:
    """The paper's own sizes on its cluster, timed without training; and steps without network."""
    cluster = load_cluster(CLUSTER)
    rate = cluster.host.memory_bytes_per_s
    alone = replace(cluster, link=Link(bandwidth_bytes_per_s=rate, sharing="none"))
    mmi = Sequence(slots=PAPER["minibatch"], kept=PAPER["kept"], decode_cost=DECODE_COST)
    timed = partial(TimingConfig, layers=LAYERS, seed=seed)
    few = partial(timed, protocol=mmi, minibatch=PAPER["minibatch"])
    many = partial(timed, minibatch=PAPER["minibatch_ce"])
    found = {f"timing {n}": few(cluster, n, folds=TIMED_STEPS * n) for n in REPLICAS}
    for name, machine in (("", cluster), (" alone", alone)):
        found[f"step mmi{name}"] = few(machine, 1, folds=TIMED_STEPS)
        found[f"step ce{name}"] = many(machine, 1, folds=TIMED_STEPS)
    return found


def experiments(subject: Subject, seed: int) -> Mapping[str, Configuration]:
    """Every run of one seed, by the name the exhibits use.

    The large task comes first: it takes longest, and its start is trained beside the others'.
    """
    ten = sequence(subject, seed, 10)
    return {
        **large(subject, seed),
        "ce": measured(ten),
        **{name: sequence(subject, seed, n) for n, name in REPLICAS.items()},
        **variants(subject, seed),
        **fetches(subject, seed),
        **stability(subject, seed),
        **lines(subject, seed),
        **timings(seed),
    }
