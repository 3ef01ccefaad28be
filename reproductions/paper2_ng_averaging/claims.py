"""Paper 2's claims, each a statistic and a rule that gives the verdict: of training, and of speed.

Those of training are statistics over seeds and utterances; those of speed hold the simulator's
predictions against what is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from harness.judge.builders import Runs
from harness.judge.claims import Rule, relative_error, rule_near
from harness.judge.conditions import read_conditions
from harness.judge.parts import Precondition, Quantity, side_of_zero
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.judge.utterances import rate_difference_ci, rate_ratio_ci
from reproductions.makers import Claims, Judged
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.errors import (
    error_statistic,
    gain_difference_ci,
    judge_errors,
    loss_difference_ci,
)
from reproductions.paper2_ng_averaging.exhibits import speedup
from reproductions.paper2_ng_averaging.experiments import gpus, number_of
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.run_metrics import format_change, summary_value

BAND = 0.05
PRINTED = REPORTED["claims"]
TIMED_32 = round(REPORTED["timings"]["total_min"][0] / REPORTED["timings"]["total_min"][-1], 2)
MOST_LOSS = 1.04
CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))
CLAIMS = Claims()
ROUNDING = 1e-12
"""Bound on float64's rounding errors over the folds: theta - mean(r g) and mean(theta - r g) are
rounded differently."""
NG = ("sgd_16", "sgd_1", "ng_16", "ng_1")


@CLAIMS.declare(
    "p2.ng-crucial", NG, "NG-SGD is crucial to training with parameter averaging", "Table 6",
    "relative rise of the error of words and of frames, 1 to 16 GPUs, SGD − NG-SGD; above 0",
)  # fmt: skip
def ng_crucial(subject: Subject, runs: Runs) -> Judged:
    """SGD loses more from 1 to 16 workers than NG-SGD."""
    label = "loss of SGD − loss of NG-SGD"
    yield from judge_errors(subject, runs, NG, loss_difference_ci, label, "above")
    for name, label in (("sgd", "SGD"), ("ng", "NG-SGD")):
        loss = error_statistic(subject, runs, (f"{name}_16", f"{name}_1"), rate_ratio_ci)
        yield Quantity(f"{label}, 16 over 1 GPU", None, loss)
    parity = error_statistic(subject, runs, ("sgd_1", "ng_1"), rate_ratio_ci)
    yield CONDITIONS.measure("parity-on-one", parity)


CELLS = {
    "p2.small-loss": ("ng_16", "ng_1"),
    "p2.small-loss-256": ("small_16", "small_1"),
    "p2.small-loss-8": ("ng_8", "ng_1"),
    "p2.small-loss-32": ("ng_32", "ng_1"),
}
"""Cells of tables 1 and 4, each a claim, as each has its own number of averages."""

for _id, (_many, _one) in CELLS.items():
    _minibatch = 256 if _many.startswith("small") else 1024

    @CLAIMS.declare(
        _id, (_many, _one),
        f"With NG-SGD and RBM, {gpus(number_of(_many))} lose little, minibatch {_minibatch}",
        "Tables 1 and 4", "error with many GPUs over that with one; at most 1.04",
        "Sizes are the paper's; ours keep their proportion.",
    )  # fmt: skip
    def small_loss(
        subject: Subject, runs: Runs, settings: tuple[str, str] = (_many, _one)
    ) -> Judged:
        """Parallel training with NG-SGD and RBM costs at most 4%."""
        many, _ = settings
        label, rule = f"{gpus(number_of(many))} over one", Rule(high=MOST_LOSS)
        yield from judge_errors(subject, runs, settings, rate_ratio_ci, label, rule)
        folds = mean_ci([summary_value(run, "folds") for run in runs[many]])
        yield CONDITIONS.measure("many-averages", folds)


def _regime(subject: Subject, runs: Runs, settings: tuple[str, str], of: str) -> Precondition:
    """The paper's regime, in which averaging costs little (its tables 1, 2 and 4: 1 to 3%)."""
    loss = error_statistic(subject, runs, settings, rate_ratio_ci)
    return CONDITIONS.measure("averaging-costs-little", loss, of)


PRETRAINED = ("rbm_32", "rbm_1"), "RBM, 32 GPUs"
"""The regime of the claims on pretraining."""


@CLAIMS.declare(
    "p2.rbm-helps", ("rbm_1", "random_1", "rbm_32", "random_32"),
    "RBM pretraining is better than random initialisation", "Table 2",
    "error (%), difference, of words and of frames",
)  # fmt: skip
def rbm_helps(subject: Subject, runs: Runs) -> Judged:
    """RBM below random, on one worker and on 32."""
    for n in (1, 32):
        settings, label = (f"rbm_{n}", f"random_{n}"), f"RBM − random, {gpus(n)}"
        yield from judge_errors(
            subject, runs, settings, rate_difference_ci, label, "below", f"{gpus(n)}, "
        )
    yield _regime(subject, runs, *PRETRAINED)


GAINS = ("random_32", "rbm_32", "random_1", "rbm_1")


@CLAIMS.declare(
    "p2.rbm-more-when-parallel", GAINS, "Without RBM, parallel training degrades more",
    "Section 5.3, Table 2", "gain of RBM in error (%) of words and of frames, 32 GPUs − 1 GPU",
    "The paper's text has 0.3 and 0.9 points; its Table 2 gives 0.3 and 1.1, which is used.",
)  # fmt: skip
def rbm_more(subject: Subject, runs: Runs) -> Judged:
    """RBM gains more on 32 workers than on one."""
    label = "gain at 32 − gain at 1"
    yield from judge_errors(subject, runs, GAINS, gain_difference_ci, label, "above")
    yield _regime(subject, runs, *PRETRAINED)


@CLAIMS.declare(
    "p2.frequency",
    ("scaled", "scaled_20", "ng_16", "every_20", "timing_1", "timing_16", "timing_16_every_20"),
    "Averaging more often is better in accuracy and worse in speed", "Table 3",
    "differences at 16 GPUs, error in %",
    "The paper's rule: 16 times the first rate of one GPU, on both sides. Own rates are searched.",
)  # fmt: skip
def frequency(subject: Subject, runs: Runs) -> Judged:
    """Averaging every 10 is better and slower than every 20."""
    rules = {"paper's rate rule": ("scaled", "scaled_20"), "own rates": ("ng_16", "every_20")}
    for rule, settings in rules.items():
        label = f"{rule}, every 10 − every 20"
        yield from judge_errors(
            subject, runs, settings, rate_difference_ci, label, "below", f"{rule}, "
        )
    often, rarely = (speedup(runs["timing_1"], runs[f"timing_16{x}"]) for x in ("", "_every_20"))
    printed = PRINTED["speedup_16"] - PRINTED["speedup_16_every_20"]
    yield side_of_zero("speed-up, every 10 − every 20", often - rarely, "below", printed)


@CLAIMS.declare(
    "p2.minibatch", ("ng_16", "small_16", "ng_1", "small_1"),
    "A minibatch of 1024 is no worse than one of 256", "Table 4",
    "error (%) of words and of frames, difference; wholly below 0",
    "Sizes are the paper's; ours keep their proportion. Each has its own rate. On 16 GPUs the "
    "smaller one has four times the averages: where these are few, that is what is compared.",
)  # fmt: skip
def minibatch(subject: Subject, runs: Runs) -> Judged:
    """The large minibatch at or below the small one, on 16 workers and on one."""
    for n in (16, 1):
        settings, label = (f"ng_{n}", f"small_{n}"), f"1024 − 256, {gpus(n)}"
        yield from judge_errors(
            subject, runs, settings, rate_difference_ci, label, "below", f"{gpus(n)}, "
        )
    averages = mean_ci([summary_value(run, "folds") for run in runs["ng_16"]])
    yield CONDITIONS.measure("averages", averages)
    yield _regime(subject, runs, ("ng_16", "ng_1"), "16 GPUs")


SCHEDULES = ("newbob_16", "exponential_16")


@CLAIMS.declare(
    "p2.schedules-close", SCHEDULES, "Both schedules give similar results", "Table 5",
    "error of words and of frames at 16 GPUs, newbob over exponential; 0.97 to 1.03",
    "Newbob ends by its own rule. As in the paper (section 5.6), the exponential schedule has "
    "as many epochs as newbob took; how many was found on development data. Ours keeps "
    "newbob's last pass, which gained next to nothing; Kaldi's script goes back by one if it "
    "made things worse.",
)  # fmt: skip
def schedules_close(subject: Subject, runs: Runs) -> Judged:
    """Newbob within 3% of exponential at 16 workers."""
    label, rule = "newbob over exponential", Rule(0.97, 1.03)
    yield from judge_errors(subject, runs, SCHEDULES, rate_ratio_ci, label, rule)
    passes = ([summary_value(run, "passes") for run in runs[name]] for name in SCHEDULES)
    yield CONDITIONS.measure("same-epochs", ratio_ci(*passes))


ON_SPEED = "simulated speed-up, fitted on 1, 2 and 4 GPUs only; within 5%"


def _judge_speed(
    ratio: Interval, paper: Mapping[str, float], measure: str = ""
) -> Iterator[Quantity | str]:
    """One prediction, against every figure the paper gives for it."""
    for label, figure in paper.items():
        yield Quantity(label, figure, ratio, rule_near(figure, BAND), figure, measure)
    errors = " and ".join(
        format_change(relative_error(ratio, figure).estimate, 1) for figure in paper.values()
    )
    yield f"Relative error {errors}."


SCATTER = "Intervals are of simulated minibatches' scatter alone, and say nothing of the cluster."


@CLAIMS.declare(
    "p2.speedup-16", ("timing_1", "timing_16"), "16 GPUs train 9.32 times as fast as one",
    "Table 3", ON_SPEED, SCATTER,
)  # fmt: skip
def speedup_16(subject: Subject, runs: Runs) -> Judged:
    """Predicted speed-up on 16 GPUs."""
    ratio = speedup(runs["timing_1"], runs["timing_16"])
    return _judge_speed(ratio, {"": PRINTED["speedup_16"]})


@CLAIMS.declare(
    "p2.speedup-32", ("timing_1", "timing_32"), "32 GPUs train 17 times as fast as one",
    "Section 5.2", ON_SPEED, SCATTER,
)  # fmt: skip
def speedup_32(subject: Subject, runs: Runs) -> Judged:
    """Predicted speed-up on 32 GPUs, against the rounded figure and the authors' timings."""
    against = {"as printed": PRINTED["speedup_32"], "from the authors' timings": TIMED_32}
    return _judge_speed(speedup(runs["timing_1"], runs["timing_32"]), against)


READINGS = {
    "excess in each minibatch": ("timing_1", "timing_16_every_20"),
    "excess in each average": ("other_1", "other_16_every_20"),
}
"""Readings of the parallel program's excess, which the fitted timings do not tell apart."""


@CLAIMS.declare(
    "p2.speedup-16-every-20", tuple(chain(*READINGS.values())),
    "Averaging every 20 minibatches, 16 GPUs are 10.07 times as fast", "Table 3", ON_SPEED,
    SCATTER,
    undetermined="The timings on up to four GPUs do not tell a slower minibatch from a fixed cost "
    "of each average. Averaging half as often tells them apart, and no timing of it is printed "
    "but the one that is to be foretold.",
)  # fmt: skip
def every_20(subject: Subject, runs: Runs) -> Judged:
    """Predicted speed-up on 16 GPUs that average half as often, by both readings."""
    paper = PRINTED["speedup_16_every_20"]
    for reading, (alone, many) in READINGS.items():
        yield from _judge_speed(speedup(runs[alone], runs[many]), {reading: paper}, reading)


@CLAIMS.declare(
    "p2.equivalence", ("equivalence",),
    "Averaging models after each weight update is equivalent to gradient averaging", "Section 3",
    cannot_fail="it is an identity of the two updates",
)  # fmt: skip
def equivalence(subject: Subject, runs: Runs) -> Judged:
    """Model averaging after every update is gradient averaging."""
    run, *_ = runs["equivalence"]
    apart = Interval.exact(summary_value(run, "largest_difference"))
    yield Quantity("", "equal", apart, Rule(0.0, ROUNDING), 0.0)
    yield {
        "statistic": f"largest difference of a parameter after {run.config['folds']} folds of "
        f"{run.config['workers']} workers, float64; at most {ROUNDING:g}"
    }
    yield f"The same parameters moved by up to {summary_value(run, 'largest_move'):.2g}."


@CLAIMS.declare(
    "p2.lr-scaling", ("scaled", "unscaled"),
    "The initial rate is to grow with the number of workers", "Section 5.6",
    "error (%) of words and of frames at 16 GPUs, difference",
    "Both rates follow from the one that was best on one GPU.",
)  # fmt: skip
def lr_scaling(subject: Subject, runs: Runs) -> Judged:
    """The rate of one worker times 16 is better than the rate of one worker."""
    settings, label = ("scaled", "unscaled"), "scaled − unscaled"
    yield from judge_errors(subject, runs, settings, rate_difference_ci, label, "below")
