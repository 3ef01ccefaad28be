"""Three readings of paper 1's time and speed-up, simulated: nothing joins all its figures."""

from __future__ import annotations

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci, ratio_ci
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.timings import (
    A_PASS,
    COUNTS,
    HOURS,
    READINGS,
    SPEEDUP,
    reading,
)
from reproductions.readings import hashes, of_summary

LABELS = {
    "A": "A: the speed-up of 3.2 is this system's",
    "B": "B: the server is the limit",
    "C": "C: paper 2's rate, pinned copies, a free server",
}


def readings(subject: Subject, runs: Runs) -> Exhibit:
    """Hours of one pass and speed-up on four GPUs in each reading."""
    rows: list[Row] = []
    for name, label in LABELS.items():
        one, four = (runs[reading(name, n)] for n in COUNTS)
        rate = [of_summary(run, "throughput_per_s") for run in four]
        hours = mean_ci([A_PASS / each / 3600.0 for each in rate])
        rows.append(Row.of(label, "hours", HOURS, hours, hashes(four)))
        for column, base in (
            ("over one card", "bare_throughput_per_s"),
            ("over one worker", "throughput_per_s"),
        ):
            ratio = ratio_ci(rate, [of_summary(run, base) for run in one])
            rows.append(Row.of(label, column, SPEEDUP, ratio, hashes(one, four)))
    return Exhibit(
        "p1.readings",
        "table",
        "Time of one pass and speed-up on four GPUs, as three readings of the paper have them",
        tuple(rows),
        paper_label="Beyond the paper",
        note="The speed-up is of an earlier system of the authors, and the hours may include "
        "the rate search and evaluation. A is made from both figures, B from the hours; C is "
        "made from neither.",
    )


NEEDS = tuple(reading(name, n) for name in READINGS for n in COUNTS)
UNDERDETERMINED = (Maker("p1.readings", NEEDS, readings),)
