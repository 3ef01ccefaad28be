import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.seeds import identity
from harness.speech.task import Frames
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.experiments import (
    AROUND,
    RATES,
    SEARCHED,
    build_configs,
    experiments,
    load_rates,
    trial_name,
)

CORPUS: Any = SimpleNamespace(
    name="none that is made", speech=None, fingerprint="f", tests=("swb", "callhome"), dim=39,
    context=5, n_targets=399, frame_shift_s=0.01, frames_of=lambda split: 400_000,
)  # fmt: skip


def subject(scale: str) -> Subject:
    return Subject(scale, CORPUS, 11, "cpu", made=lambda seed: CORPUS)


@pytest.mark.parametrize("scale", sorted(tomllib.loads(RATES.read_text(encoding="utf-8"))))
def test_every_setting_that_is_compared_has_a_rate_of_its_own_search(scale):
    assert set(load_rates(scale)["rates"]) == set(SEARCHED)
    settings = build_configs(subject(scale), 11)
    assert set(settings) == set(SEARCHED)
    for name, config in settings.items():
        assert config.schedule.rate == load_rates(scale)["rates"][name]


def test_runs_of_the_search_are_the_same_for_every_seed_and_no_verdicts():
    names = [trial_name(name, label) for name in SEARCHED for label in AROUND]
    one, other = (experiments(subject("laptop"), seed) for seed in (1001, 1002))
    for name in names:
        config = one[name]
        assert isinstance(getattr(config, "task", None), Frames)
        assert identity(config.to_dict()) == identity(other[name].to_dict())
        assert (config.task.corpus_seed, config.seed, config.tested) == (100, 100, "at the end")


def test_settings_that_are_compared_differ_in_what_they_say_only():
    runs = build_configs(subject("overnight"), 11)
    for name, apart in {
        "sgd_16": {"algorithm"}, "random_32": {"initial"}, "rbm_32": {"initial"},
        "every_20": {"protocol"}, "small_16": {"stages"}, "newbob_16": {"passes"},
        "exponential_16": {"passes"},
    }.items():  # fmt: skip
        one, other = runs[name].to_dict(), runs[f"ng_{runs[name].workers}"].to_dict()
        assert {k for k in one if one[k] != other[k]} <= apart | {"schedule"}, name
        assert all(one[k] != other[k] for k in apart), name
    limits = {runs[name].algorithm.descent.max_change.limit for name in ("sgd_16", "ng_16")}
    assert len(limits) == 1


@pytest.mark.parametrize(("scale", "passes"), [("laptop", 1), ("overnight", 5)])
def test_machines_of_the_first_layer_have_twice_the_passes_of_others(scale, passes):
    initial = build_configs(subject(scale), 11)["rbm_1"].task.initial
    assert (initial.gaussian_epochs, initial.bernoulli_epochs) == (2 * passes, passes)


def test_where_pretraining_is_no_longer_its_runs_are_those_of_the_other_tables():
    runs = build_configs(subject("laptop"), 11)
    assert [runs["rbm_1"], runs["rbm_32"]] == [runs["ng_1"], runs["ng_32"]]


def test_the_exponential_schedule_has_the_passes_that_newbob_took():
    runs = build_configs(subject("overnight"), 11)
    passes = load_rates("overnight")["newbob_passes"]
    assert runs["exponential_16"].passes == runs["exponential_16"].schedule.passes == passes
    assert passes < runs["newbob_16"].passes, "newbob ends by its own rule"


def test_one_rate_is_the_other_times_sixteen():
    runs = experiments(subject("laptop"), 11)
    scaled, unscaled, rarely = (runs[name] for name in ("scaled", "unscaled", "scaled_20"))
    assert scaled == unscaled.with_rate(16 * unscaled.schedule.rate)
    assert replace(rarely, protocol=scaled.protocol) == scaled


def test_a_small_minibatch_is_a_quarter_and_timed_as_256():
    runs = build_configs(subject("laptop"), 11)
    large, small = runs["ng_16"], runs["small_16"]
    assert small.stages[0].minibatch * 4 == large.stages[0].minibatch
    assert small.stages[0].timed_minibatch == 256
