import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harness.algorithms.async_sgd import AsyncDescent
from harness.algorithms.schedules import Constant
from harness.experiment.experiment import Experiment, Stage
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.task import Module
from harness.search.search import TRIED, BestRateConfig, climb_to_edge, solve
from harness.simulator.cluster import Cluster, Device, WorkerGroup, Workload
from harness.store import Store
from tests.experiments import experiment
from tests.silence import silent


def searched(losses, guess=1.0, most=12, began=1.0):
    """A search where the loss at the end is a function of the rate."""
    config = SimpleNamespace(guess=guess, most=most)
    return solve(climb_to_edge(config, lambda: began), losses)


def valley(rate):
    """Least at 4, above 1 beyond 64, and never a number beyond 200."""
    return math.inf if rate > 200 else 0.02 * math.log2(rate / 4) ** 2 + (2.0 if rate > 64 else 0.1)


@pytest.mark.parametrize("guess", [0.25, 4.0, 32.0, 128.0, 512.0])
def test_from_any_guess_the_best_rate_and_the_edge_are_found(guess):
    found = searched(valley, guess)
    assert (found.rate, found.stable, found.diverged) == (4.0, 64.0, 128.0)
    assert found.tried == {rate: valley(rate) for rate in found.tried}


def test_without_rungs_above_only_the_neighbours_of_the_best_are_tried():
    found = searched(valley, 4.0, most=0)
    assert sorted(found.tried) == [2.0, 4.0, 8.0]
    assert (found.rate, found.stable, found.diverged) == (4.0, 4.0, math.inf)


def test_a_search_that_ends_below_the_edge_does_not_claim_one():
    found = searched(valley, 4.0, most=2)
    assert (found.stable, found.diverged) == (16.0, math.inf)


def test_what_never_ends_below_its_beginning_stands_no_rate():
    found = searched(lambda rate: 1.0 + rate, began=1.0)
    assert found.stable == 0.0


@pytest.fixture(scope="module")
def training() -> Experiment[Module]:
    """A line through sixteen points: by curvature 1, what is beyond a rate of 2 runs away."""
    x, line = torch.ones(16, 1), nn.Linear(1, 1, bias=False)
    nn.init.ones_(line.weight)  # or at a rate of 2 rounding of what was drawn would decide
    problem = ModuleParts(
        line, lambda out, y: (out - y).square().mean() / 2,
        Arrays(x, 3 * x), Arrays(x, 3 * x), None, {},
    )  # fmt: skip
    return experiment(Module,
        problem=problem, work=Workload(1, 0.0, 0.0), algorithm=AsyncDescent(),
        schedule=Constant(0.5), stages=(Stage(2, 2),), passes=1, chunk=1.0, evaluations=1,
        cluster=Cluster("one", {"card": Device(launch_s=1.0)}, (WorkerGroup(1, "card"),)),
        workers=1, seed=0, device="cpu", tested="never",
    )  # fmt: skip


def test_a_searchs_summary_is_that_of_the_runs_it_asked_for(training, tmp_path):
    store = Store(tmp_path)
    run = BestRateConfig(training, 0.5).execute(store, silent)
    assert run.summary["rate"] == 1.0
    assert run.summary["loss"] == 0.0
    assert (run.summary["stable"], run.summary["diverged"]) == (1.0, 2.0)
    rows = run.metrics["name"] == TRIED
    tried = dict(zip(run.metrics["rate"][rows], run.metrics["value"][rows], strict=True))
    assert len(tried) == run.summary["tried"] == len(store.runs()) - 1
    ends = {
        each.config["schedule"]["rate"]: each.curve("dev_loss/iterate")[1][-1]
        for each in store.runs()
        if "schedule" in each.config
    }
    assert tried == ends


def test_the_rate_that_a_training_comes_with_is_no_part_of_a_searchs_identity(training):
    other = replace(training, schedule=Constant(0.1))
    assert BestRateConfig(other, 0.5).to_dict() == BestRateConfig(training, 0.5).to_dict()
    assert BestRateConfig(training, 0.5).to_dict() != BestRateConfig(training, 0.25).to_dict()
