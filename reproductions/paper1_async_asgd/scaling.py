"""``p1.scaling``: one pass over multi-pass training against hours of speech."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import cast

from harness.algorithms.schedules import Search
from harness.experiment.experiment import Experiment
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci
from harness.judge.utterances import seed_rates
from harness.speech.task import Frames
from harness.store import Run
from reproductions.paper import Finished, Scaling, SizePlan, Subject
from reproductions.paper1_async_asgd.exhibits import final_errors
from reproductions.paper1_async_asgd.experiments import FOLDER, REPORTED, methods
from reproductions.run_metrics import hashes, lengths_of_utterances, summary_values

TESTS = ("clean", "noise")
MEASURES = {"word_error": "characters", "frame_error": "frames"}
AVERAGE_BY_HOURS = "p1.average-by-hours"


def configs(subject: Subject, seed: int, size: SizePlan) -> Mapping[str, Experiment[Frames]]:
    """One pass and many, with the settings that were chosen overnight.

    A trial of the search has the registered number of minibatches.
    """
    runs = methods(subject, seed)
    schedule = cast(Search, runs["search"].schedule)
    trials = replace(schedule, least_minibatches=int(size.settings["trial_minibatches"]))
    return {
        "one_pass": runs["search"].vary(passes=1, schedule=trials, tested="first pass"),
        "multi_pass": runs["multi_pass"].vary(tested="at the end"),
    }


def error_rate(run: Run, arm: str, test: str) -> float:
    """Character error rate of an arm's deployed model on a test set."""
    errors, lengths = final_errors(arm, test, [run]), lengths_of_utterances([run], test)
    return float(seed_rates(errors, lengths)[0])


def average_by_hours(finished: Finished) -> Exhibit:
    """Error of the averaged model less that of the iterate after one pass, by hours of speech.

    A size counts with two seeds or more. Differences are in points, paired by seed.
    """
    rows: list[Row] = []
    for test, (error, name) in product(TESTS, MEASURES.items()):
        for hours in sorted({size for size, _ in finished}):
            group = [arms["one_pass"] for (size, _), arms in finished.items() if size == hours]
            average, iterate = (
                summary_values(group, f"{test}_{error}/{model}") for model in ("average", "iterate")
            )
            if len(group) > 1:
                difference = mean_ci(100.0 * (average - iterate))
                rows.append(
                    Row.from_interval(f"{test}, {name}", hours, None, difference, hashes(group))
                )
    return Exhibit(
        AVERAGE_BY_HOURS,
        "figure",
        "Error of the averaged model less that of the iterate after one pass, by hours of speech",
        tuple(rows),
        axes={"x": "training speech (h)", "y": "average − iterate (points)"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": [1, 3, 10, 30, 100]},
        paper_label="Beyond the paper",
        note="Above zero the average is worse. It weighs all iterates since a tenth of the pass "
        "alike, also those of the larger rates that a longer pass begins with. The runs are those "
        "of p1.scaling; no verdict rests on it.",
    )


SCALING = Scaling(
    id="p1.scaling",
    title="Character error of one pass of asynchronous ASGD over multi-pass SGD, by hours of "
    "speech",
    registered=FOLDER / "registered.toml",
    configs=configs,
    ratios={
        test: ("one_pass", "multi_pass", REPORTED["claims"][f"one_pass_ratio_{test}"])
        for test in TESTS
    },
    rate=error_rate,
    further={AVERAGE_BY_HOURS: average_by_hours},
)
