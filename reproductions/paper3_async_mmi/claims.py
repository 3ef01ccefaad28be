"""Paper 3's claims: the statistic of each, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.judge.claims import ABOVE, above, between, near
from harness.judge.makers import Maker, Runs
from harness.judge.missing import UNKNOWN, unless_missing
from harness.judge.parts import Quantity, claim_of, side_of_zero
from harness.judge.results import Claim
from harness.judge.statistics import Interval, mean_ci, paired_difference_ci, ratio_ci
from harness.judge.utterances import rate_ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.presets import (
    DECODE_COST,
    REPORTED,
    SMALL,
)
from reproductions.paper3_async_mmi.quantities import (
    CRITERION,
    REACHED,
    first_test,
    gain,
    last,
    test_errors,
    time_to_gain,
)
from reproductions.paper3_async_mmi.staleness import STALENESS
from reproductions.readings import hashes, of_summary

FIGURES = REPORTED["claims"]
CLOSE = between(0.98, 1.02)
"""Within 2% relative."""


def mmi_gain(subject: Subject, runs: Runs) -> Claim:
    """MMI's word error below cross-entropy's, on the small and the large task."""
    tasks = {"small": ("ce", "ten")}
    if subject.corpus.name == SMALL:
        tasks["large"] = ("large ce", "large")
    parts: list[Quantity] = []
    for task, (before, after) in tasks.items():
        ratio = _ratio(subject, runs[after], runs[before])
        reduction = 1 - ratio
        paper = FIGURES[f"gain_{task}"]
        parts.append(Quantity(f"{task} task", paper, reduction, ABOVE, paper))
    used = [runs[name] for pair in tasks.values() for name in pair]
    return claim_of(
        "p3.mmi-gain", "MMI training lowers the word error of the cross-entropy baseline",
        "Table 1", "relative reduction of test word error; above 0", parts, hashes(*used),
    )  # fmt: skip


def opposing(subject: Subject, runs: Runs) -> Claim:
    """While MMI training runs, word error falls and frame error rises."""
    name = f"{first_test(subject)}_frame_error/iterate"
    frames = 100.0 * (last(runs["ten"], name) - last(runs["ce"], name))
    ratio = _ratio(subject, runs["ten"], runs["ce"])
    parts = [
        side_of_zero("frame error (%), MMI − CE", mean_ci(frames), "above"),
        side_of_zero("word error, relative change", ratio - 1, "below"),
    ]
    return claim_of(
        "p3.opposing", "MMI lowers the word error and raises the frame error",
        "Section 4.2, Figure 6", "change on the test set from start to end", parts,
        hashes(runs["ce"], runs["ten"]),
    )  # fmt: skip


def not_realignment(subject: Subject, runs: Runs) -> Claim:
    """Without the denominator, word error stays within 2% of the baseline's."""
    parts = [
        _close(label, None, _ratio(subject, runs[name], runs["ce"]))
        for label, name in (("aligned once", "aligned once"), ("aligned all the time", "realigned"))
    ]
    return claim_of(
        "p3.not-realignment", "Re-alignment without the denominator does not change the word error",
        "Section 4.2, Frame vs. sequence training",
        "word error over the baseline's; within 2%", parts,
        hashes(runs["ce"], runs["aligned once"], runs["realigned"]),
        "One pass; every frame is trained on, as nothing cancels.",
    )  # fmt: skip


def shuffle_order(subject: Subject, runs: Runs) -> Claim:
    """Unshuffled is worse than shuffled on the fly, which is as good as shuffled fully."""
    printed = REPORTED["shuffling"]
    none = _ratio(subject, runs["unshuffled"], runs["ten"])
    worse = printed["unshuffled"] / printed["ten"]
    parts = [
        Quantity("none over on the fly", worse, none, above(1.0), worse),
        _close("on the fly over full", printed["ten"] / printed["full"],
               _ratio(subject, runs["ten"], runs["full"])),
    ]  # fmt: skip
    return claim_of(
        "p3.shuffle-order", "On-the-fly shuffling is better than none and as good as full",
        "Section 4.2, Data shuffling", "ratios of test word error; above 1, and within 2%", parts,
        hashes(runs["unshuffled"], runs["ten"], runs["full"]),
    )  # fmt: skip


def _hours(seconds: np.ndarray) -> str:
    mean = float(seconds.mean())
    return f"{mean / 3600:.3g} h" if math.isfinite(mean) else "not on every seed"


def replicas_faster(subject: Subject, runs: Runs) -> Claim:
    """More replicas reach the same gain in the criterion earlier."""
    names = ("one", "ten", "fifty")
    seeds = list(zip(*(runs[name] for name in names), strict=True))
    wanted = [REACHED * min(gain(run) for run in group) for group in seeds]
    times = {
        name: np.array([time_to_gain(run, w) for run, w in zip(runs[name], wanted, strict=True)])
        for name in names
    }
    logs = {name: np.log(t) for name, t in times.items()}
    parts = [
        _direction(f"log time, {many} − {few}", logs[many], logs[few], "below")
        for many, few in (("ten", "one"), ("fifty", "ten"))
    ]
    hours = ", ".join(f"{name} {_hours(times[name])}" for name in names)
    return claim_of(
        "p3.replicas-faster", "Convergence is faster with more replicas", "Section 4.2, Figure 4",
        "logarithm of the simulated time to 90% of the smallest of the three final gains", parts,
        hashes(*(runs[name] for name in names)), f"Mean times: {hours}.",
    )  # fmt: skip


def replicas_as_good(subject: Subject, runs: Runs) -> Claim:
    """Final word error with many replicas within 2% of one's."""
    parts = [
        _close(f"{name} over one", None, _ratio(subject, runs[name], runs["one"]))
        for name in ("ten", "fifty")
    ]
    return claim_of(
        "p3.replicas-as-good", "Convergence is stable for many replicas", "Section 4.2, Figure 4",
        "test word error over that of one replica; within 2%", parts,
        hashes(runs["one"], runs["ten"], runs["fifty"]),
    )  # fmt: skip


def cancel(subject: Subject, runs: Runs) -> Claim:
    """The share of frames whose numerator and denominator cancel."""
    share = mean_ci([run.summary["cancelled_frames"] for run in runs["ten"]])
    paper = FIGURES["cancelled"]
    kept = mean_ci([run.summary["kept_frames"] for run in runs["ten"]]).estimate
    rejected = mean_ci([run.summary["rejected_frames"] for run in runs["ten"]]).estimate
    return claim_of(
        "p3.cancel", "Numerator and denominator cancel in 85% of the frames", "Section 4.1",
        "share of all decoded frames; within 10%",
        [Quantity("", paper, share, near(paper), paper)], hashes(runs["ten"]),
        f"Kept {kept:.1%}, rejected {rejected:.1%}. The paper's share is of a system with 13% "
        "word error; the more there is to correct, the less cancels.",
    )  # fmt: skip


def step_cost(subject: Subject, runs: Runs) -> Claim:
    """Simulated time of an MMI step over a cross-entropy step."""
    parts: list[Quantity] = []
    for label, name in (("computing alone", " alone"), ("with the assumed network", "")):
        mmi, ce = (
            [1.0 / of_summary(run, "throughput_per_s") for run in runs[f"step {which}{name}"]]
            for which in ("mmi", "ce")
        )
        ratio = ratio_ci(mmi, ce)
        paper = FIGURES["step_cost"] if name else None
        parts.append(Quantity(label, paper, ratio, between(1.5, 3.0) if name else None, paper))
    return claim_of(
        "p3.step-cost", "An MMI step takes about twice as long as a cross-entropy step",
        "Section 4.2", "simulated time of a step of one replica, MMI over CE; 1.5 to 3", parts,
        hashes(*(runs[name] for name in STEPS)),
        f"Decoding a frame is charged as {DECODE_COST:g} frames of training, measured with the "
        "paper's network and vocabulary; decoder and trainer work side by side. Only computing "
        "is judged: on a gigabit network both steps are mostly copies of the model.",
    )  # fmt: skip


def all_layers(subject: Subject, runs: Runs) -> Claim:
    """All layers reach at least the last layer's criterion, and the same word error."""
    values = [last(runs[name], CRITERION) for name in ("ten", "last")]
    parts = [
        _direction("criterion, all − last layer", values[0], values[1], "above"),
        _close("word error, all over last layer", 1.0,
               _ratio(subject, runs["ten"], runs["last"])),
    ]  # fmt: skip
    return claim_of(
        "p3.all-layers", "Updating all layers is slightly better in criterion, not in word error",
        "Section 4.2, Figure 7", "final held-out criterion, difference; test word error within 2%",
        parts, hashes(runs["ten"], runs["last"]),
    )  # fmt: skip


def tangent(subject: Subject, runs: Runs) -> Claim:
    """The auxiliary function has the criterion's value and slope where it touches."""
    del subject
    found = [run.summary for run in runs["tangent"]]
    values = [each["auxiliary_at_0"] - each["criterion_at_0"] for each in found]
    slopes = [each["auxiliary_slope"] / each["criterion_slope"] - 1 for each in found]
    parts: list[Quantity] = []
    for label, deviations, most in (
        ("value, difference", values, 1e-12),
        ("slope along the way of training, relative error", slopes, 1e-6),
    ):
        worst = Interval.exact(max(map(abs, deviations)))
        parts.append(Quantity(label, 0.0, worst, between(0.0, most), 0.0))
    return claim_of(
        "p3.tangent", "The auxiliary function touches the criterion", "Section 3.3",
        "largest deviation over the seeds; the slope by central differences in double precision, "
        "over the lattices of the start where there are any",
        parts, hashes(runs["one"], runs["tangent"]),
        cannot_fail="the auxiliary function is defined so",
    )  # fmt: skip


@unless_missing(UNKNOWN)
def _ratio(subject: Subject, a: Sequence[Run], b: Sequence[Run]) -> Interval:
    """Test word error of some runs over that of others."""
    (errors, lengths), (others, _) = test_errors(subject, a), test_errors(subject, b)
    return rate_ratio_ci(errors, others, lengths)


def _close(label: str, paper: float | None, ratio: Interval) -> Quantity:
    return Quantity(label, paper, ratio, CLOSE, 1.0 if paper is None else paper)


def _direction(label: str, a: np.ndarray, b: np.ndarray, side: str) -> Quantity:
    return side_of_zero(label, paired_difference_ci(a, b), side)


STEPS = tuple(f"step {which}{name}" for which in ("mmi", "ce") for name in (" alone", ""))
CLAIMS = (
    Maker("p3.mmi-gain", ("ce", "ten", "large ce", "large"), mmi_gain),
    Maker("p3.opposing", ("ce", "ten"), opposing),
    Maker("p3.not-realignment", ("ce", "aligned once", "realigned"), not_realignment),
    Maker("p3.shuffle-order", ("unshuffled", "ten", "full"), shuffle_order),
    Maker("p3.replicas-faster", ("one", "ten", "fifty"), replicas_faster),
    Maker("p3.replicas-as-good", ("one", "ten", "fifty"), replicas_as_good),
    *STALENESS,
    Maker("p3.cancel", ("ten",), cancel),
    Maker("p3.step-cost", STEPS, step_cost),
    Maker("p3.all-layers", ("ten", "last"), all_layers),
    Maker("p3.tangent", ("one", "tangent"), tangent),
)
