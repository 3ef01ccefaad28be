from __future__ import annotations

import math
import tomllib
from types import SimpleNamespace
from typing import Any

import numpy as np

from reproductions.paper2_ng_averaging import PAPER
from reproductions.paper2_ng_averaging.experiments import (
    NODES,
    PRESETS,
    RATES,
    experiments,
    rate_of,
    tables,
)
from reproductions.paper2_ng_averaging.sweep import (
    CORPUS_SEED,
    SEED,
    SETTINGS,
    next_to_try,
    searched,
    written,
)

CORPUS = SimpleNamespace(
    name="conversational",
    fingerprint="f",
    tests=("swb", "callhome"),
    dim=39,
    context=5,
    n_targets=399,
    frame_shift_s=0.01,
    frames_of=lambda split: 400_000,
)


def subject(scale: str) -> Any:
    return SimpleNamespace(scale=scale, corpus=CORPUS, corpus_seed=11, device="cpu")


def bowl(best: float):
    """Errors that are lowest at one rate over workers, and not finite beyond 20."""

    def measure(wanted):
        return [abs(math.log2(rate / best)) if rate < 20 else math.inf for _, rate in wanted]

    return measure


def test_the_best_rate_lies_between_two_that_are_worse():
    for best in (0.3, 1.0, 7.0):
        for errors in searched(bowl(best)).values():
            lowest = min(errors, key=lambda rate: errors[rate])
            assert min(errors) < lowest < max(errors)
            assert abs(math.log2(lowest / best)) <= 0.5


def test_the_search_ends_once_the_edge_is_known():
    assert next_to_try({}, 1.0) == [0.5, 1.0, 2.0]
    assert next_to_try({0.5: 3.0, 1.0: 1.0, 2.0: 2.0}, 1.0) == []
    assert next_to_try({0.5: 3.0, 1.0: 2.0, 2.0: 1.0}, 1.0) == [4.0]


def test_what_is_written_is_what_the_experiments_read():
    text = tomllib.loads(written(searched(bowl(1.0)), "laptop", "sha"))
    assert text["rates"]["laptop"]["ng"] == {str(n): 1.0 * n for n in NODES}
    assert set(text["rates"]["laptop"]["sgd"]) == {"1", "16"}
    assert {row["label"] for row in text["tried"]} >= {"SGD, 16 GPUs", "NG-SGD, 1 GPU"}


def test_the_rates_in_use_come_from_development_data():
    found = tomllib.loads(RATES.read_text(encoding="utf-8"))
    assert (found["corpus_seed"], found["seed"]) == (CORPUS_SEED, SEED) == (0, 100)
    lowest: dict[str, tuple[float, float]] = {}
    for row in found["tried"]:
        entry = (row["frame_error"], row["rate_a_worker"])
        lowest[row["label"]] = min(lowest.get(row["label"], entry), entry)
    for descent, workers in SETTINGS:
        name = {"ng": "NG-SGD", "sgd": "SGD"}[descent]
        best = lowest[f"{name}, {workers} GPU{'s' if workers > 1 else ''}"][1]
        assert np.isclose(rate_of("laptop", descent, workers), best * workers)


def test_every_run_an_exhibit_or_claim_needs_is_declared_at_every_scale():
    needed = {need for maker in (*PAPER.exhibits, *PAPER.claims) for need in maker.needs}
    for scale in PRESETS:
        assert set(experiments(subject(scale), 11)) == needed


def test_settings_that_are_compared_differ_in_what_they_say_only():
    runs = tables(subject("laptop"), 11)
    one, many = (runs[name].to_dict() for name in ("sgd_16", "ng_16"))
    apart = {key for key in one if one[key] != many[key]}
    assert "algorithm" in apart <= {"algorithm", "schedule"}
    limits = {run["algorithm"]["descent"]["max_change"]["limit"] for run in (one, many)}
    assert len(limits) == 1
    assert runs["scaled"].schedule.rate == 16 * runs["unscaled"].schedule.rate


def test_a_small_minibatch_keeps_the_rate_a_frame():
    runs = tables(subject("laptop"), 11)
    large, small = runs["ng_16"], runs["small_16"]
    assert small.stages[0].minibatch * 4 == large.stages[0].minibatch
    assert small.schedule.rate * 4 == large.schedule.rate
    assert small.stages[0].timed_minibatch == 256
