"""Paper 3's claims: the statistic of each, its preconditions, and the paper's own value.

Claims on staleness are about the age of gradients, and the largest age without a loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from harness.judge.builders import Runs
from harness.judge.claims import ABOVE, BELOW, Rule, rule_near
from harness.judge.conditions import read_conditions
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity, side_of_zero
from harness.judge.statistics import (
    bounded_difference_ci,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
)
from reproductions.machines import judge_machines
from reproductions.makers import Claims, Judged
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.exhibits import LABELS, SECONDS, STEP, SWEEP, SWEPT, UPDATES
from reproductions.paper3_async_mmi.experiments import (
    PRESETS,
    REPLICAS,
    REPORTED,
    SMALL,
    SWEEPS,
    fetch_name,
    fetch_s,
)
from reproductions.paper3_async_mmi.quantities import (
    COSTS_NOTHING,
    CRITERION,
    Bounds,
    Sweep,
    error_ratio,
    gain_left,
    has_forced_start,
    has_transferred_start,
    largest_stable,
    last,
    late_gain,
    noise,
    passes_to_updates,
    readings,
    shape,
    share_in_slots,
    sweep_of,
    time_to_own_gain,
    tolerance_ratio,
    tolerances,
)
from reproductions.run_metrics import exponential, summary_value, summary_values

FIGURES, PAPER = REPORTED["claims"], REPORTED["paper"]
CLOSE = Rule(0.98, 1.02)
"""Within 2% relative."""
TWICE = Rule(1.5, 3.0)
CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))
CLAIMS = Claims()


def _close(label: str, paper: float | None, ratio: Interval) -> Quantity:
    """A ratio of word errors that the paper finds about 1."""
    return Quantity(label, paper, ratio, CLOSE, paper or 1.0)


def _plateaus(runs: Runs, *settings: str) -> Iterator[Precondition]:
    """The share of its gain that each arm has late in its training: little on a plateau."""
    for name in settings:
        gains = mean_ci([late_gain(run) for run in runs[name]])
        yield CONDITIONS.measure("plateau", gains, name)


CONTROLS = {"aligned once": "aligned once", "aligned all the time": "realigned"}
"""Training without the denominator, as claims name it."""


@CLAIMS.declare(
    "p3.mmi-gain", ("ce", "ten", "large ce", "large", *CONTROLS.values()),
    "MMI training lowers the word error of the cross-entropy baseline", "Table 1",
    "relative reduction of test word error; above 0, and half to twice the paper's",
    "Beside it the same training without the denominator, aligned once or all the time.",
)  # fmt: skip
def mmi_gain(subject: Subject, runs: Runs) -> Judged:
    """MMI's word error below cross-entropy's, on the small and the large task."""
    tasks = {"small": ("ce", "ten"), "large": ("large ce", "large")}
    if subject.corpus.name != SMALL:
        del tasks["large"]
    for task, (before, after) in tasks.items():
        printed, label = FIGURES[f"gain_{task}"], f"{task} task"
        reduction = 1 - error_ratio(subject, runs[after], runs[before])
        yield Quantity(label, printed, reduction, ABOVE, printed, "direction")
        rule = Rule(printed / 2, 2 * printed)
        label = f"{label}, half to twice the paper's"
        yield Quantity(label, printed, reduction, rule, printed, "size")
        yield from _plateaus(runs, after)
    for label, name in CONTROLS.items():
        reduction = 1 - error_ratio(subject, runs[name], runs["ce"])
        yield Quantity(f"small task, without the denominator, {label}", None, reduction)


@CLAIMS.declare(
    "p3.opposing", ("ce", "ten"), "MMI lowers the word error and raises the frame error",
    "Section 4.2, Figure 6", "change on the test set from start to end",
    "Frames are counted against the forced alignments that the start was trained on.",
)  # fmt: skip
def opposing(subject: Subject, runs: Runs) -> Judged:
    """While MMI training runs, word error falls and frame error rises."""
    name = f"{subject.corpus.tests[0]}_frame_error/iterate"
    frames = mean_ci(100.0 * (last(runs["ten"], name) - last(runs["ce"], name)))
    words = error_ratio(subject, runs["ten"], runs["ce"]) - 1
    yield Quantity("frame error (%), MMI − CE", "above 0", frames, ABOVE)
    yield Quantity("word error, relative change", "below 0", words, BELOW)
    yield from _plateaus(runs, "ten")


@CLAIMS.declare(
    "p3.not-realignment", ("ce", *CONTROLS.values(), "realignment"),
    "Re-alignment without the denominator does not change the word error",
    "Section 4.2, Frame vs. sequence training", "word error over the baseline's; within 2%",
    "Every frame is trained on, as nothing cancels.",
)  # fmt: skip
def not_realignment(subject: Subject, runs: Runs) -> Judged:
    """Without the denominator, word error stays within 2% of the baseline's."""
    for label, name in CONTROLS.items():
        yield _close(label, None, error_ratio(subject, runs[name], runs["ce"]))
    yield from _plateaus(runs, *CONTROLS.values())
    moved = mean_ci([summary_value(run, "moved_train") for run in runs["realignment"]])
    yield Quantity("frames that aligning once moves, share", None, moved)
    forced = mean_ci([float(has_forced_start(run)) for run in runs["ce"]])
    yield CONDITIONS.measure("forced-alignments", forced)


@CLAIMS.declare(
    "p3.shuffle-order", ("none", "on the fly", "ce"),
    "On-the-fly shuffling is better than none and as good as full", "Section 4.2, Data shuffling",
    "ratios of test error, of words and of frames; above 1, and within 2%",
    "Cross-entropy training from scratch with one replica, as the paper's benchmark.",
)  # fmt: skip
def shuffle_order(subject: Subject, runs: Runs) -> Judged:
    """Unshuffled is worse than shuffled on the fly, which is as good as shuffled fully."""
    printed = REPORTED["shuffling"]
    worse, metric = printed["none"] / printed["on the fly"], "_frame_error/iterate"
    words = (
        Quantity("none over on the fly, less 1", worse - 1,
                 error_ratio(subject, runs["none"], runs["on the fly"]) - 1, ABOVE, worse - 1),
        _close("on the fly over full", printed["on the fly"] / printed["full"],
               error_ratio(subject, runs["on the fly"], runs["ce"])),
    )  # fmt: skip
    none, on_the_fly, full = (
        last(runs[name], subject.corpus.tests[0] + metric) for name in ("none", "on the fly", "ce")
    )
    frames = ratio_ci(none, on_the_fly) - 1, ratio_ci(on_the_fly, full)
    for part in words:
        yield replace(part, label=f"{part.label}, words", measure="words")
    for part, ratio in zip(words, frames, strict=True):
        yield Quantity(f"{part.label}, frames", None, ratio, part.rule, measure="frames")
    share = PRESETS[subject.scale].minibatch / len(subject.corpus.split("train"))
    yield CONDITIONS.measure("in-slots-ce", Interval.exact(share))


@CLAIMS.declare(
    "p3.replicas-faster", ("one", "ten", "fifty"), "Convergence is faster with more replicas",
    "Section 4.2, Figure 4",
    "simulated time to 90% of a run's own final gain, many replicas over few; below 1",
    cannot_fail="the simulated servers are never busy, so fifty replicas apply fifty times as "
    "many updates a second; it would fail only if staleness made them need fifty times as many",
)  # fmt: skip
def replicas_faster(subject: Subject, runs: Runs) -> Judged:
    """More replicas reach 90% of their own gain in the criterion earlier."""
    names = ("one", "ten", "fifty")
    times = {name: np.array([time_to_own_gain(run) for run in runs[name]]) for name in names}
    for fewer, many in pairwise(names):
        difference = paired_difference_ci(np.log2(times[many]), np.log2(times[fewer]))
        yield Quantity(f"time, {many} over {fewer}", "below 1", difference, BELOW, is_log2=True)
    yield f"Mean times: {', '.join(f'{name} {_hours(times[name])}' for name in names)}."
    fewest = float(np.min([readings(run) for name in names for run in runs[name]]))
    yield CONDITIONS.measure("readings", Interval.exact(fewest))
    yield from _plateaus(runs, *names)


def _hours(seconds: np.ndarray) -> str:
    mean = float(seconds.mean())
    return f"{mean / 3600:.3g} h" if math.isfinite(mean) else "not on every seed"


@CLAIMS.declare(
    "p3.replicas-as-good", ("one", "ten", "fifty"), "Convergence is stable for many replicas",
    "Section 4.2, Figure 4", "test word error over that of one replica; within 2%",
)  # fmt: skip
def replicas_as_good(subject: Subject, runs: Runs) -> Judged:
    """Final word error with many replicas within 2% of one's."""
    for name in ("ten", "fifty"):
        yield _close(f"{name} over one", None, error_ratio(subject, runs[name], runs["one"]))
    share = float(np.max([share_in_slots(run) for run in runs["fifty"]]))
    yield CONDITIONS.measure("in-slots", Interval.exact(share))
    yield from _plateaus(runs, "one", "ten", "fifty")


@CLAIMS.declare(
    "p3.better-than-sgd", ("one", "ten", "fifty"),
    "Asynchronous SGD leads to better convergence than SGD", "Section 5",
    "test word error over that of one replica, less 1; below 0",
)  # fmt: skip
def better_than_sgd(subject: Subject, runs: Runs) -> Judged:
    """Final word error with many replicas below one's."""
    for name in ("ten", "fifty"):
        change = error_ratio(subject, runs[name], runs["one"]) - 1
        yield side_of_zero(f"{name} over one, less 1", change, "below")
    yield from _plateaus(runs, "one", "ten", "fifty")


@CLAIMS.declare(
    "p3.no-overfit", ("ten", "longer"), "Training for much longer does not overfit",
    "Section 4.2, Large scale task",
    "test word error of training three times as long over the usual length; at most 1",
    "Ten replicas on the small task, where the paper has the large one.",
)  # fmt: skip
def no_overfit(subject: Subject, runs: Runs) -> Judged:
    """Training three times as long leaves no more word errors."""
    ratio = error_ratio(subject, runs["longer"], runs["ten"])
    yield Quantity("", "at most 1", ratio, Rule(high=1.0))
    yield from _plateaus(runs, "ten", "longer")


@CLAIMS.declare(
    "p3.staleness-50", ("machines",),
    "With 50 replicas outer gradients are about a minute old", "Section 3.2",
    "simulated mean age of outer gradients on all machines on which an MMI step takes about two CE "
    "steps and 15% of the frames are kept; 30 to 120 s, 200 to 900 updates",
    "Median and range of p3.machines.",
)  # fmt: skip
def staleness_50(subject: Subject, runs: Runs) -> Judged:
    """Age of the outer gradients with fifty replicas, in seconds and in updates."""
    run, printed = runs["machines"][0], FIGURES["lag_s"]
    others = (SECONDS, UPDATES)
    yield from judge_machines(run, SECONDS, printed, Rule(30.0, 120.0), *others)
    yield from judge_machines(run, UPDATES, "a few hundred", Rule(200.0, 900.0), *others)


MANY = "largest 50"


@CLAIMS.declare(
    "p3.async-rate", ("largest 1", MANY), "One replica is stable at larger rates than fifty",
    "Section 4.2, SGD vs. ASGD",
    "largest stable rate, one replica over 50, each known up to a bisection's bracket; above 1",
)  # fmt: skip
def async_rate(subject: Subject, runs: Runs) -> Judged:
    """The largest stable rate with one replica above that with fifty."""
    stable = {n: [largest_stable(run) for run in runs[f"largest {n}"]] for n in (1, 50)}
    with np.errstate(divide="ignore"):  # the logarithm of 0 is the open bound it stands for
        alone, fifty = (np.log2(np.array(stable[n], np.float64)).T for n in (1, 50))
    difference = bounded_difference_ci((alone[0], alone[1]), (fifty[0], fifty[1]))
    printed = float(np.log2(PAPER["rate_one"] / PAPER["rate_many"]))
    yield Quantity("", printed, difference, ABOVE, printed, is_log2=True)
    rates = "; ".join(f"{LABELS[REPLICAS[n]]}: {_format_bounds(stable[n])}" for n in stable)
    yield f"Seed by seed, {rates}."


def _format_bounds(bounds: list[Bounds]) -> str:
    """A rate of each seed in words."""
    return ", ".join(
        f"below {high:g}" if low == 0 else f"{low:g} or more" if high == np.inf
        else f"{low:.3g} to {high:.3g}"
        for low, high in bounds
    )  # fmt: skip


RATIOS = (*SWEPT, MANY)
NOTE = (
    "T* is fitted to all intervals, seeds and sweeps at once, with one shape of the loss for all "
    "three sweeps; its interval is the jackknife's over seeds."
)


def _stars(subject: Subject, runs: Runs) -> tuple[dict[str, Sweep], dict[str, Interval]]:
    """The sweeps, and log2 of the T* of each."""
    sweeps = {name: sweep_of(subject, runs, name) for name in SWEEPS}
    return sweeps, dict(zip(sweeps, tolerances(list(sweeps.values())), strict=True))


@CLAIMS.declare(
    "p3.fetch-tolerance", SWEPT,
    "Decoders may fetch rarely, up to some interval, at no cost but noise",
    "Section 4.2, Figure 5",
    f"gain left of always fetching, {1 - COSTS_NOTHING:.0%} or more at the shortest interval and "
    "less at the longest; noise of the criterion rises with the interval",
    f"{NOTE} How many passes the paper's minutes are goes by its machines, which it does not name. "
    "Noise is the scatter of the readings about their trend.",
    divergence=True,
)  # fmt: skip
def fetch_tolerance(subject: Subject, runs: Runs) -> Judged:
    """Up to some interval T* nothing is lost, beyond it something is; longer ones are noisier."""
    sweeps, stars = _stars(subject, runs)
    sweep, star, least = sweeps["last"], stars["last"], 1 - COSTS_NOTHING
    ends = {"shortest": (1, Rule(low=least)), "longest": (-1, Rule(high=least))}
    for end, (place, rule) in ends.items():
        yield Quantity(f"gain left at the {end} interval", None, gain_left(sweep, place), rule)
    noises = np.array([[noise(run) for run in runs[name]] for name in SWEEP]).T
    correlation = rank_correlation_ci(sweep.intervals, noises)
    yield side_of_zero("noise, rank correlation with the interval", correlation, "above")
    yield Quantity("T* (passes)", None, star, is_log2=True)
    updates = passes_to_updates(subject, exponential(star), runs[fetch_name("last", 0)])
    yield Quantity("T* (updates)", "15 minutes", updates)


ON_TOLERANCE = "T* over T* of the last layer; {:g} to {:g} times"
HALF, DOUBLE = (0.3, 0.8), (1.3, 3.0)


@CLAIMS.declare(
    "p3.fetch-all-layers", RATIOS,
    "Updating all layers halves the largest fetch interval", "Section 4.2, Fetch interval",
    ON_TOLERANCE.format(*HALF), NOTE, divergence=True,
)  # fmt: skip
def fetch_all_layers(subject: Subject, runs: Runs) -> Judged:
    """T* where all layers are updated over T* where the last one is."""
    sweeps, stars = _stars(subject, runs)
    yield from _judge_tolerances(runs, sweeps, "all", "fetch_all_layers", HALF)
    # The paper's intervals are long beside the age that outer gradients have anyhow.
    base = runs[fetch_name("all", 0)]
    always = mean_ci([summary_value(run, "outer_lag_s_mean") for run in base])
    age = (1.0 / (fetch_s(subject, 1.0) * 2.0 ** stars["all"].estimate)) * always
    yield CONDITIONS.measure("long-intervals", age)
    # A loss that sets in as a cliff tells T* only to lie between two of the intervals.
    yield CONDITIONS.measure("no-cliff", Interval(shape(list(sweeps.values()))))


@CLAIMS.declare(
    "p3.fetch-no-silence", RATIOS,
    "Not updating the silence model doubles the largest fetch interval",
    "Section 4.2, Fetch interval", ON_TOLERANCE.format(*DOUBLE), NOTE, divergence=True,
    undetermined="What not updating silence can change goes by how much of the outer "
    "gradients lies on it, which the paper does not say. That this decides was settled after "
    "the development seed showed no change, before any other ran.",
)  # fmt: skip
def fetch_no_silence(subject: Subject, runs: Runs) -> Judged:
    """T* where silence is not updated over T* where it is."""
    sweeps, _ = _stars(subject, runs)
    return _judge_tolerances(runs, sweeps, "no silence", "fetch_no_silence", DOUBLE)


def _judge_tolerances(
    runs: Runs, sweeps: dict[str, Sweep], sweep: str, figure: str, band: Bounds
) -> Judged:
    """T* of a sweep over that of the last layer."""
    printed, rule = math.log2(FIGURES[figure]), Rule(math.log2(band[0]), math.log2(band[1]))
    over, under = sweeps[sweep], sweeps["last"]
    beside = tuple(swept for name, swept in sweeps.items() if name not in (sweep, "last"))
    ratio = tolerance_ratio(over, under, beside)
    yield Quantity("", printed, ratio, rule, printed, is_log2=True)
    alone = tolerance_ratio(over, under, shared=False)
    yield Quantity("each sweep with its own shape of the loss", None, alone, is_log2=True)
    yield _rate_precondition(runs)


def _rate_precondition(runs: Runs) -> Precondition:
    """The paper's rate is the largest that converges, and T* falls steeply with the rate."""
    swept = [float(run.config["schedule"]["rate"]) for run in runs[fetch_name("all", 0)]]
    stable = [largest_stable(run)[0] for run in runs[MANY]]
    return CONDITIONS.measure("largest-rate", ratio_ci(swept, stable))


@CLAIMS.declare(
    "p3.cancel", ("ten",), "Numerator and denominator cancel in 85% of the frames", "Section 4.1",
    "share of all decoded frames; within 10%",
    undetermined="The share goes by how hard the corpus is, which is not published, and by the "
    "threshold τ below which a frame counts as cancelling, which is not printed.",
)  # fmt: skip
def cancel(subject: Subject, runs: Runs) -> Judged:
    """The share of frames whose numerator and denominator cancel."""
    paper = FIGURES["cancelled"]
    share, used, rejected = (
        mean_ci([summary_value(run, f"{fate}_frames") for run in runs["ten"]])
        for fate in ("cancelled", "kept", "rejected")
    )
    yield Quantity("", paper, share, rule_near(paper, 0.10), paper)
    yield (
        f"Kept {used.estimate:.1%}, rejected {rejected.estimate:.1%}. The fewer errors, the more "
        "cancels."
    )


@CLAIMS.declare(
    "p3.step-cost", ("machines",),
    "An MMI step takes about twice as long as a cross-entropy step", "Section 4.2",
    "simulated time of a step, MMI over CE, on all machines whose outer gradients are about a "
    "minute old and that keep 15% of the frames; 1.5 to 3",
    "Median and range of p3.machines. Decoder and trainer of a replica work side by side.",
)  # fmt: skip
def step_cost(subject: Subject, runs: Runs) -> Judged:
    """Simulated time of an MMI step over a cross-entropy step."""
    printed = FIGURES["step_cost"]
    yield from judge_machines(runs["machines"][0], STEP, printed, TWICE, STEP, UPDATES)


@CLAIMS.declare(
    "p3.all-layers", ("ten", "last"),
    "Updating all layers is slightly better in criterion, not in word error",
    "Section 4.2, Figure 7", "final held-out criterion, difference; test word error within 2%",
)  # fmt: skip
def all_layers(subject: Subject, runs: Runs) -> Judged:
    """All layers reach at least the last layer's criterion, and the same word error."""
    difference = paired_difference_ci(*(last(runs[name], CRITERION) for name in ("ten", "last")))
    words = error_ratio(subject, runs["ten"], runs["last"])
    yield Quantity("criterion, all − last layer", "above 0", difference, ABOVE)
    yield _close("word error, all over last layer", 1.0, words)
    yield from _plateaus(runs, "ten", "last")
    transferred = mean_ci([float(has_transferred_start(run)) for run in runs["ten"]])
    yield CONDITIONS.measure("transferred-start", transferred)


@CLAIMS.declare(
    "p3.tangent", ("one", "tangent"), "The auxiliary function touches the criterion",
    "Section 3.3",
    "largest deviation over the seeds; the slope by central differences in double precision, "
    "over the lattices of the start where there are any",
    cannot_fail="It is an identity: only a fault of the program could break it.",
)  # fmt: skip
def tangent(subject: Subject, runs: Runs) -> Judged:
    """The auxiliary function has the criterion's value and slope where it touches."""
    value, slope = (
        [summary_values(runs["tangent"], f"{of}_{point}") for of in ("auxiliary", "criterion")]
        for point in ("at_0", "slope")
    )
    for label, deviations, most in (
        ("value, difference", value[0] - value[1], 1e-12),
        ("slope along the way of training, relative error", slope[0] / slope[1] - 1, 1e-6),
    ):
        largest = Interval.exact(float(np.abs(deviations).max()))
        yield Quantity(label, 0.0, largest, Rule(0.0, most), 0.0)
