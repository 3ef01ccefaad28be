"""Paper 2's claims on speed: the simulator's predictions against what is reported."""

from __future__ import annotations

from harness.judge.claims import near, relative_error
from harness.judge.makers import Maker, Runs
from harness.judge.parts import Quantity, claim_of
from harness.judge.results import Claim
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.exhibits import speedup
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.readings import hashes, signed

BAND = 0.05
PAPER = REPORTED["claims"]
TIMED_32 = round(REPORTED["timings"]["total_min"][0] / REPORTED["timings"]["total_min"][-1], 2)


def speedup_16(subject: Subject, runs: Runs) -> Claim:
    """Predicted speed-up on 16 GPUs."""
    return _claim(
        "p2.speedup-16", "16 GPUs train 9.32 times as fast as one", "Table 3",
        {"": PAPER["speedup_16"]}, runs, "timing_16",
    )  # fmt: skip


def speedup_32(subject: Subject, runs: Runs) -> Claim:
    """Predicted speed-up on 32 GPUs, against the rounded figure and the authors' timings."""
    against = {"as printed": PAPER["speedup_32"], "from the authors' timings": TIMED_32}
    return _claim(
        "p2.speedup-32", "32 GPUs train 17 times as fast as one", "Section 5.2",
        against, runs, "timing_32",
    )  # fmt: skip


def every_20(subject: Subject, runs: Runs) -> Claim:
    """Predicted speed-up on 16 GPUs that average half as often."""
    paper = PAPER["speedup_16_every_20"]
    other = speedup(runs["other_1"], runs["other_16_every_20"]).estimate
    return _claim(
        "p2.speedup-16-every-20", "Averaging every 20 minibatches, 16 GPUs are 10.07 times as fast",
        "Table 3", {"": paper}, runs, "timing_16_every_20",
        f" With a fixed cost of each average {other:.2f} ({signed(other / paper - 1, 1)}): it "
        "would be a quarter of ten minibatches, so a slower minibatch is the likelier reading.",
        "The timings on up to four GPUs do not tell a slower minibatch, which is shown, from a "
        f"fixed cost of each average, with which {other:.2f} are foretold. Averaging half as often "
        "tells them apart, and no timing of it is printed but the one that is to be foretold.",
    )  # fmt: skip


def _claim(
    id_: str, statement: str, where: str, paper: dict[str, float], runs: Runs, setting: str,
    note: str = "", undetermined: str = "",
) -> Claim:  # fmt: skip
    """One prediction, against every figure the paper gives for it."""
    ratio = speedup(runs["timing_1"], runs[setting])
    parts = [
        Quantity(label, figure, ratio, near(figure, BAND), figure)
        for label, figure in paper.items()
    ]
    errors = " and ".join(signed(relative_error(ratio, p).estimate, 1) for p in paper.values())
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
