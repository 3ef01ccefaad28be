"""Paper 3's runs as complete configurations, the presets of each scale, and what differs there.

Runs are those of verdicts and of tuning, and timings; a variant of a training is two
lines. A preset has the settings of a scale, and those fixed on development data before any
verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from data_synth.corpus import Corpus
from harness.acoustics.decoder import Beam
from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Constant, Exponential
from harness.base.settings import load_toml
from harness.experiment.contract import Configuration
from harness.experiment.experiment import Experiment, Stage
from harness.search.search import LargestRateConfig
from harness.simulator.cluster import load_cluster
from harness.speech.protocol import Sequence
from harness.speech.sequence import Plateau
from harness.speech.sequence_task import Sequences
from harness.speech.task import ForcedAlignment, Frames
from harness.tasks.order import Shuffling
from reproductions.paper import Differences, Subject, levels
from reproductions.paper3_async_mmi.line_scan import LineConfig

FOLDER = Path(__file__).parent

REPORTED = load_toml(FOLDER / "reported.toml")

CLUSTER = FOLDER.parent / "clusters" / "distbelief.toml"

SMALL, LARGE = "voice-search-small", "voice-search-large"


@dataclass(frozen=True)
class Preset:
    """Settings of one scale.

    Args:
        hidden: units of the hidden layers (the paper: four of 1024).
        large_hidden: the same of the large task (the paper: eight layers).
        seeds: default number.
        minibatch: frames, of cross-entropy training (the paper: 200).
        ce_passes: of cross-entropy training.
        slots: of an MMI minibatch (the paper: 32).
        rates: of each setting that is tuned, of summed gradients; see `TUNED`.
        passes: of every MMI run with compared errors on the test set.
        evaluations: a pass.
        held_out: utterances.
        fetch: the intervals of each fetch sweep, in passes over the corpus; see `intervals`.
        fetch_rate: of these sweeps. The paper has the largest that is stable with fifty replicas.
        halvings: of the search for a largest stable rate.
    """

    hidden: tuple[int, ...]
    large_hidden: tuple[int, ...]
    seeds: int
    minibatch: int
    ce_passes: int
    slots: int
    rates: Mapping[str, float]
    passes: int
    evaluations: int
    held_out: int
    fetch: Mapping[str, tuple[float, ...]]
    fetch_rate: float
    halvings: int


CONTROLS = ("aligned once", "realigned")
"""Training without the denominator."""

TUNED = ("one", "ten", "fifty", "last", *CONTROLS, "large", "full", "on the fly", "none")
"""Settings with a tuned rate: of MMI and its controls, and of cross-entropy's orders."""

TRIED = (0.5, 1.0, 2.0)
"""Multiples of each rate that the development seed tries."""

SWEEPS = {"last": "last layer", "all": "all layers", "no silence": "last layer, silence fixed"}

INTERVALS = 5
"""Number of intervals of every sweep; exhibits name them by number."""


def _same(*intervals: float) -> Mapping[str, tuple[float, ...]]:
    return dict.fromkeys(SWEEPS, intervals)


def _rates(*rates: float, controls: float | None = None) -> Mapping[str, float]:
    """Rates of `TUNED`, of which the controls without a search have that of ten replicas."""
    one, ten, fifty, last, *others = rates
    alone = controls or ten
    return dict(zip(TUNED, (one, ten, fifty, last, alone, alone, *others), strict=True))


PRESETS = {
    "smoke": Preset(
        hidden=(64,) * 4, large_hidden=(64,) * 8, seeds=2, minibatch=50, ce_passes=3, slots=8,
        rates=_rates(0.0002, 0.0001, 0.0001, 0.0001, 0.00004, 0.002, 0.002, 0.002),
        passes=1, evaluations=1, held_out=10,
        fetch=_same(0.04, 0.075, 0.15, 0.3, 0.6), fetch_rate=0.0001, halvings=2,
    ),
    "laptop": Preset(
        hidden=(128,) * 4, large_hidden=(128,) * 8, seeds=3, minibatch=100, ce_passes=4, slots=8,
        rates=_rates(
            0.0003, 0.0003, 0.000075, 0.0006, 0.0003, 0.002, 0.002, 0.002, controls=0.0000375
        ),
        passes=1, evaluations=4, held_out=100,
        fetch=_same(0.04, 0.075, 0.15, 0.3, 0.6), fetch_rate=0.0003, halvings=3,
    ),
    "overnight": Preset(
        hidden=(128,) * 4, large_hidden=(128,) * 8, seeds=6, minibatch=100, ce_passes=4, slots=4,
        rates=_rates(0.0003, 0.0003, 0.0002, 0.0006, 0.0002, 0.002, 0.001, 0.001),
        passes=3, evaluations=6, held_out=200,
        fetch={
            "last": (0.035, 0.071, 0.12, 0.19, 0.38),
            "all": (0.0073, 0.015, 0.024, 0.039, 0.078),
            "no silence": (0.035, 0.071, 0.12, 0.19, 0.38),
        },
        fetch_rate=0.0004,
        halvings=4,
    ),
    "gpu": Preset(
        hidden=(512,) * 4, large_hidden=(512,) * 8, seeds=3, minibatch=200, ce_passes=4, slots=16,
        rates=_rates(0.0003, 0.00015, 0.00015, 0.00015, 0.00004, 0.0005, 0.0005, 0.00025),
        passes=3, evaluations=8, held_out=200,
        fetch=_same(0.005, 0.01, 0.02, 0.04, 0.08), fetch_rate=0.00015, halvings=4,
    ),
    "paper": Preset(
        hidden=(1024,) * 4, large_hidden=(2560,) * 8, seeds=3, minibatch=200, ce_passes=10,
        slots=32, rates=_rates(0.002, 0.001, 0.001, 0.001, 0.001, 0.0005, 0.0005, 0.00025),
        passes=5, evaluations=20, held_out=750,
        fetch=_same(0.005, 0.01, 0.02, 0.04, 0.08), fetch_rate=0.001, halvings=4,
    ),
}  # fmt: skip


MOST_STATES = 10_000
"""States of the words' loop up to which sums over all of it are cheaper than wide searches."""

LATTICES = Beam(width=10.0, max_active=2000, lattice=6.0)
"""Beam of lattices where the loop has more; a frame of 39,000 states takes 0.26 ms, not 1.5."""

KEPT = 0.2
"""Share of frames that ten replicas keep overnight; the simulated time of a pass rests on it."""

DECODE_COST = 1.27
"""Time of decoding a frame over that of training on one; measured with the paper's sizes."""

KAPPA = 0.3

NUMERATOR = "sum"
"""Kind of numerator, which the paper leaves open; settled on development data."""

PAPER = REPORTED["paper"]

LAYERS: tuple[int, ...] = tuple(PAPER["layers"])

REPLICAS = {1: "one", 10: "ten", 50: "fifty"}

UNLIKE: tuple[Shuffling, ...] = ("none", "on the fly")
"""Shufflings other than the start's."""

NEVER_S = 1e9
"""Decoders that never fetch again: the start's parameters decide every outer gradient."""

FIRST_PASSES = 2
"""Passes of the network that makes the forced alignments for the start's training."""

LAST_RATE = 0.02
"""Rate of the last pass of cross-entropy training, as a share of the first's."""

UNTRAINED: dict[str, Any] = {"passes": 0, "workers": 1}
"""What leaves the start of a run, measured like the run, without any training."""


def one_pass(
    config: Experiment[Sequences], rate: float, evaluations: int = 2
) -> Experiment[Sequences]:
    """One pass at one rate, without recognition at its end."""
    return config.vary(passes=1, schedule=Constant(rate), evaluations=evaluations, tested="never")


def start(
    subject: Subject,
    seed: int,
    hidden: tuple[int, ...] | None = None,
    shuffling: Shuffling = "full",
    factor: float = 1.0,
) -> Experiment[Frames]:
    """Cross-entropy training of one worker, from which sequence training starts.

    As in the paper, its targets are forced alignments by another system: here a network of the
    small task's size, trained on the corpus's own targets.

    Args:
        subject: with scale and corpus.
        seed: of the run.
        hidden: units of the hidden layers, if not those of the small task.
        shuffling: order of frames.
        factor: multiple of that order's tuned rate.
    """
    preset = PRESETS[subject.scale]
    schedule = Exponential(preset.rates["full"], FIRST_PASSES, LAST_RATE)
    network = Experiment(
        task=Frames(**subject.names, hidden=preset.hidden, activation="relu", timed_layers=LAYERS),
        algorithm=AsyncSgd(),
        schedule=schedule,
        stages=(Stage(preset.minibatch, PAPER["minibatch_ce"]),),
        passes=FIRST_PASSES,
        evaluations=1,
        cluster=load_cluster(CLUSTER),
        workers=1,
        seed=seed,
        device=subject.device,
        tested="never",
    )
    return network.vary(
        targets=ForcedAlignment(network, KAPPA),
        hidden=hidden or preset.hidden,
        schedule=replace(schedule, rate=factor * preset.rates[shuffling], passes=preset.ce_passes),
        passes=preset.ce_passes,
        shuffling=shuffling,
    )


LONGER = 3
"""Times as long as others trains the run that asks whether more training overfits."""


def sequence(
    subject: Subject,
    seed: int,
    replicas: int,
    hidden: tuple[int, ...] | None = None,
    longer: int = 1,
) -> Experiment[Sequences]:
    """MMI training with the paper's settings and ``replicas``, so many times as long as usual."""
    preset = PRESETS[subject.scale]
    passes = longer * preset.passes
    task = Sequences(
        **subject.names,
        start=start(subject, seed, hidden),
        criterion=criterion(subject.corpus),
        timed_layers=LAYERS,
        held_out=preset.held_out,
    )
    rate, readings = preset.rates[REPLICAS[replicas]], passes * preset.evaluations
    return Experiment(
        task=task,
        algorithm=AsyncSgd(),
        schedule=decay_after(readings, rate) if preset.passes > 1 else Constant(rate),
        protocol=Sequence(slots=preset.slots, decode_cost=DECODE_COST),
        shuffling="on the fly",
        passes=passes,
        evaluations=preset.evaluations,
        cluster=load_cluster(CLUSTER),
        workers=replicas,
        seed=seed,
        device=subject.device,
        tested="at the end",
    )


def with_decoders(config: Experiment[Sequences], **changes: Any) -> Experiment[Sequences]:
    """A run with other settings of its decoders and minibatches."""
    return config.vary(protocol=replace(cast(Sequence, config.protocol), **changes))


def criterion(corpus: Corpus) -> Criterion:
    """MMI over lattices made on the fly, or over the whole loop where that is cheaper."""
    graph = Criterion(kappa=KAPPA, numerator=NUMERATOR, reject_below=PAPER["reject_below"])
    states = sum(map(len, corpus.lexicon.values()))
    return graph if states <= MOST_STATES else replace(graph, denominator="lattice", beam=LATTICES)


def decay_after(readings: int, rate: float) -> Plateau:
    """A tenth of the rate after two thirds of so many readings, in every run that is compared.

    Where the criterion decides, the time of the fall is most of the scatter between arms.
    """
    return Plateau(rate, at=(max(1, 2 * readings // 3),))


def variants(subject: Subject, seed: int) -> dict[str, Experiment[Sequences]]:
    """Ten replicas with one choice changed, and cross-entropy training with other shufflings."""
    preset, ten = PRESETS[subject.scale], sequence(subject, seed, 10)
    # Nothing cancels without a denominator: the minibatch is as much larger as the frames are more.
    control = replace(ten.task.criterion, kind="numerator", numerator="alignment")
    alone = with_decoders(ten.vary(criterion=control), slots=round(preset.slots / KEPT))
    starts = {name: start(subject, seed, shuffling=name) for name in UNLIKE}
    return {
        "last": ten.vary(layers="last").with_rate(preset.rates["last"]),
        "longer": sequence(subject, seed, 10, longer=LONGER),
        "realigned": alone.with_rate(preset.rates["realigned"]),
        "aligned once": with_decoders(
            alone.with_rate(preset.rates["aligned once"]), fetch_s=NEVER_S
        ),
        **{name: ten.vary(start=begin, **UNTRAINED) for name, begin in starts.items()},
    }


SWEPT: Mapping[str, dict[str, Any]] = {
    "last": {"layers": "last"},
    "all": {},
    "no silence": {"layers": "last", "update_silence": False},
}
"""What the runs of each fetch sweep train."""


def fetches(subject: Subject, seed: int) -> dict[str, Experiment[Sequences]]:
    """The fetch sweeps, of one pass of ten replicas: last layer, all layers, without silence."""
    preset = PRESETS[subject.scale]
    # Figure 5 draws the course; more readings would find more collapses, so all runs have as many.
    ten = one_pass(sequence(subject, seed, 10), preset.fetch_rate, evaluations=8)
    configs = dict[str, Experiment[Sequences]]()
    for sweep, intervals in preset.fetch.items():
        seconds = (None, *(fetch_s(subject, passes) for passes in intervals))
        for i, interval_s in enumerate(seconds):
            # Figure 5 is of the last layer, and has words.
            words = "at the end" if sweep == "last" else "never"
            swept = ten.vary(**SWEPT[sweep], tested=words)
            configs[fetch_name(sweep, i)] = with_decoders(swept, fetch_s=interval_s or None)
    return configs


def fetch_name(sweep: str, interval: int) -> str:
    """The setting of a sweep's interval, counted from 1; 0 fetches at every utterance."""
    return f"{sweep}, interval {interval}" if interval else f"{sweep}, every utterance"


def fetch_s(subject: Subject, passes: float) -> float:
    """Simulated seconds of ``passes`` of ten replicas that keep the share `KEPT` of the frames."""
    updates = subject.corpus.frames_of("train") * KEPT / PRESETS[subject.scale].slots
    return round(passes * updates / 10 * STEP_S, 1)


STEP_S = 0.44
"""A replica's step on the cluster file: next to its copies all else costs little."""


def largest(config: Experiment[Sequences], subject: Subject) -> LargestRateConfig:
    """The search for the largest stable rate of a training; more replicas begin lower.

    Args:
        config: with the replicas and slots in question.
        subject: with the scale, for which a stable rate of one replica is known.
    """
    preset = PRESETS[subject.scale]
    slots = cast(Sequence, config.protocol).slots
    lowest = preset.rates["one"] * preset.slots / slots / (1 + config.workers / 25)
    ends = round(lowest, 7), round(16 * lowest, 7)
    return LargestRateConfig(one_pass(config, lowest), *ends, preset.halvings)


def large(subject: Subject, seed: int) -> dict[str, Experiment[Sequences]]:
    """The large task where the corpus is the small one of the two; else the only task."""
    ten = sequence(subject, seed, 10)
    if subject.corpus.name == SMALL:
        wide = replace(subject, corpus=subject.load(LARGE, subject.scale, subject.corpus_seed))
        preset = PRESETS[subject.scale]
        ten = sequence(wide, seed, 10, preset.large_hidden).with_rate(preset.rates["large"])
    return {"large": ten, "large ce": ten.vary(**UNTRAINED)}


def tuning(subject: Subject) -> dict[str, Configuration]:
    """Trainings as long as the judged ones, at each rate that is tried, on development data."""
    subject = subject.development
    seed = subject.corpus_seed
    orders: tuple[Shuffling, ...] = ("full", *UNLIKE)
    mmi = {
        **{name: sequence(subject, seed, n) for n, name in REPLICAS.items()},
        **{name: variants(subject, seed)[name] for name in ("last", *CONTROLS)},
        "large": large(subject, seed)["large"],
    }
    configs: dict[str, Configuration] = {}
    for i, factor in enumerate(TRIED):
        for name, config in mmi.items():
            rate = factor * config.schedule.rate
            configs[rate_name(name, i)] = config.with_rate(rate).vary(tested="never")
        for order in orders:
            config = start(subject, seed, shuffling=order, factor=factor)
            configs[rate_name(order, i)] = config
    return configs


def rate_name(setting: str, tried: int) -> str:
    """The tuning run of a setting at the rate of this number, counted from 0."""
    return f"{setting}, rate {tried}"


def experiments(subject: Subject, seed: int) -> Mapping[str, Configuration]:
    """Every run of one seed, by the name the exhibits use.

    The large task comes first: it takes longest, and its start is trained beside the others'.
    """
    runs = {n: sequence(subject, seed, n) for n in REPLICAS}
    single, ten = runs[1], runs[10]
    return {
        **large(subject, seed),
        "ce": ten.vary(**UNTRAINED),
        "realignment": ForcedAlignment(ten.task.start, KAPPA),
        **{name: runs[n] for n, name in REPLICAS.items()},
        **variants(subject, seed),
        **fetches(subject, seed),
        **{f"largest {n}": largest(runs[n], subject) for n in (1, 50)},
        "tangent": LineConfig(single, points=()),
        "line": LineConfig(single),
        **tuning(subject),
    }


DENOMINATORS = {
    "graph": "the whole graph, which is their limit",
    "lattice": "lattices made on the fly: the words' loop is too large for sums over all of it",
}


def differences(subject: Subject) -> Differences:
    """Rows of ``what``, ``paper`` and ``here``."""
    preset, corpus, paper = PRESETS[subject.scale], subject.corpus, REPORTED["paper"]
    train = corpus.split("train")
    hours = train.total_frames * corpus.frame_shift_s / 3600.0
    flying = 50 * preset.slots / len(train)
    return [
        ("training speech",
         f"{paper['training_hours']} h Icelandic, {paper['utterances']:,} queries",
         f"{hours:.2f} h {corpus.name}, {len(train):,} queries"),
        ("network", levels(paper["layers"]),
         levels(corpus.layers(preset.hidden))),
        ("vocabulary", f"{paper['vocabulary']:,} words", f"{len(corpus.lexicon):,} words"),
        ("slots of a minibatch", str(paper["minibatch"]),
         f"{preset.slots}: a small corpus is soon all in flight (50 replicas: {flying:.0%})"),
        ("rates", f"{paper['rate_one']} with one replica, {paper['rate_many']} with more",
         ", ".join(f"{name} {preset.rates[name]:g}" for name in ("one", "ten", "fifty", "last"))
         + "; of sums over a minibatch, tuned on development data (p3.rates)"),
        ("passes of MMI", "many, rate divided by 10 at a plateau", f"{preset.passes}, "
         + ("divided by 10 after two thirds, in all arms" if preset.passes > 1 else "one rate")),
        ("start", "transferred from a network of the same topology for English", "from scratch"),
        ("start's targets", "alignments of a system with Gaussian mixtures",
         f"forced alignments by a network of {FIRST_PASSES} passes on the true states"),
        ("denominator", "lattices made on the fly", DENOMINATORS[criterion(corpus).denominator]),
        ("numerator", "not said", f"{NUMERATOR} over all alignments"),
        ("acoustic scale", "not said", f"{KAPPA:g}"),
        ("re-aligned control", "forced alignments",
         "forced alignments; no frame is left out, so minibatches are larger by as much"),
        ("shuffling compared", "training from scratch, replicas and criterion not said",
         "cross-entropy training from scratch, one replica, minibatches of "
         f"{preset.minibatch} slots"),
        ("test language model", "trigram", "trigram of the corpus's text"),
        ("fetch intervals", "minutes; the rate of ten replicas and fifty; all decoders at once",
         "passes: " + "; ".join(
             f"{sweep} " + ", ".join(f"{x:g}" for x in intervals)
             for sweep, intervals in preset.fetch.items())
         + f"; one pass, rate {preset.fetch_rate:g}; each decoder as its next utterance begins"),
        ("server", "in shards", "one shard"),
        ("training three times as long", "of the large task", "of the small task"),
        ("evaluators", "machines of their own", "cost no time; measured at shares of a pass"),
        ("start of replicas", "not said", "all at once"),
        ("large task", "3,000 h English, 8 layers, 14,000 states",
         f"voice-search-large, 8 layers, rate {preset.rates['large']:g}"
         if corpus.name == SMALL else "none"),
        ("time", "measured", "simulated for the paper's network on assumed machines"),
    ]  # fmt: skip
