"""Paper 2's claims, each a statistic and a rule that gives the verdict: of training, and of speed.

Those of training are statistics over seeds and utterances; those of speed hold the simulator's
predictions against what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.judge.builders import Maker, Runs
from harness.judge.claims import relative_error, rule_at_most, rule_between, rule_near
from harness.judge.conditions import read_conditions
from harness.judge.parts import Precondition, Quantity, claim_of, side_of_zero
from harness.judge.results import Claim
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.judge.utterances import rate_difference_ci, rate_ratio_ci
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.errors import (
    error_statistic,
    gain_difference_ci,
    judge_both,
    loss_difference_ci,
    quantities_by_set,
    true_value,
)
from reproductions.paper2_ng_averaging.exhibits import speedup
from reproductions.paper2_ng_averaging.experiments import gpus
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.run_metrics import format_change, hashes, summary_value

BAND = 0.05

PAPER = REPORTED["claims"]

TIMED_32 = round(REPORTED["timings"]["total_min"][0] / REPORTED["timings"]["total_min"][-1], 2)


def speedup_16(subject: Subject, runs: Runs) -> Claim:
    """Predicted speed-up on 16 GPUs."""
    return _claim_on_speed(
        "p2.speedup-16", "16 GPUs train 9.32 times as fast as one", "Table 3",
        {"": PAPER["speedup_16"]}, runs, "timing_16",
    )  # fmt: skip


def speedup_32(subject: Subject, runs: Runs) -> Claim:
    """Predicted speed-up on 32 GPUs, against the rounded figure and the authors' timings."""
    against = {"as printed": PAPER["speedup_32"], "from the authors' timings": TIMED_32}
    return _claim_on_speed(
        "p2.speedup-32", "32 GPUs train 17 times as fast as one", "Section 5.2",
        against, runs, "timing_32",
    )  # fmt: skip


def every_20(subject: Subject, runs: Runs) -> Claim:
    """Predicted speed-up on 16 GPUs that average half as often."""
    paper = PAPER["speedup_16_every_20"]
    other = speedup(runs["other_1"], runs["other_16_every_20"]).estimate
    return _claim_on_speed(
        "p2.speedup-16-every-20", "Averaging every 20 minibatches, 16 GPUs are 10.07 times as fast",
        "Table 3", {"": paper}, runs, "timing_16_every_20",
        f" With a fixed cost of each average {other:.2f} ({format_change(other / paper - 1, 1)}): "
        "it would be a quarter of ten minibatches, so a slower minibatch is the likelier reading.",
        "The timings on up to four GPUs do not tell a slower minibatch, which is shown, from a "
        f"fixed cost of each average, with which {other:.2f} are foretold. Averaging half as often "
        "tells them apart, and no timing of it is printed but the one that is to be foretold.",
    )  # fmt: skip


def _claim_on_speed(
    id_: str, statement: str, where: str, paper: dict[str, float], runs: Runs, setting: str,
    note: str = "", undetermined: str = "",
) -> Claim:  # fmt: skip
    """One prediction, against every figure the paper gives for it."""
    ratio = speedup(runs["timing_1"], runs[setting])
    parts = [
        Quantity(label, figure, ratio, rule_near(figure, BAND), figure)
        for label, figure in paper.items()
    ]
    errors = " and ".join(
        format_change(relative_error(ratio, p).estimate, 1) for p in paper.values()
    )
    needs = ["timing_1", setting, *(["other_1", "other_16_every_20"] if note else [])]
    return claim_of(
        id_, statement, where,
        "simulated speed-up, fitted on 1, 2 and 4 GPUs only; within 5%", parts,
        hashes(*(runs[name] for name in needs)),
        f"Relative error {errors}. The interval is of simulated minibatches' scatter alone, "
        f"and says nothing of the cluster file.{note}",
        undetermined=undetermined,
    )  # fmt: skip


SPEEDUPS = (
    Maker("p2.speedup-16", ("timing_1", "timing_16"), speedup_16),
    Maker("p2.speedup-32", ("timing_1", "timing_32"), speedup_32),
    Maker(
        "p2.speedup-16-every-20",
        ("timing_1", "timing_16_every_20", "other_1", "other_16_every_20"),
        every_20,
    ),
)

CLOSE = (0.97, 1.03)

MOST_LOSS = 1.04

LOSSES = (8, 16, 32)

MINIBATCH = ("ng_16", "small_16", "ng_1")

RBM = ("rbm_1", "random_1", "rbm_32", "random_32")

SMALL_LOSS = ("ng_1", *(f"ng_{n}" for n in LOSSES), "small_1", "small_16")

CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))

SPEEDS = REPORTED["claims"]

ROUNDING = 1e-12
"""Bound on float64's rounding errors over the folds: theta - mean(r g) and mean(theta - r g) are
rounded differently."""


def ng_crucial(subject: Subject, runs: Runs) -> Claim:
    """SGD loses more from 1 to 16 workers than NG-SGD."""
    settings = ("sgd_16", "sgd_1", "ng_16", "ng_1")
    every = error_statistic(subject, runs, settings, loss_difference_ci)
    true = true_value(subject, runs, settings, loss_difference_ci)
    words = side_of_zero("loss of SGD − loss of NG-SGD", every, "above", true)
    parts = judge_both(words, subject, runs, settings, loss_difference_ci)
    parts += quantities_by_set(subject, runs, settings, loss_difference_ci)
    for name, label in (("sgd", "SGD"), ("ng", "NG-SGD")):
        loss = error_statistic(subject, runs, (f"{name}_16", f"{name}_1"), rate_ratio_ci)
        parts.append(Quantity(f"{label}, 16 over 1 GPU", None, loss))
    return _claim(
        "p2.ng-crucial", "NG-SGD is crucial to training with parameter averaging", "Table 6",
        "relative rise of the error of words and of frames, 1 to 16 GPUs, SGD − NG-SGD; above 0",
        parts, runs, settings,
    )  # fmt: skip


def small_loss(subject: Subject, runs: Runs) -> Claim:
    """Parallel training with NG-SGD and RBM costs at most 4%, with either minibatch."""
    parts: list[Quantity] = []
    # The smaller minibatch makes four times the averages, so it is nearer to the paper's run.
    cells = [("256", "small_16", "small_1"), *(("1024", f"ng_{n}", "ng_1") for n in LOSSES)]
    for size, many, one in cells:
        true = true_value(subject, runs, (many, one), rate_ratio_ci)
        ratio = error_statistic(subject, runs, (many, one), rate_ratio_ci)
        label = f"{gpus(int(many.partition('_')[2]))}, minibatch {size}"
        words = Quantity(label, round(true, 3), ratio, rule_at_most(MOST_LOSS), true)
        both = judge_both(words, subject, runs, (many, one), rate_ratio_ci)
        parts += [replace(each, measure=f"{each.measure}, {size}") for each in both]
    enough = [
        CONDITIONS.measure(
            "many-averages",
            mean_ci([summary_value(run, "folds") for run in runs[name]]),
            f"minibatch {size}",
        )
        for size, name in (("256", "small_16"), ("1024", "ng_16"))
    ]
    return _claim(
        "p2.small-loss", "With NG-SGD and RBM, parallel training loses little", "Tables 1 and 4",
        "error with many GPUs over that with one; at most 1.04", parts, runs, SMALL_LOSS,
        "Sizes are the paper's; ours keep their proportion.",
        enough,
    )  # fmt: skip


def _regime(subject: Subject, runs: Runs, settings: tuple[str, str], of: str) -> Precondition:
    """The paper's regime, in which averaging costs little (its tables 1, 2 and 4: 1 to 3%)."""
    loss = error_statistic(subject, runs, settings, rate_ratio_ci)
    return CONDITIONS.measure("averaging-costs-little", loss, of)


def _parallel_pretrained(subject: Subject, runs: Runs) -> Precondition:
    """The regime of the claims on pretraining."""
    return _regime(subject, runs, ("rbm_32", "rbm_1"), "RBM, 32 GPUs")


def rbm_helps(subject: Subject, runs: Runs) -> Claim:
    """RBM below random, on one worker and on 32."""
    parts: list[Quantity] = []
    for n in (1, 32):
        settings = (f"rbm_{n}", f"random_{n}")
        every = error_statistic(subject, runs, settings, rate_difference_ci)
        true = 100.0 * true_value(subject, runs, settings, rate_difference_ci)
        words = side_of_zero(f"RBM − random, {gpus(n)}", 100.0 * every, "below", true)
        parts += judge_both(words, subject, runs, settings, rate_difference_ci, 100.0)
        parts += quantities_by_set(
            subject, runs, settings, rate_difference_ci, 100.0, f"{gpus(n)}, "
        )
    return _claim(
        "p2.rbm-helps", "RBM pretraining is better than random initialisation", "Table 2",
        "error (%), difference, of words and of frames", parts, runs, RBM, "",
        (_parallel_pretrained(subject, runs),),
    )  # fmt: skip


def rbm_more(subject: Subject, runs: Runs) -> Claim:
    """RBM gains more on 32 workers than on one."""
    settings = ("random_32", "rbm_32", "random_1", "rbm_1")
    every = error_statistic(subject, runs, settings, gain_difference_ci)
    true = 100.0 * true_value(subject, runs, settings, gain_difference_ci)
    words = side_of_zero("gain at 32 − gain at 1", 100.0 * every, "above", true)
    parts = judge_both(words, subject, runs, settings, gain_difference_ci, 100.0)
    parts += quantities_by_set(subject, runs, settings, gain_difference_ci, 100.0)
    return _claim(
        "p2.rbm-more-when-parallel", "Without RBM, parallel training degrades more",
        "Section 5.3, Table 2", "gain of RBM in error (%) of words and of frames, 32 GPUs − 1 GPU",
        parts, runs, settings,
        "The paper's text has 0.3 and 0.9 points; its Table 2 gives 0.3 and 1.1, which is used.",
        (_parallel_pretrained(subject, runs),),
    )  # fmt: skip


def frequency(subject: Subject, runs: Runs) -> Claim:
    """Averaging every 10 is better and slower than every 20."""
    settings = ("ng_16", "every_20")
    every = error_statistic(subject, runs, settings, rate_difference_ci)
    true = 100.0 * true_value(subject, runs, settings, rate_difference_ci)
    words = side_of_zero("error (%), every 10 − every 20", 100.0 * every, "below", true)
    parts = judge_both(words, subject, runs, settings, rate_difference_ci, 100.0)
    parts += quantities_by_set(subject, runs, settings, rate_difference_ci, 100.0)
    often, rarely = (speedup(runs["timing_1"], runs[f"timing_16{x}"]) for x in ("", "_every_20"))
    printed = SPEEDS["speedup_16"] - SPEEDS["speedup_16_every_20"]
    faster = side_of_zero("speed-up, every 10 − every 20", often - rarely, "below", printed)
    parts.append(faster)
    return _claim(
        "p2.frequency", "Averaging more often is better in accuracy and worse in speed", "Table 3",
        "differences at 16 GPUs", parts, runs,
        (*settings, "timing_1", "timing_16", "timing_16_every_20"),
    )  # fmt: skip


def minibatch(subject: Subject, runs: Runs) -> Claim:
    """The large minibatch at or below the small one at 16 workers."""
    settings = ("ng_16", "small_16")
    every = error_statistic(subject, runs, settings, rate_difference_ci)
    true = 100.0 * true_value(subject, runs, settings, rate_difference_ci)
    words = side_of_zero("1024 − 256", 100.0 * every, "below", true)
    parts = judge_both(words, subject, runs, settings, rate_difference_ci, 100.0)
    parts += quantities_by_set(subject, runs, settings, rate_difference_ci, 100.0)
    averages = mean_ci([summary_value(run, "folds") for run in runs["ng_16"]])
    enough = CONDITIONS.measure("averages", averages)
    little = _regime(subject, runs, ("ng_16", "ng_1"), "16 GPUs")
    return _claim(
        "p2.minibatch", "A minibatch of 1024 is no worse than one of 256", "Table 4",
        "error (%) of words and of frames at 16 GPUs, difference; wholly below 0", parts, runs,
        MINIBATCH,
        "Sizes are the paper's; ours keep their proportion. Each has its own rate. The smaller one "
        "has four times the averages: where these are few, that is what is compared.",
        (enough, little),
    )  # fmt: skip


def schedules_close(subject: Subject, runs: Runs) -> Claim:
    """Newbob within 3% of exponential at 16 workers."""
    settings = ("newbob_16", "exponential_16")
    ratio = error_statistic(subject, runs, settings, rate_ratio_ci)
    true = true_value(subject, runs, settings, rate_ratio_ci)
    label = "newbob over exponential"
    words = Quantity(label, round(true, 3), ratio, rule_between(*CLOSE), true)
    parts = judge_both(words, subject, runs, settings, rate_ratio_ci)
    parts += quantities_by_set(subject, runs, settings, rate_ratio_ci)
    passes = ([summary_value(run, "passes") for run in runs[name]] for name in settings)
    alike = CONDITIONS.measure("same-epochs", ratio_ci(*passes))
    return _claim(
        "p2.schedules-close", "Both schedules give similar results", "Table 5",
        "error of words and of frames at 16 GPUs, newbob over exponential; 0.97 to 1.03",
        parts, runs, settings,
        "Newbob ends by its own rule. As in the paper (section 5.6), the exponential schedule has "
        "as many epochs as newbob took; how many was found on development data. Ours keeps "
        "newbob's last pass, which gained next to nothing; Kaldi's script goes back by one if it "
        "made things worse.", (alike,),
    )  # fmt: skip


def lr_scaling(subject: Subject, runs: Runs) -> Claim:
    """The rate of one worker times 16 is better than the rate of one worker."""
    settings = ("scaled", "unscaled")
    every = error_statistic(subject, runs, settings, rate_difference_ci)
    words = side_of_zero("scaled − unscaled", 100.0 * every, "below")
    parts = judge_both(words, subject, runs, settings, rate_difference_ci, 100.0)
    parts += quantities_by_set(subject, runs, settings, rate_difference_ci, 100.0)
    return _claim(
        "p2.lr-scaling", "The initial rate is to grow with the number of workers", "Section 5.6",
        "error (%) of words and of frames at 16 GPUs, difference", parts, runs, settings,
        "Both rates follow from the one that was best on one GPU.",
    )  # fmt: skip


def equivalence(subject: Subject, runs: Runs) -> Claim:
    """Model averaging after every update is gradient averaging."""
    del subject
    group = runs["equivalence"]
    asked, moved = group[0].config, summary_value(group[0], "largest_move")
    apart = Interval.exact(summary_value(group[0], "largest_difference"))
    parts = [Quantity("", "equal", apart, rule_between(0.0, ROUNDING), 0.0)]
    return claim_of(
        "p2.equivalence",
        "Averaging models after each weight update is equivalent to gradient averaging",
        "Section 3",
        f"largest difference of a parameter after {asked['folds']} folds of {asked['workers']} "
        f"workers, float64; at most {ROUNDING:g}",
        parts, hashes(group),
        f"The same parameters moved by up to {moved:.2g}.",
        cannot_fail="it is an identity of the two updates",
    )  # fmt: skip


def _claim(
    id_: str, statement: str, where: str, statistic: str, parts: Sequence[Quantity], runs: Runs,
    settings: Sequence[str], note: str = "", presumes: Sequence[Precondition] = (),
) -> Claim:  # fmt: skip
    """A claim of parts that rest on these settings."""
    behind = hashes(*(runs[name] for name in settings))
    return claim_of(id_, statement, where, statistic, parts, behind, note, presumes=presumes)


CLAIMS = (
    Maker("p2.ng-crucial", ("sgd_1", "sgd_16", "ng_1", "ng_16"), ng_crucial),
    Maker("p2.small-loss", SMALL_LOSS, small_loss),
    Maker("p2.rbm-helps", RBM, rbm_helps),
    Maker("p2.rbm-more-when-parallel", RBM, rbm_more),
    Maker(
        "p2.frequency",
        ("ng_16", "every_20", "timing_1", "timing_16", "timing_16_every_20"),
        frequency,
    ),
    Maker("p2.minibatch", MINIBATCH, minibatch),
    Maker("p2.schedules-close", ("newbob_16", "exponential_16"), schedules_close),
    *SPEEDUPS,
    Maker("p2.equivalence", ("equivalence",), equivalence),
    Maker("p2.lr-scaling", ("scaled", "unscaled"), lr_scaling),
)
