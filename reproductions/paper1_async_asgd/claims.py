"""Paper 1's claims, each a statistic over seeds and a rule that gives the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from harness.judge.claims import (
    Band,
    Side,
    Verdict,
    all_of,
    judge_direction,
    judge_prediction,
    judge_size,
)
from harness.judge.results import Claim, Part
from harness.judge.statistics import (
    Interval,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
)
from harness.judge.utterances import rate_difference_ci, rate_ratio_ci
from harness.store import Run
from reproductions.paper import Maker, Runs, Subject
from reproductions.paper1_async_asgd.exhibits import (
    DEV_AVERAGE,
    DEV_ITERATE,
    final_errors,
    training_seconds,
)
from reproductions.paper1_async_asgd.experiments import CHUNK_HOURS, PRESETS, REPORTED, chunk_name
from reproductions.readings import at_epoch, hashes, lengths_of_utterances

EARLY = 0.25
"""The share of epoch 1 that counts as early; a quarter of figure 2's first epoch."""

Quantity = tuple[str, float | str | None, Interval, Verdict]


def search_best(subject: Subject, runs: Runs) -> Claim:
    """Final frame error of search below both others."""
    final = {name: _dev(subject, runs[name], 2.0) for name in ("hand", "adapt", "search")}
    parts = [
        _direction(f"search − {other}", final["search"], final[other], "below")
        for other in ("hand", "adapt")
    ]
    return _claim(
        "p1.search-best", "ASGD-search performs the highest frame accuracy",
        "Section 4.1, Figure 2", "final frame error (%), difference", parts,
        hashes(runs["hand"], runs["adapt"], runs["search"]),
    )  # fmt: skip


def hand_early(subject: Subject, runs: Runs) -> Claim:
    """Early in epoch 1, hand below search."""
    early = {name: _early(subject, runs[name]) for name in ("hand", "search")}
    parts = [_direction("hand − search", early["hand"], early["search"], "below")]
    return _claim(
        "p1.hand-early", "For the initial update iterations ASGD-hand has the lower frame error",
        "Section 4.1, Figure 2",
        f"frame error (%), mean over the first {EARLY:.0%} of epoch 1, difference", parts,
        hashes(runs["hand"], runs["search"]),
    )  # fmt: skip


def flat_after_one_pass(subject: Subject, runs: Runs) -> Claim:
    """The drop in epoch 2 is a small part of the drop in epoch 1."""
    parts: list[Quantity] = []
    for name in ("hand", "search"):
        start, one, two = (_dev(subject, runs[name], epoch) for epoch in (0.0, 1.0, 2.0))
        parts.append(_size(name, ratio_ci(one - two, start - one), (-math.inf, 0.15)))
    return _claim(
        "p1.flat-after-one-pass", "For hand and search the curve flattens out after one pass",
        "Section 4.1, Figure 2", "drop in frame error, epoch 2 over epoch 1; at most 0.15", parts,
        hashes(runs["hand"], runs["search"]),
    )  # fmt: skip


def adapt_slow(subject: Subject, runs: Runs) -> Claim:
    """Adapt still falls in epoch 2, more than the others, and ends last."""
    drop, last = {}, {}
    for name in ("hand", "adapt", "search"):
        last[name] = _dev(subject, runs[name], 2.0)
        drop[name] = _dev(subject, runs[name], 1.0) - last[name]
    parts = [
        _direction("drop in epoch 2, adapt − larger of the others", drop["adapt"],
                   np.maximum(drop["hand"], drop["search"]), "above"),
        _direction("final, adapt − larger of the others", last["adapt"],
                   np.maximum(last["hand"], last["search"]), "above"),
    ]  # fmt: skip
    return _claim(
        "p1.adapt-slow", "ASGD-adapt improves slowly: it still falls when the others are flat",
        "Section 4.1, Figure 2", "frame error (%), differences", parts,
        hashes(runs["hand"], runs["adapt"], runs["search"]),
    )  # fmt: skip


def chunk_size(subject: Subject, runs: Runs) -> Claim:
    """Error rises with chunk size, and by how much from the smallest to the largest."""
    parts: list[Quantity] = []
    settings = [chunk_name(hours) for hours in CHUNK_HOURS]
    for test in subject.corpus.tests:
        errors = [final_errors("one_pass", test, runs[name]) for name in settings]
        lengths = lengths_of_utterances(runs["one_pass"][0], test)
        rates = np.stack([each.sum(1) / lengths.sum() for each in errors], axis=1)
        order = rank_correlation_ci(CHUNK_HOURS, rates)
        parts.append((f"{test}, rank correlation", "above 0", order,
                      judge_direction(order, "above")))  # fmt: skip
        ratio = rate_ratio_ci(errors[-1], errors[0], lengths)
        paper = REPORTED["claims"][f"chunk_25_over_1_{test}"]
        excess = Interval(ratio.estimate - 1, ratio.low - 1, ratio.high - 1)
        parts.append((f"{test}, 25 h over 1 h", paper, ratio, judge_direction(excess, "above")))
    return _claim(
        "p1.chunk-size", "The error rises with the size of the data chunk",
        "Section 4.2, Table 1", "rank correlation of error with chunk size; ratio above 1", parts,
        hashes(*(runs[name] for name in settings)),
    )  # fmt: skip


def one_pass_close(subject: Subject, runs: Runs) -> Claim:
    """Error of one pass of ASGD over that of many passes of SGD, on each test set."""
    parts: list[Quantity] = []
    for test in subject.corpus.tests:
        one, many = (final_errors(name, test, runs[name]) for name in ("one_pass", "multi_pass"))
        ratio = rate_ratio_ci(one, many, lengths_of_utterances(runs["one_pass"][0], test))
        paper = REPORTED["claims"][f"one_pass_ratio_{test}"]
        parts.append((test, paper, ratio, judge_size(ratio, (-math.inf, 1.08))))
    return _claim(
        "p1.one-pass-close", "One pass of asynchronous ASGD is very close to multi-pass SGD",
        "Section 4.3, Table 2", "error of one pass over multi-pass; at most 1.08", parts,
        hashes(runs["one_pass"], runs["multi_pass"]),
    )  # fmt: skip


def time_factor(subject: Subject, runs: Runs) -> Claim:
    """Simulated training time, multi-pass over one-pass."""
    seconds = training_seconds(runs)
    ratio = ratio_ci(seconds["multi_pass"], seconds["one_pass"])
    parts: list[Quantity] = [
        ("", REPORTED["claims"]["time_factor"], ratio, judge_size(ratio, (5.0, 8.0)))
    ]
    passes = [run.summary["passes"] for run in runs["multi_pass"]]
    return _claim(
        "p1.time-factor", "One pass of ASGD reduces the training time by a factor of 6.3",
        "Section 4.3, Table 3", "simulated time, multi-pass over one-pass; 5 to 8", parts,
        hashes(runs["one_pass"], runs["multi_pass"]),
        f"The baseline's own rule stopped it after {_listed(passes)} passes.",
    )  # fmt: skip


def average_helps(subject: Subject, runs: Runs) -> Claim:
    """After one pass, the averaged model below the iterate of the same run."""
    parts = []
    for test in subject.corpus.tests:
        name = f"{test}_frame_error"
        average, iterate = (
            _percent(runs["one_pass"], f"{name}/{model}", 1.0) for model in ("average", "iterate")
        )
        parts.append(_direction(f"{test}, average − iterate", average, iterate, "below"))
    return _claim(
        "p1.average-helps", "The averaged model is better than the plain SGD iterate",
        "Section 2.3", "test frame error (%) after one pass, difference", parts,
        hashes(runs["one_pass"]),
    )  # fmt: skip


def first_epoch(subject: Subject, runs: Runs) -> Claim:
    """After epoch 1, ASGD's development error below SGD's."""
    asgd = _percent(runs["one_pass"], DEV_AVERAGE, 1.0)
    sgd = _percent(runs["multi_pass"], DEV_ITERATE, 1.0)
    return _claim(
        "p1.first-epoch", "After the first epoch ASGD's frame error is below SGD's",
        "Figure 3", "development frame error (%) at epoch 1, ASGD − SGD",
        [_direction("", asgd, sgd, "below")], hashes(runs["one_pass"], runs["multi_pass"]),
    )  # fmt: skip


def speedup_4(subject: Subject, runs: Runs) -> Claim:
    """Throughput of four workers, over one worker and over one card without a server."""
    four = [run.summary["throughput_per_s"] for run in runs["timing_4"]]
    one = [run.summary["throughput_per_s"] for run in runs["timing_1"]]
    bare = [run.summary["bare_throughput_per_s"] for run in runs["timing_1"]]
    paper = REPORTED["claims"]["speedup_4"]
    readings = {"over one worker": ratio_ci(four, one), "over one bare card": ratio_ci(four, bare)}
    parts: list[Quantity] = [
        (label, paper, ratio, judge_prediction(ratio, paper)) for label, ratio in readings.items()
    ]
    return _claim(
        "p1.speedup-4", "Asynchronous SGD on four GPUs is 3.2 times as fast as on one",
        "Section 1", "simulated throughput, 4 workers over 1; within 10%", parts,
        hashes(runs["timing_1"], runs["timing_4"]),
        "The paper does not say what the single GPU ran: the same server with one worker, "
        "or training without a server.",
    )  # fmt: skip


def switch(subject: Subject, runs: Runs) -> Claim:
    """The running average gave way to the full average, and when."""
    epochs = [_switch_epoch(run) for run in runs["one_pass"]]
    when = mean_ci(epochs)
    verdict = judge_size(when, (0.0, 1.0)) if len(epochs) > 1 else "undecided"
    never = sum(not math.isfinite(epoch) for epoch in epochs)
    return _claim(
        "p1.switch", "Once the running average is better, the full average takes over",
        "Section 2.3", "epoch of the switch; within the one pass", [("", "holds", when, verdict)],
        hashes(runs["one_pass"]),
        f"It never happened in {never} of {len(epochs)} runs." if never else
        f"It happened at epochs {_listed(round(e, 3) for e in epochs)}.",
    )  # fmt: skip


def noise_harder(subject: Subject, runs: Runs) -> Claim:
    """Clean error below noise error, in every row of table 2."""
    parts: list[Quantity] = []
    for name, label in (("multi_pass", "multiple passes"), ("one_pass", "one pass")):
        clean, noise = (final_errors(name, test, runs[name]) for test in subject.corpus.tests)
        lengths = lengths_of_utterances(runs[name][0], "clean")
        difference = rate_difference_ci(clean, noise, lengths)
        percent = Interval(*(100 * x for x in (difference.estimate, *difference.ci95)))
        parts.append((f"{label}, clean − noise", "below 0", percent,
                      judge_direction(percent, "below")))  # fmt: skip
    return _claim(
        "p1.noise-harder", "Noisy speech has the higher error in every row",
        "Tables 1 and 2", "error (%), clean − noise", parts,
        hashes(runs["one_pass"], runs["multi_pass"]),
    )  # fmt: skip


def _claim(
    id_: str, statement: str, where: str, statistic: str, parts: Sequence[Quantity],
    runs: tuple[str, ...], note: str = "",
) -> Claim:  # fmt: skip
    """A claim of one part, or of several that must all hold; the first part is its headline."""
    _, paper, headline, _ = parts[0]
    named = tuple(Part(label, p, i.estimate, i.ci95, v) for label, p, i, v in parts)
    return Claim(
        id_, statement, where, statistic, paper, headline.estimate, headline.ci95,
        all_of(v for *_, v in parts), runs, note, named if len(named) > 1 else (),
    )  # fmt: skip


def _direction(label: str, a: np.ndarray, b: np.ndarray, side: Side) -> Quantity:
    difference = paired_difference_ci(a, b)
    return label, f"{side} 0", difference, judge_direction(difference, side)


def _size(label: str, size: Interval, band: Band) -> Quantity:
    return label, f"at most {band[1]:g}", size, judge_size(size, band)


def _percent(runs: Sequence[Run], name: str, epoch: float) -> np.ndarray:
    """A metric in % at an epoch, for each seed."""
    return 100.0 * np.array([at_epoch(run, name, epoch) for run in runs])


def _dev(subject: Subject, runs: Sequence[Run], epoch: float) -> np.ndarray:
    """Development frame error (%) of the averaged model after so many epochs of figure 2."""
    return _percent(runs, DEV_AVERAGE, epoch * PRESETS[subject.scale].subset)


def _early(subject: Subject, runs: Sequence[Run]) -> np.ndarray:
    """Mean development frame error (%) over the readings early in epoch 1, the start left out."""
    until = EARLY * PRESETS[subject.scale].subset + 1e-9
    readings = []
    for run in runs:
        epochs, values, _ = run.curve(DEV_AVERAGE)
        readings.append(100.0 * values[(epochs > 0) & (epochs <= until)].mean())
    return np.array(readings)


def _switch_epoch(run: Run) -> float:
    try:
        return float(run.curve("switch")[0][0])
    except KeyError:
        return math.inf


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


THREE = ("hand", "adapt", "search")
BOTH = ("one_pass", "multi_pass")
CLAIMS = (
    Maker("p1.search-best", THREE, search_best),
    Maker("p1.hand-early", ("hand", "search"), hand_early),
    Maker("p1.flat-after-one-pass", ("hand", "search"), flat_after_one_pass),
    Maker("p1.adapt-slow", THREE, adapt_slow),
    Maker("p1.chunk-size", tuple(map(chunk_name, CHUNK_HOURS)), chunk_size),
    Maker("p1.one-pass-close", BOTH, one_pass_close),
    Maker("p1.time-factor", BOTH, time_factor),
    Maker("p1.average-helps", ("one_pass",), average_helps),
    Maker("p1.first-epoch", BOTH, first_epoch),
    Maker("p1.speedup-4", ("timing_1", "timing_4"), speedup_4),
    Maker("p1.switch", ("one_pass",), switch),
    Maker("p1.noise-harder", BOTH, noise_harder),
)
