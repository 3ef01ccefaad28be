"""The runs that choose how long paper 2 pretrains."""

from __future__ import annotations

import pytest

from harness.acoustics.rbm import Recipe
from harness.base.seeds import identity
from reproductions.declared import stand_in
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper2_ng_averaging.experiments import (
    AROUND,
    PRESETS,
    build_configs,
    experiments,
    pretraining,
    trial_name,
)
from reproductions.paper2_ng_averaging.lengths import GPUS, LENGTHS, averages, configurations

SUBJECT = Subject("overnight", stand_in("conversational"), DEVELOPMENT, "cpu")


def test_each_length_is_tried_with_each_number_of_gpus_around_the_rate_of_one_pass():
    found = configurations(SUBJECT)
    assert len(found) == len(LENGTHS) * len(GPUS) * len(AROUND)
    for (n, passes, rate), config in found.items():
        assert config.workers == n
        assert config.initial == Recipe(gaussian_epochs=2 * passes, bernoulli_epochs=passes)
        own = build_configs(SUBJECT, DEVELOPMENT)[f"ng_{n}"].schedule.rate
        assert rate in [factor * own for factor in AROUND.values()]
        assert config.schedule.rate == rate
        assert (config.seed, config.tested) == (DEVELOPMENT, "never")


def test_runs_of_one_pass_are_those_that_found_its_rate():
    found = configurations(SUBJECT)
    searched = experiments(SUBJECT, 2001)
    for n in GPUS:
        own = searched[trial_name(f"ng_{n}", "chosen")]
        same = found[n, 1, own.schedule.rate]
        assert identity(same.to_dict()) == identity(own.to_dict())


def test_the_length_that_stands_is_one_that_was_tried():
    stands = PRESETS["overnight"].pretraining
    assert stands in LENGTHS
    assert build_configs(SUBJECT, 1)["rbm_1"].initial == pretraining(stands)


def test_a_length_is_judged_at_the_best_rate_of_each_number_of_gpus():
    errors = {(1, 5, 0.5): 0.46, (1, 5, 1.0): 0.48, (32, 5, 64.0): 0.51, (32, 5, 128.0): 0.50}
    errors |= {(1, 1, 0.5): 0.47, (32, 1, 64.0): float("inf"), (32, 1, 128.0): 0.506}
    assert averages(errors) == {1: pytest.approx(0.488), 5: pytest.approx(0.48)}
