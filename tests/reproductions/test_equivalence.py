from dataclasses import replace

import pytest

from harness.algorithms.averaging import GradientAveraging, ModelAveraging, OuterNesterov
from harness.experiment.run import Runner
from harness.store import Store
from reproductions.paper2_ng_averaging.checks import EquivalenceConfig

CONFIG = EquivalenceConfig(
    algorithms=(ModelAveraging(), GradientAveraging()), layers=(6, 5, 4), workers=3, frames=4,
    folds=10, rate=2.0,
)  # fmt: skip


@pytest.fixture
def ends(tmp_path):
    def run(config):
        found = Runner(Store(tmp_path), 1).run({"": config})
        return found[""].summary

    return run


def test_averaging_models_after_every_update_is_averaging_gradients(ends):
    found = ends(CONFIG)
    assert found["largest_difference"] < 1e-13
    assert found["largest_move"] > 0.1


def test_algorithms_that_differ_end_apart(ends):
    nesterov = ModelAveraging(outer=OuterNesterov())
    found = ends(replace(CONFIG, algorithms=(ModelAveraging(), nesterov)))
    assert found["largest_difference"] > 1e-3
