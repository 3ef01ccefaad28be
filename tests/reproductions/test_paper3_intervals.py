"""The runs that choose which fetch intervals paper 3 sweeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_synth import load_corpus
from harness.base.seeds import identity
from harness.store import Store
from reproductions.declared import stand_in
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper3_async_mmi.experiments import (
    INTERVALS,
    PRESETS,
    SMALL,
    SWEEPS,
    fetch_name,
    fetches,
)
from reproductions.paper3_async_mmi.intervals import (
    AROUND,
    TRIED,
    UTTERANCES,
    configurations,
    describe_sweep,
    gains,
    intervals_around,
    silence_shares,
)
from reproductions.paper3_async_mmi.quantities import CRITERION, Sweep, log_tolerances

SUBJECT = Subject("overnight", stand_in(SMALL), DEVELOPMENT, "cpu")


@dataclass
class Ended:
    """A finished run, as far as sweeps read it."""

    gain: float
    status: str = "done"

    def curve(self, name: str):
        assert name == CRITERION
        return np.array([0, 1]), np.array([-1.0, self.gain - 1.0]), np.array([0.0, 1.0])


def test_runs_that_are_asked_for_are_those_of_the_report_at_other_intervals():
    asked, own = configurations(SUBJECT), fetches(SUBJECT, DEVELOPMENT)
    assert len(asked) == len(SWEEPS) * (1 + len(TRIED))
    for sweep in SWEEPS:
        always = own[fetch_name(sweep, 0)]
        assert identity(asked[sweep, 0.0].to_dict()) == identity(always.to_dict())
        by_interval = [asked[sweep, t] for t in TRIED]
        seconds = [config.fetch_s for config in by_interval]
        assert seconds == sorted(seconds)
        assert seconds[1] == pytest.approx(TRIED[1] / TRIED[0] * seconds[0], abs=0.2)
        assert {config.rate for config in by_interval} == {PRESETS["overnight"].fetch_rate}
        assert {config.seed for config in by_interval} == {DEVELOPMENT}


def test_intervals_are_fitted_as_those_of_verdicts_are():
    star = {"last": 0.1, "all": 0.05, "no silence": 0.2}
    runs = {
        (sweep, t): Ended(2.0 * 0.95 ** ((t / star[sweep]) ** 2))
        for sweep in SWEEPS
        for t in (0.0, *TRIED)
    }
    runs["all", TRIED[-1]] = Ended(math.nan, "diverged")
    sweeps = gains(runs)
    assert sweeps["all"].gains[0, -1] == 0.0, "nothing is left of a run that diverged"
    stars = 2.0 ** log_tolerances([sweeps[name] for name in star])
    assert stars == pytest.approx(list(star.values()), rel=0.03)


@pytest.mark.parametrize(
    ("always", "star", "told"),
    [
        (2.0, 0.1, "T* 0.1 passes, so (0.03, 0.06, 0.1, 0.16, 0.32)"),
        (2.0, math.nan, "those that are there stay"),
        (2.0, 2 * TRIED[-1], "those that are there stay"),
        (0.0, math.nan, "a lower rate"),
    ],
)
def test_what_a_sweep_tells_is_what_follows(always, star, told):
    gained = np.array([[always, *(1.0 for _ in TRIED)]])
    assert told in describe_sweep(Sweep(np.array([0.0, *TRIED]), gained), star)


def test_as_many_intervals_follow_as_a_sweep_has():
    assert len(AROUND) == len(intervals_around(0.1)) == INTERVALS


def test_what_lies_on_silence_is_a_share_of_all_of_it(tmp_path, monkeypatch):
    made = load_corpus(SMALL, scale="smoke", seed=DEVELOPMENT)
    asked = []

    def decode(self, models, utterances):
        asked.extend(utterances)
        outer = torch.full((2, made.n_targets), -1.0)
        outer[:, made.silence[0]] = 3.0
        return [SimpleNamespace(outer=outer) for _ in utterances]

    monkeypatch.setattr("harness.speech.decoding.Decoder.decode", decode)
    frames, share = silence_shares(Subject("smoke", made, DEVELOPMENT, "cpu"), Store(tmp_path))
    train = made.split("train")
    others, states = made.n_targets - 1, len(set(made.silence))
    assert share == pytest.approx((3 + states - 1) / (3 + others))
    assert frames == pytest.approx(0.3, abs=0.1), "a pause before and after every query"
    assert len(set(asked)) == len(asked) >= min(len(train), UTTERANCES)
