"""Paper 1's claims, each a statistic over seeds and a rule that gives the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.judge.builders import UNKNOWN, Runs, unless_missing
from harness.judge.claims import (
    BELOW,
    rule_above,
    rule_at_least,
    rule_at_most,
    rule_between,
    rule_near,
)
from harness.judge.conditions import read_conditions
from harness.judge.parts import Precondition, Quantity, side_of_zero
from harness.judge.statistics import (
    Interval,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
)
from harness.judge.utterances import rate_difference_ci, rate_ratio_ci, seed_rates
from harness.store import Run
from reproductions.machines import judge_machines
from reproductions.makers import Claims, Judged
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.exhibits import (
    BOTH,
    DEV_AVERAGE,
    DEV_ITERATE,
    OVER,
    THREE,
    final_errors,
    training_seconds,
)
from reproductions.paper1_async_asgd.experiments import (
    CHUNK_HOURS,
    PRESETS,
    REPORTED,
    chunk_name,
)
from reproductions.run_metrics import (
    errors_of_utterances,
    exponential,
    lengths_of_utterances,
    summary_value,
    value_at_epoch,
)

EARLY = 0.2
"""The share of epoch 1 that counts as early."""
UNDER_WAY = 0.1
"""The share of epoch 1 after which curves have left the untrained network's error."""
CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))
CLAIMS = Claims()


@CLAIMS.declare(
    "p1.search-best", THREE, "ASGD-search performs the highest frame accuracy",
    "Section 4.1, Figure 2", "final frame error (%), difference",
)  # fmt: skip
def search_best(subject: Subject, runs: Runs) -> Judged:
    """Final frame error of search below both others."""
    final = {name: _dev(subject, runs[name], 2.0) for name in THREE}
    for other in ("hand", "adapt"):
        yield _direction(f"search − {other}", final["search"], final[other], "below")


@CLAIMS.declare(
    "p1.hand-early", ("hand", "search"),
    "For the initial update iterations ASGD-hand has the lower frame error",
    "Section 4.1, Figure 2",
    f"frame error (%), mean over the first {EARLY:.0%} of epoch 1, difference",
    undetermined="The paper prints no first rate of hand, and that is what decides its early "
    "curve: rates that end alike begin on either side of search.",
)  # fmt: skip
def hand_early(subject: Subject, runs: Runs) -> Judged:
    """Early in epoch 1, hand below search."""
    early = {name: _early(subject, runs[name]) for name in ("hand", "search")}
    yield _direction("hand − search", early["hand"], early["search"], "below")
    fewest = min(len(_early_readings(subject, run)) for name in early for run in runs[name])
    yield CONDITIONS.measure("early-readings", Interval.exact(fewest))


@CLAIMS.declare(
    "p1.flat-after-one-pass", THREE, "For hand and search the curve flattens out after one pass",
    "Section 4.1, Figure 2",
    f"drop in frame error, epoch 2 over epoch 1 from {UNDER_WAY:.0%} of the pass on; at most 0.15",
    undetermined="The paper gives no figure for “flat”, and the answer goes by where in the "
    "first epoch the drop is counted from.",
)  # fmt: skip
def flat_after_one_pass(subject: Subject, runs: Runs) -> Judged:
    """The drop in epoch 2 is a small part of the drop in epoch 1, its first tenth left out."""
    at = {
        name: [_dev(subject, runs[name], epoch) for epoch in (0.0, UNDER_WAY, 1.0, 2.0)]
        for name in THREE
    }

    def later_share(name: str, since: int) -> Interval:
        one, two = at[name][2:]
        return ratio_ci(one - two, at[name][since] - one)

    for name in ("hand", "search"):
        yield Quantity(name, "at most 0.15", later_share(name, 1), rule_at_most(0.15))
    yield Quantity("adapt, which the paper calls not flat", None, later_share("adapt", 1))
    for name in THREE:
        label = f"{name}, counted from the untrained network"
        yield Quantity(label, None, later_share(name, 0))


@CLAIMS.declare(
    "p1.adapt-slow", THREE, "ASGD-adapt improves slowly: it still falls when the others are flat",
    "Section 4.1, Figure 2", "frame error (%), differences",
)  # fmt: skip
def adapt_slow(subject: Subject, runs: Runs) -> Judged:
    """Adapt still falls in epoch 2, more than the others; whether it ends last is shown."""
    final = {name: _dev(subject, runs[name], 2.0) for name in THREE}
    drop = {name: _dev(subject, runs[name], 1.0) - final[name] for name in THREE}
    larger, worse = (np.maximum(of["hand"], of["search"]) for of in (drop, final))
    yield _direction("drop of adapt in epoch 2", drop["adapt"], 0.0 * drop["adapt"], "above")
    label = "drop in epoch 2, adapt − larger of the others"
    yield _direction(label, drop["adapt"], larger, "above")
    # Without a rule, so it is shown and not judged.
    difference = paired_difference_ci(final["adapt"], worse)
    yield Quantity("final, adapt − larger of the others", None, difference)


CHUNKS = tuple(map(chunk_name, CHUNK_HOURS))


@CLAIMS.declare(
    "p1.chunk-size", CHUNKS, "The error rises with the size of the data chunk",
    "Section 4.2, Table 1",
    "rank correlation of the error of characters and of frames with chunk size; ratio above 1",
)  # fmt: skip
def chunk_size(subject: Subject, runs: Runs) -> Judged:
    """Error rises with chunk size, and by how much from the smallest to the largest."""
    smallest, largest = runs[CHUNKS[0]], runs[CHUNKS[-1]]
    rule = rule_above(1.0)
    for test in subject.corpus.tests:
        order = _order(test, [runs[name] for name in CHUNKS])
        words = side_of_zero(f"{test}, order, characters", order, "above")
        ratio = _error_ratio(test, ("one_pass", largest), ("one_pass", smallest))
        paper = REPORTED["claims"].get(f"chunk_25_over_1_{test}")
        frames = np.stack([_frames("one_pass", test, runs[name]) for name in CHUNKS], axis=1)
        by_frames = rank_correlation_ci(CHUNK_HOURS, frames)
        label, of_frames = f"{test}, 25 h over 1 h", ratio_ci(frames[:, -1], frames[:, 0])
        yield replace(words, measure="characters")
        yield Quantity(f"{label}, characters", paper, ratio, rule, paper, "characters")
        words = side_of_zero(f"{test}, order, frames", by_frames, "above")
        yield replace(words, measure="frames")
        yield Quantity(f"{label}, frames", None, of_frames, rule, measure="frames")
    yield _moves(smallest)
    yield _falls(smallest, largest)


def _moves(runs: Sequence[Run]) -> Precondition:
    """That the search changes the rate: else chunks of all sizes train alike."""
    octaves = mean_ci([_octaves(run) for run in runs])
    return CONDITIONS.measure("search-moves", exponential(octaves))


def _falls(small: Sequence[Run], large: Sequence[Run]) -> Precondition:
    """That smaller chunks lower the rate at least as far, from which the paper has their gain."""
    further = [
        _fall_in_octaves(small_run) - _fall_in_octaves(large_run)
        for small_run, large_run in zip(small, large, strict=True)
    ]
    return CONDITIONS.measure("search-falls-further", exponential(mean_ci(further)))


def _octaves(run: Run) -> float:
    return float(np.abs(_rate_octaves(run)).max())


def _fall_in_octaves(run: Run) -> float:
    return -float(_rate_octaves(run)[-1])


@unless_missing(np.array([math.nan]))
def _rate_octaves(run: Run) -> np.ndarray:
    """The rates of the first pass over the first of them."""
    epochs, rates, _ = run.curve("rate")
    return np.log2(rates[epochs <= 1.0] / rates[0])


@unless_missing(UNKNOWN)
def _order(test: str, chunks: Sequence[Sequence[Run]]) -> Interval:
    """Rank correlation of the error of one pass with the size of its chunk."""
    lengths = lengths_of_utterances(chunks[0], test)
    errors = [final_errors("one_pass", test, group) for group in chunks]
    rates = np.stack([seed_rates(counts, lengths) for counts in errors], axis=1)
    return rank_correlation_ci(CHUNK_HOURS, rates)


Method = tuple[str, Sequence[Run]]
"""A method's name, as of `final_errors`, and its runs."""


@unless_missing(UNKNOWN)
def _error_ratio(test: str, over: Method, under: Method) -> Interval:
    """Final error of one group of runs over another's."""
    a, b = (final_errors(name, test, group) for name, group in (over, under))
    return rate_ratio_ci(a, b, lengths_of_utterances(under[1], test))


@CLAIMS.declare(
    "p1.one-pass-close", (*BOTH, "multi_pass_half"),
    "One pass of asynchronous ASGD is very close to multi-pass SGD", "Section 4.3, Table 2",
    "error of characters and of frames, one pass over multi-pass; at most 1.08",
)  # fmt: skip
def one_pass_close(subject: Subject, runs: Runs) -> Judged:
    """Error of one pass of ASGD over that of many passes of SGD, on each test set."""
    rule = rule_at_most(1.08)
    for test in subject.corpus.tests:
        ratio = _error_ratio(test, *((name, runs[name]) for name in BOTH))
        paper = REPORTED["claims"].get(f"one_pass_ratio_{test}")
        frames = ratio_ci(*(_frames(name, test, runs[name]) for name in BOTH))
        yield Quantity(f"{test}, characters", paper, ratio, rule, paper, "characters")
        yield Quantity(f"{test}, frames", None, frames, rule, measure="frames")
    yield _no_overfit(runs)
    for test in subject.corpus.tests:
        yield _data_no_limit(test, runs)


def _no_overfit(runs: Runs) -> Precondition:
    """That the baseline has learned what its data hold: it knows held-out speech about as well."""
    held_out, training = (
        np.array([summary_value(run, name) for run in runs["multi_pass"]])
        for name in ("dev_loss/iterate", "train_loss")
    )
    return CONDITIONS.measure("loss-gap", ratio_ci(held_out - training, held_out))


def _data_no_limit(test: str, runs: Runs) -> Precondition:
    """That doubling the data hardly moves the baseline: from half of them to all of them."""
    half, full = (("multi_pass", runs[name]) for name in ("multi_pass_half", "multi_pass"))
    return CONDITIONS.measure("data-no-limit", _error_ratio(test, half, full), test)


@CLAIMS.declare(
    "p1.time-factor", BOTH, "One pass of ASGD reduces the training time by a factor of 6.3",
    "Section 4.3, Table 3", "simulated time, multi-pass over one-pass; 5 to 8",
)  # fmt: skip
def time_factor(subject: Subject, runs: Runs) -> Judged:
    """Simulated training time, multi-pass over one-pass."""
    seconds = training_seconds(runs)
    ratio = ratio_ci(seconds["multi_pass"], seconds["one_pass"])
    paper = REPORTED["claims"]["time_factor"]
    yield Quantity("", paper, ratio, rule_between(5.0, 8.0), paper)
    stopped = [summary_value(run, "stopped") for run in runs["multi_pass"]]
    yield CONDITIONS.measure("baseline-stopped", Interval.exact(float(np.mean(stopped))))
    passes = _join_values(summary_value(run, "passes") for run in runs["multi_pass"])
    if all(stopped) and not math.isnan(sum(stopped)):
        yield f"The baseline's own rule stopped it after {passes} passes."
    elif not math.isnan(sum(stopped)):
        yield f"Our limit ended the baseline ({passes} passes) before its own rule did."


@CLAIMS.declare(
    "p1.average-helps", ("one_pass",), "The averaged model is better than the plain SGD iterate",
    "Section 2.3", "test error (%) after one pass, difference, of characters and of frames",
)  # fmt: skip
def average_helps(subject: Subject, runs: Runs) -> Judged:
    """After one pass, the averaged model below the iterate of the same run."""
    group = runs["one_pass"]
    for test in subject.corpus.tests:
        difference = _average_minus_iterate(test, group)
        label = f"{test}, average − iterate"
        words = side_of_zero(f"{label}, characters", 100.0 * difference, "below")
        average, iterate = (
            _percent(group, f"{test}_frame_error/{model}", 1.0) for model in ("average", "iterate")
        )
        frames = _direction(f"{label}, frames", average, iterate, "below")
        yield replace(words, measure="characters")
        yield replace(frames, measure="frames")


@unless_missing(UNKNOWN)
def _average_minus_iterate(test: str, group: Sequence[Run]) -> Interval:
    """Error of the average less that of the iterate after one pass."""
    average, iterate = (
        errors_of_utterances(group, f"{test}/{model}/0") for model in ("average", "iterate")
    )
    return rate_difference_ci(average, iterate, lengths_of_utterances(group, test))


@CLAIMS.declare(
    "p1.first-epoch", BOTH, "After the first epoch ASGD's frame error is below SGD's", "Figure 3",
    "development frame error (%) at epoch 1, ASGD − SGD",
)  # fmt: skip
def first_epoch(subject: Subject, runs: Runs) -> Judged:
    """After epoch 1, ASGD's development error below SGD's."""
    asgd = _percent(runs["one_pass"], DEV_AVERAGE, 1.0)
    sgd = _percent(runs["multi_pass"], DEV_ITERATE, 1.0)
    yield _direction("", asgd, sgd, "below")


@CLAIMS.declare(
    "p1.speedup-4", ("machines",),
    "Asynchronous SGD on four GPUs is 3.2 times as fast as on one", "Section 1",
    "simulated throughput of 4 workers over 1 and over a bare card, on all servers on which one "
    "pass takes 14.3 h and many 91.2 h; within 10%",
    "Median and range of the servers of p1.machines. The 3.2 is of an earlier system, of which "
    "neither minibatch nor single GPU (with or without a server) is printed.",
)  # fmt: skip
def speedup_4(subject: Subject, runs: Runs) -> Judged:
    """Throughput of four workers on the allowed servers."""
    paper = REPORTED["claims"]["speedup_4"]
    for over in OVER:  # two readings of the statement
        rule = rule_near(paper)
        yield from judge_machines(runs["machines"][0], over, paper, rule, measure=over)


@CLAIMS.declare(
    "p1.switch", ("one_pass",), "Once the running average is better, the full average takes over",
    "Section 2.3", "share of seeds whose average switched within the pass",
    cannot_fail="an average of the recent iterates is sooner or later better on held-out "
    "frames than the last one",
)  # fmt: skip
def switch(subject: Subject, runs: Runs) -> Judged:
    """The running average gave way to the full average, and when."""
    epochs = [_switch_epoch(run) for run in runs["one_pass"]]
    happened = mean_ci([math.nan if math.isnan(e) else float(e <= 1.0) for e in epochs])
    listed = _join_values("never" if math.isinf(e) else f"{e:.3g}" for e in epochs)
    yield Quantity("", "holds", happened, rule_at_least(1.0))
    yield f"Epoch of the switch, seed by seed: {listed}."


ROWS = {
    "multi_pass": "multiple passes",
    "one_pass": "one pass, chunk 1 h",
    **{chunk_name(h): f"one pass, chunk {h} h" for h in CHUNK_HOURS[1:]},
}


@CLAIMS.declare(
    "p1.noise-harder", tuple(ROWS), "Noisy speech has the higher error in every row",
    "Tables 1 and 2", "error (%) of characters and of frames, clean − noise",
    cannot_fail="the noise set is the clean set with noise added",
)  # fmt: skip
def noise_harder(subject: Subject, runs: Runs) -> Judged:
    """Clean error below noise error, in every row of tables 1 and 2."""
    if not {"clean", "noise"} <= set(subject.corpus.tests):
        yield Quantity("", "below 0", Interval(math.nan), BELOW)
        yield f"The corpus {subject.corpus.name} has no clean and noisy test sets."
        return
    for name, label in ROWS.items():
        yield from _clean_against_noise(name, label, runs[name])


def _clean_against_noise(name: str, label: str, group: Sequence[Run]) -> list[Quantity]:
    method = "multi_pass" if name == "multi_pass" else "one_pass"
    difference = _clean_minus_noise(method, group)
    words = side_of_zero(f"{label}, clean − noise, characters", 100.0 * difference, "below")
    clean, noise = (100.0 * _frames(method, test, group) for test in ("clean", "noise"))
    frames = _direction(f"{label}, clean − noise, frames", clean, noise, "below")
    return [replace(words, measure="characters"), replace(frames, measure="frames")]


@unless_missing(UNKNOWN)
def _clean_minus_noise(method: str, group: Sequence[Run]) -> Interval:
    clean, noise = (final_errors(method, test, group) for test in ("clean", "noise"))
    return rate_difference_ci(clean, noise, lengths_of_utterances(group, "clean"))


def _direction(label: str, a: np.ndarray, b: np.ndarray, side: str) -> Quantity:
    return side_of_zero(label, paired_difference_ci(a, b), side)


def _percent(runs: Sequence[Run], name: str, epoch: float) -> np.ndarray:
    """A metric in % at an epoch, for each seed."""
    return 100.0 * np.array([value_at_epoch(run, name, epoch) for run in runs])


def _frames(method: str, test: str, runs: Sequence[Run]) -> np.ndarray:
    """Frame error of a method's deployed model on a test set, for each seed."""
    model, at = ("iterate", math.inf) if method == "multi_pass" else ("average", 1.0)
    name = f"{test}_frame_error/{model}"
    return np.array([_last_until(run, name, at) for run in runs])


@unless_missing(math.nan)
def _last_until(run: Run, name: str, epoch: float) -> float:
    """A metric's last reading up to an epoch."""
    epochs, values, _ = run.curve(name)
    return float(values[epochs <= epoch + 1e-9][-1])


def _dev(subject: Subject, runs: Sequence[Run], epoch: float) -> np.ndarray:
    """Development frame error (%) of the averaged model at an epoch of figure 2."""
    return _percent(runs, DEV_AVERAGE, epoch * PRESETS[subject.scale].subset)


def _early(subject: Subject, runs: Sequence[Run]) -> np.ndarray:
    """Mean development frame error (%) over the readings early in epoch 1, for each seed."""
    return np.array([100.0 * _early_readings(subject, run).mean() for run in runs])


@unless_missing(np.array([math.nan]))
def _early_readings(subject: Subject, run: Run) -> np.ndarray:
    """The average's frame errors early in epoch 1, the start left out."""
    epochs, values, _ = run.curve(DEV_AVERAGE)
    until = EARLY * PRESETS[subject.scale].subset + 1e-9
    return values[(epochs > 0) & (epochs <= until)]


@unless_missing(math.nan)
def _switch_epoch(run: Run) -> float:
    try:
        return float(run.curve("switch")[0][0])
    except KeyError:
        return math.inf


def _join_values(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
