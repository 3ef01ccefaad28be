"""``p1.scaling``: one pass over multi-pass training against hours of speech."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from harness.algorithms.schedules import Search
from harness.judge.utterances import seed_rates
from harness.speech.frames import RunConfig
from harness.store import Run
from reproductions.paper import Scaling, SizePlan, Subject
from reproductions.paper1_async_asgd.exhibits import final_errors
from reproductions.paper1_async_asgd.experiments import FOLDER, REPORTED, as_chosen
from reproductions.run_metrics import lengths_of_utterances

TESTS = ("clean", "noise")


def configs(subject: Subject, seed: int, size: SizePlan) -> Mapping[str, RunConfig]:
    """One pass and many, with the settings that were chosen overnight.

    A trial of the search has the registered number of minibatches.
    """
    one = as_chosen(subject, seed, "search")
    schedule = cast(Search, one.schedule)
    trials = replace(schedule, least_minibatches=int(size.settings["trial_minibatches"]))
    return {
        "one_pass": replace(one, passes=1, schedule=trials, tested="first pass"),
        "multi_pass": replace(as_chosen(subject, seed, "multi_pass"), tested="at the end"),
    }


def error_rate(run: Run, arm: str, test: str) -> float:
    """Character error rate of an arm's deployed model on a test set."""
    errors, lengths = final_errors(arm, test, [run]), lengths_of_utterances([run], test)
    return float(seed_rates(errors, lengths)[0])


SCALING = Scaling(
    id="p1.scaling",
    title="Character error of one pass of asynchronous ASGD over multi-pass SGD, by hours of "
    "speech",
    registered=FOLDER / "registered" / "scaling.toml",
    configs=configs,
    ratios={
        test: ("one_pass", "multi_pass", REPORTED["claims"][f"one_pass_ratio_{test}"])
        for test in TESTS
    },
    rate=error_rate,
)
