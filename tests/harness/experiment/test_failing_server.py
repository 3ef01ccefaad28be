"""What a run says of itself after its server has failed is of the state that is left."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from harness.algorithms.catalogue import AsyncSgd, GradientAveraging, ModelAveraging
from harness.experiment.experiment import Stage
from harness.experiment.run import run as execute
from harness.modules.parts import Arrays, ModuleParts
from harness.simulator.cluster import Checkpoints, Device, Fault, WorkerGroup
from harness.simulator.cluster import Server as Cost
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from harness.store.schema import MODEL, STATE
from tests.harness.experiment.test_unbroken import CLUSTER, configured
from tests.silence import silent

FAILING = replace(
    CLUSTER,
    server=Cost(1e-3),
    faults=(Fault("server", at_s=(0.075, 0.16), down_s=0.01, checkpoint_s=0.06),),
)
RATE = 1e-6


class Counting(nn.Module):
    """Its parameter tells how many minibatches are in the model, its buffer how many were seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.seen += 1.0
        return x * 0.0 + self.weight


def mean_of(outputs, targets):
    return (outputs + 0.0 * targets).mean()


def counted(tmp_path, algorithm, protocol=None, **further):
    config = configured(320, 2, 8, 1, algorithm, protocol)
    x = config.task.problem.train.x.double()
    problem = ModuleParts(Counting(), mean_of, Arrays(x, x), Arrays(x[:4], x[:4]), None, {})
    config = config.vary(problem=problem, **{"cluster": FAILING, **further})
    run = execute(config, Store(tmp_path), silent)
    inside = -load_file(run.path(MODEL))["model"].item() / RATE
    timeline = load_timeline(run.path("timeline.parquet"))
    assert len(timeline.restarts) > 0
    return run, inside, timeline


@pytest.mark.parametrize(
    ("algorithm", "protocol", "further"),
    [
        (AsyncSgd(), None, {}),
        (AsyncSgd(), ParameterServer(push_every=2), {"evaluations": 7}),
        (AsyncSgd(), None, {"passes": 3, "stages": (Stage(8, 8, 0.25), Stage(4, 4))}),
    ],
    ids=["", "pushes", "stages"],
)
def test_rows_that_are_not_in_the_model_are_not_counted(tmp_path, algorithm, protocol, further):
    run, inside, timeline = counted(tmp_path, algorithm, protocol, **further)
    kept = timeline.kept()
    assert kept.steps.sum() == pytest.approx(inside)
    first_stage = 10 if "stages" in further else run.summary["folds"]  # a quarter, 8 at a time
    rows = np.where(kept.fold < first_stage, 8, 4) * kept.steps
    assert run.summary["epochs"] == pytest.approx(rows.sum() / 320)
    assert run.curve("dev_loss/iterate")[0][-1] == run.summary["epochs"]
    assert run.summary["trained_share"] < 1.0


@pytest.mark.parametrize("algorithm", [GradientAveraging(), ModelAveraging()])
def test_a_restart_of_rounds_takes_back_model_buffers_and_counts(tmp_path, algorithm):
    deaths = (Fault("death", (1,), at_s=(0.075, 0.16), down_s=0.01),)
    cluster = replace(CLUSTER, faults=deaths, checkpoints=Checkpoints(4, 0.001, 0.002))
    run, inside, timeline = counted(tmp_path, algorithm, Averaging(1), cluster=cluster)
    kept = timeline.kept()
    assert 0 < len(kept) < len(timeline.folded())
    assert kept.steps.sum() / 2 == pytest.approx(inside)
    assert load_file(run.path(STATE))["seen"].item() == pytest.approx(inside)
    assert run.summary["epochs"] == pytest.approx(8 * kept.steps.sum() / 320)


def test_buffers_are_those_that_came_with_what_is_in_the_model(tmp_path):
    """The slow worker has its one fold shortly before the server fails; then it is gone."""
    faults = (
        replace(FAILING.faults[0], at_s=(0.215,)),
        Fault("death", (1,), at_s=(0.23,), down_s=9.0),
    )
    devices = {"quick": Device(launch_s=0.01), "slow": Device(launch_s=0.2)}
    groups = (WorkerGroup(1, "quick"), WorkerGroup(1, "slow"))
    cluster = replace(FAILING, devices=devices, workers=groups, faults=faults)
    run, _, timeline = counted(tmp_path, AsyncSgd(), cluster=cluster)
    assert (timeline.folded().worker == 1).any()
    kept = timeline.kept()
    assert not kept.worker.any()
    assert load_file(run.path(STATE))["seen"].item() == len(timeline.folded()) - 1
