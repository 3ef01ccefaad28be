"""Paper 3's claims: the statistic of each, its preconditions, and the paper's own value.

Claims on staleness are about the age of gradients, and the largest age without a loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.judge.builders import Maker, Runs
from harness.judge.claims import ABOVE, BELOW, rule_between, rule_near
from harness.judge.conditions import read_conditions
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity, claim_of
from harness.judge.results import Claim
from harness.judge.statistics import bounded_difference_ci, mean_ci, paired_difference_ci, ratio_ci
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import (
    DECODE_COST,
    INTERVALS,
    PRESETS,
    REPORTED,
    SMALL,
    SWEEPS,
    fetch_name,
    fetch_s,
    replicas,
)
from reproductions.paper3_async_mmi.quantities import (
    COSTS_NOTHING,
    CRITERION,
    Bounds,
    Sweep,
    error_ratio,
    first_test,
    has_forced_start,
    largest_stable,
    last,
    late_gain,
    passes_to_updates,
    readings,
    shape,
    share_in_slots,
    sweep_of,
    time_to_own_gain,
    tolerance_beyond,
    tolerance_ratio,
    tolerances,
)
from reproductions.run_metrics import exponential, hashes, summary_value

FIGURES, PAPER = REPORTED["claims"], REPORTED["paper"]


def staleness_50(subject: Subject, runs: Runs) -> Claim:
    """Age of the outer gradients with fifty replicas, in seconds and in updates."""
    del subject
    group = runs["timing 50"]
    lag = mean_ci([summary_value(run, "outer_lag_s_mean") for run in group])
    updates = mean_ci([summary_value(run, "outer_staleness_mean") for run in group])
    parts = [
        Quantity(
            "seconds",
            FIGURES["lag_s"],
            lag,
            rule_between(30.0, 120.0),
            FIGURES["lag_s"],
        ),
        Quantity("updates", "a few hundred", updates, rule_between(200.0, 900.0)),
    ]
    return claim_of(
        "p3.staleness-50", "With 50 replicas outer gradients are about a minute old",
        "Section 3.2", "simulated mean age of outer gradients; 30 to 120 s, 200 to 900 updates",
        parts, hashes(group), "Ages with 1 and 10 replicas: p3.lags.",
        undetermined="Seconds are updates times the step of a machine that the paper does not "
        "name; updates go by the frames that are kept, whose threshold τ it does not print, and by "
        "how long decoded utterances wait for a slot.",
    )  # fmt: skip


def async_rate(subject: Subject, runs: Runs) -> Claim:
    """The largest stable rate with one replica above that with fifty."""
    del subject
    stable = {n: [largest_stable(run) for run in runs[f"largest {n}"]] for n in (1, 50)}
    with np.errstate(divide="ignore"):  # the logarithm of 0 is the open bound it stands for
        one, fifty = (np.log2(np.array(stable[n], np.float64)).T for n in (1, 50))
    difference = bounded_difference_ci((one[0], one[1]), (fifty[0], fifty[1]))
    printed = float(np.log2(PAPER["rate_one"] / PAPER["rate_many"]))
    told = "; ".join(f"{replicas(n)}: {_format_bounds(stable[n])}" for n in stable)
    return claim_of(
        "p3.async-rate", "One replica is stable at larger rates than fifty",
        "Section 4.2, SGD vs. ASGD",
        "largest stable rate, one replica over 50, each known up to a bisection's bracket; above 1",
        [Quantity("", printed, difference, ABOVE, printed, is_log2=True)],
        hashes(runs["largest 1"], runs["largest 50"]), f"Seed by seed, {told}.",
    )  # fmt: skip


def fetch_tolerance(subject: Subject, runs: Runs) -> Claim:
    """Up to some interval T* nothing is lost, beyond it something is."""
    sweeps = {name: sweep_of(subject, runs, name) for name in SWEEPS}
    star = dict(zip(sweeps, tolerances(list(sweeps.values())), strict=True))["last"]
    if math.isnan(star.estimate):
        star = tolerance_beyond(list(sweeps.values()), list(sweeps).index("last"))
    first, *_, longest = PRESETS[subject.scale].fetch["last"]
    swept = rule_between(math.log2(first), math.log2(longest))
    updates = passes_to_updates(subject, exponential(star), runs[fetch_name("last", 0)])
    return claim_of(
        "p3.fetch-tolerance", "Decoders may fetch rarely, up to some interval, at no cost",
        "Section 4.2, Figure 5",
        f"T* in passes, where {COSTS_NOTHING:.0%} of the criterion's gain is lost; inside of the "
        f"sweep, {first:g} to {longest:g} passes",
        [
            Quantity("T* (passes)", None, star, swept, is_log2=True),
            Quantity("T* (updates)", "15 minutes", updates, None),
        ],
        hashes(*(runs[name] for name in ALL)),
        f"{NOTE} It fails if T* lies outside of the sweep. How many passes the paper's minutes are "
        "goes by its machines, which it does not name.",
    )  # fmt: skip


def fetch_all_layers(subject: Subject, runs: Runs) -> Claim:
    """T* where all layers are updated over T* where the last one is."""
    every = {name: sweep_of(subject, runs, name) for name in SWEEPS}
    star = dict(zip(every, tolerances(list(every.values())), strict=True))["all"]
    return _tolerances(
        subject, runs, "p3.fetch-all-layers", "all", FEWER, (0.3, 0.8),
        "Updating all layers halves the largest fetch interval",
        presumes=[
            _interval_precondition(subject, runs, star), _cliff_precondition(list(every.values())),
        ],
    )  # fmt: skip


def fetch_no_silence(subject: Subject, runs: Runs) -> Claim:
    """T* where silence is not updated over T* where it is."""
    return _tolerances(
        subject, runs, "p3.fetch-no-silence", "no silence", "fetch_no_silence", (1.3, 3.0),
        "Not updating the silence model doubles the largest fetch interval",
        undetermined="What not updating silence can change goes by how much of the outer "
        "gradients lies on it, which the paper does not say. That this decides was settled after "
        "the development seed showed no change, before any other ran.",
    )  # fmt: skip


def _tolerances(
    subject: Subject, runs: Runs, id_: str, sweep: str, figure: str, band: Bounds, statement: str,
    presumes: Sequence[Precondition] = (), undetermined: str = "",
) -> Claim:  # fmt: skip
    """T* of a sweep over that of the last layer."""
    printed = math.log2(FIGURES[figure])
    found = {name: sweep_of(subject, runs, name) for name in SWEEPS}
    over, under = found.pop(sweep), found.pop("last")
    ratio = tolerance_ratio(over, under, tuple(found.values()))
    alone = tolerance_ratio(over, under, shared=False)
    return claim_of(
        id_, statement, "Section 4.2, Fetch interval",
        f"T* over T* of the last layer; {band[0]:g} to {band[1]:g} times",
        [
            Quantity(
                "", printed, ratio, rule_between(*map(math.log2, band)), printed, is_log2=True
            ),
            Quantity("each sweep with its own shape of the loss", None, alone, is_log2=True),
        ],
        hashes(*(runs[name] for name in RATIOS)), NOTE,
        presumes=[_rate_precondition(runs), *presumes],
        undetermined=undetermined,
    )  # fmt: skip


def _interval_precondition(subject: Subject, runs: Runs, star: Interval) -> Precondition:
    """The paper's intervals are long beside the age that outer gradients have anyhow."""
    base = runs[fetch_name("all", 0)]
    always = mean_ci([summary_value(run, "outer_lag_s_mean") for run in base])
    age = (1.0 / (fetch_s(subject, 1.0) * 2.0**star.estimate)) * always
    return CONDITIONS.measure("long-intervals", age)


def _cliff_precondition(sweeps: Sequence[Sweep]) -> Precondition:
    """A loss that sets in as a cliff tells T* only to lie between two of the intervals."""
    return CONDITIONS.measure("no-cliff", Interval(shape(sweeps)))


def _rate_precondition(runs: Runs) -> Precondition:
    """The paper's rate is the largest that converges, and T* falls steeply with the rate."""
    swept = [float(run.config["rate"]) for run in runs[fetch_name("all", 0)]]
    stable = [largest_stable(run)[0] for run in runs[MANY]]
    return CONDITIONS.measure("largest-rate", ratio_ci(swept, stable))


NOTE = (
    "T* is fitted to all intervals, seeds and sweeps at once, with one shape of the loss for all "
    "three sweeps; its interval is the jackknife's over seeds."
)


def _format_bounds(bounds: list[Bounds]) -> str:
    """A rate of each seed in words."""
    return ", ".join(
        f"below {high:g}" if low == 0 else f"{low:g} or more" if high == np.inf
        else f"{low:.3g} to {high:.3g}"
        for low, high in bounds
    )  # fmt: skip


MANY, FEWER = "largest 50", "fetch_all_layers"

ALL = tuple(fetch_name(sweep, i) for sweep in SWEEPS for i in range(INTERVALS + 1))

RATIOS = (*ALL, MANY)

STALENESS = (
    Maker("p3.staleness-50", ("timing 50",), staleness_50),
    Maker("p3.async-rate", ("largest 1", MANY), async_rate),
    Maker("p3.fetch-tolerance", ALL, fetch_tolerance, divergence=True),
    Maker("p3.fetch-all-layers", RATIOS, fetch_all_layers, divergence=True),
    Maker("p3.fetch-no-silence", RATIOS, fetch_no_silence, divergence=True),
)

CLOSE = rule_between(0.98, 1.02)
"""Within 2% relative."""

CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))


def mmi_gain(subject: Subject, runs: Runs) -> Claim:
    """MMI's word error below cross-entropy's, on the small and the large task."""
    tasks = {"small": ("ce", "ten")}
    if subject.corpus.name == SMALL:
        tasks["large"] = ("large ce", "large")
    parts: list[Quantity] = []
    for task, (before, after) in tasks.items():
        printed = FIGURES[f"gain_{task}"]
        reduction = 1 - error_ratio(subject, runs[after], runs[before])
        parts.append(Quantity(f"{task} task", printed, reduction, ABOVE, printed))
    used = [runs[name] for pair in tasks.values() for name in pair]
    return claim_of(
        "p3.mmi-gain", "MMI training lowers the word error of the cross-entropy baseline",
        "Table 1", "relative reduction of test word error; above 0", parts, hashes(*used),
    )  # fmt: skip


def opposing(subject: Subject, runs: Runs) -> Claim:
    """While MMI training runs, word error falls and frame error rises."""
    name = f"{first_test(subject)}_frame_error/iterate"
    frames = mean_ci(100.0 * (last(runs["ten"], name) - last(runs["ce"], name)))
    words = error_ratio(subject, runs["ten"], runs["ce"]) - 1
    parts = [
        Quantity("frame error (%), MMI − CE", "above 0", frames, ABOVE),
        Quantity("word error, relative change", "below 0", words, BELOW),
    ]
    return claim_of(
        "p3.opposing", "MMI lowers the word error and raises the frame error",
        "Section 4.2, Figure 6", "change on the test set from start to end", parts,
        hashes(runs["ce"], runs["ten"]),
        "Frames are counted against the forced alignments that the start was trained on.",
    )  # fmt: skip


def not_realignment(subject: Subject, runs: Runs) -> Claim:
    """Without the denominator, word error stays within 2% of the baseline's."""
    parts = [
        _close(label, None, error_ratio(subject, runs[name], runs["ce"]))
        for label, name in (("aligned once", "aligned once"), ("aligned all the time", "realigned"))
    ]
    moved = mean_ci([summary_value(run, "moved_train") for run in runs["realignment"]])
    parts.append(Quantity("frames that aligning once moves, share", None, moved))
    forced = mean_ci([float(has_forced_start(run)) for run in runs["ce"]])
    return claim_of(
        "p3.not-realignment", "Re-alignment without the denominator does not change the word error",
        "Section 4.2, Frame vs. sequence training",
        "word error over the baseline's; within 2%", parts,
        hashes(runs["ce"], runs["aligned once"], runs["realigned"], runs["realignment"]),
        "Every frame is trained on, as nothing cancels.",
        presumes=(
            CONDITIONS.measure("forced-alignments", forced),
        ),
    )  # fmt: skip


def shuffle_order(subject: Subject, runs: Runs) -> Claim:
    """Unshuffled is worse than shuffled on the fly, which is as good as shuffled fully."""
    printed = REPORTED["shuffling"]
    worse = printed["none"] / printed["on the fly"]
    parts = [
        Quantity("none over on the fly, less 1", worse - 1,
                 error_ratio(subject, runs["none"], runs["on the fly"]) - 1, ABOVE, worse - 1),
        _close("on the fly over full", printed["on the fly"] / printed["full"],
               error_ratio(subject, runs["on the fly"], runs["ce"])),
    ]  # fmt: skip
    frames = {name: last(runs[name], f"{first_test(subject)}_frame_error/iterate")
              for name in ("none", "on the fly", "ce")}  # fmt: skip
    parts = [replace(each, label=f"{each.label}, words", measure="words") for each in parts]
    parts += [
        Quantity("none over on the fly, less 1, frames", None,
                 ratio_ci(frames["none"], frames["on the fly"]) - 1, ABOVE, measure="frames"),
        Quantity("on the fly over full, frames", None,
                 ratio_ci(frames["on the fly"], frames["ce"]), CLOSE, measure="frames"),
    ]  # fmt: skip
    return claim_of(
        "p3.shuffle-order", "On-the-fly shuffling is better than none and as good as full",
        "Section 4.2, Data shuffling",
        "ratios of test error, of words and of frames; above 1, and within 2%", parts,
        hashes(runs["none"], runs["on the fly"], runs["ce"]),
        "Cross-entropy training from scratch with one replica, as the paper's benchmark.",
    )  # fmt: skip


def replicas_faster(subject: Subject, runs: Runs) -> Claim:
    """More replicas reach 90% of their own gain in the criterion earlier."""
    del subject
    names = ("one", "ten", "fifty")
    times = {name: np.array([time_to_own_gain(run) for run in runs[name]]) for name in names}
    logs = {name: np.log2(t) for name, t in times.items()}
    parts = [
        Quantity(f"time, {many} over {few}", "below 1",
                 paired_difference_ci(logs[many], logs[few]), BELOW, is_log2=True)
        for many, few in (("ten", "one"), ("fifty", "ten"))
    ]  # fmt: skip
    hours = ", ".join(f"{name} {_hours(times[name])}" for name in names)
    fewest = float(np.min([readings(run) for name in names for run in runs[name]]))
    return claim_of(
        "p3.replicas-faster", "Convergence is faster with more replicas", "Section 4.2, Figure 4",
        "simulated time to 90% of a run's own final gain, many replicas over few; below 1", parts,
        hashes(*(runs[name] for name in names)), f"Mean times: {hours}.",
        presumes=(
            CONDITIONS.measure("readings", Interval.exact(fewest)),
        ),
        cannot_fail="the simulated servers are never busy, so fifty replicas apply fifty times as "
        "many updates a second; it would fail only if staleness made them need fifty times as many",
    )  # fmt: skip


def _hours(seconds: np.ndarray) -> str:
    mean = float(seconds.mean())
    return f"{mean / 3600:.3g} h" if math.isfinite(mean) else "not on every seed"


def replicas_as_good(subject: Subject, runs: Runs) -> Claim:
    """Final word error with many replicas within 2% of one's."""
    parts = [
        _close(f"{name} over one", None, error_ratio(subject, runs[name], runs["one"]))
        for name in ("ten", "fifty")
    ]
    held = float(np.max([share_in_slots(run) for run in runs["fifty"]]))
    return claim_of(
        "p3.replicas-as-good", "Convergence is stable for many replicas", "Section 4.2, Figure 4",
        "test word error over that of one replica; within 2%", parts,
        hashes(runs["one"], runs["ten"], runs["fifty"]),
        presumes=(
            CONDITIONS.measure("in-slots", Interval.exact(held)),
        ),
    )  # fmt: skip


def cancel(subject: Subject, runs: Runs) -> Claim:
    """The share of frames whose numerator and denominator cancel."""
    del subject
    paper = FIGURES["cancelled"]
    share, kept, rejected = (
        mean_ci([summary_value(run, f"{what}_frames") for run in runs["ten"]])
        for what in ("cancelled", "kept", "rejected")
    )
    return claim_of(
        "p3.cancel", "Numerator and denominator cancel in 85% of the frames", "Section 4.1",
        "share of all decoded frames; within 10%",
        [Quantity("", paper, share, rule_near(paper, 0.10), paper)], hashes(runs["ten"]),
        f"Kept {kept.estimate:.1%}, rejected {rejected.estimate:.1%}. The fewer errors, the more "
        "cancels: p3.cancel-curve.",
        undetermined="The share goes by how hard the corpus is, which is not published, and by the "
        "threshold τ below which a frame counts as cancelling, which is not printed.",
    )  # fmt: skip


def step_cost(subject: Subject, runs: Runs) -> Claim:
    """Simulated time of an MMI step over a cross-entropy step."""
    del subject
    paper = FIGURES["step_cost"]
    alone, networked = (
        ratio_ci(*([1.0 / summary_value(run, "throughput_per_s") for run in runs[f"step {w}{name}"]]
                   for w in ("mmi", "ce")))
        for name in (" alone", "")
    )  # fmt: skip
    parts = [
        Quantity("computing alone", paper, alone, TWICE, paper, "computing alone"),
        Quantity("with the assumed network", paper, networked, TWICE, paper, "with the network"),
    ]
    return claim_of(
        "p3.step-cost", "An MMI step takes about twice as long as a cross-entropy step",
        "Section 4.2", "simulated time of a step of one replica, MMI over CE; 1.5 to 3", parts,
        hashes(*(runs[name] for name in STEPS)),
        f"Decoding a frame is charged as {DECODE_COST:g} frames of training, measured with the "
        "paper's network and vocabulary; decoder and trainer work side by side. On a gigabit "
        "network both steps are mostly copies of the model.",
        undetermined="The paper does not say whether its step has the copies over the network in "
        "it: without them the claim holds, with them it fails.",
    )  # fmt: skip


def all_layers(subject: Subject, runs: Runs) -> Claim:
    """All layers reach at least the last layer's criterion, and the same word error."""
    difference = paired_difference_ci(*(last(runs[name], CRITERION) for name in ("ten", "last")))
    words = error_ratio(subject, runs["ten"], runs["last"])
    parts = [
        Quantity("criterion, all − last layer", "above 0", difference, ABOVE),
        _close("word error, all over last layer", 1.0, words),
    ]
    return claim_of(
        "p3.all-layers", "Updating all layers is slightly better in criterion, not in word error",
        "Section 4.2, Figure 7", "final held-out criterion, difference; test word error within 2%",
        parts, hashes(runs["ten"], runs["last"]),
        presumes=tuple(
            CONDITIONS.measure("plateau", mean_ci([late_gain(run) for run in runs[name]]), label)
            for label, name in (("all layers", "ten"), ("last layer", "last"))
        ),
    )  # fmt: skip


def tangent(subject: Subject, runs: Runs) -> Claim:
    """The auxiliary function has the criterion's value and slope where it touches."""
    del subject
    value, slope = (
        [
            [summary_value(run, f"{of}_{what}") for run in runs["tangent"]]
            for of in ("auxiliary", "criterion")
        ]
        for what in ("at_0", "slope")
    )
    values = [a - b for a, b in zip(*value, strict=True)]
    slopes = [a / b - 1 for a, b in zip(*slope, strict=True)]
    parts = [
        Quantity(
            label,
            0.0,
            Interval.exact(float(np.abs(deviations).max())),
            rule_between(0.0, most),
            0.0,
        )
        for label, deviations, most in (
            ("value, difference", values, 1e-12),
            ("slope along the way of training, relative error", slopes, 1e-6),
        )
    ]
    return claim_of(
        "p3.tangent", "The auxiliary function touches the criterion", "Section 3.3",
        "largest deviation over the seeds; the slope by central differences in double precision, "
        "over the lattices of the start where there are any",
        parts, hashes(runs["one"], runs["tangent"]),
        cannot_fail="It is an identity: only a fault of the program could break it.",
    )  # fmt: skip


def _close(label: str, paper: float | None, ratio: Interval) -> Quantity:
    """A ratio of word errors that the paper finds about 1."""
    return Quantity(label, paper, ratio, CLOSE, paper or 1.0)


TWICE = rule_between(1.5, 3.0)
STEPS = tuple(f"step {which}{name}" for which in ("mmi", "ce") for name in (" alone", ""))

CLAIMS = (
    Maker("p3.mmi-gain", ("ce", "ten", "large ce", "large"), mmi_gain),
    Maker("p3.opposing", ("ce", "ten"), opposing),
    Maker(
        "p3.not-realignment", ("ce", "aligned once", "realigned", "realignment"), not_realignment
    ),
    Maker("p3.shuffle-order", ("none", "on the fly", "ce"), shuffle_order),
    Maker("p3.replicas-faster", ("one", "ten", "fifty"), replicas_faster),
    Maker("p3.replicas-as-good", ("one", "ten", "fifty"), replicas_as_good),
    *STALENESS,
    Maker("p3.cancel", ("ten",), cancel),
    Maker("p3.step-cost", STEPS, step_cost),
    Maker("p3.all-layers", ("ten", "last"), all_layers),
    Maker("p3.tangent", ("one", "tangent"), tangent),
)
