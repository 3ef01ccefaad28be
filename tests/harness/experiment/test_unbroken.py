"""Rounds that run over the ends of passes, beside examples that are dealt and counted by hand."""

from dataclasses import replace
from math import ceil

import pytest
import torch
from torch import nn

from harness.algorithms.catalogue import (
    Algorithm,
    AsyncDescent,
    AsyncSgd,
    EagerDiLoCo,
    ElasticDiLoCo,
    FedBuff,
    GradientAveraging,
    ModelAveraging,
    Momentum,
)
from harness.algorithms.schedules import Constant, Exponential, Halving
from harness.base.errors import UserError
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.run import run as execute
from harness.fidelity.predict import time_passes
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.task import Module
from harness.simulator import Cluster, Device, Fault, WorkerGroup, Workload
from harness.simulator.cluster import Jitter, Parallel, Server
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from tests.experiments import experiment
from tests.silence import silent

STEP_S = 0.01
CLUSTER = Cluster("eight", {"card": Device(launch_s=STEP_S)}, (WorkerGroup(8, "card"),))
CASES = [
    # examples, workers, minibatch, every, passes
    (100, 1, 8, 1, 3), (100, 4, 8, 3, 3), (103, 4, 8, 2, 5), (100, 5, 7, 2, 4), (97, 6, 8, 2, 1),
    (96, 4, 8, 3, 2), (64, 8, 8, 1, 3), (130, 8, 8, 2, 4),
    # rounds of several passes, and of more than the run
    (100, 4, 8, 7, 5), (64, 8, 8, 3, 4), (30, 4, 8, 2, 5), (97, 4, 8, 20, 3),
]  # fmt: skip


def configured(
    examples: int, workers: int, minibatch: int, passes: int, algorithm: Algorithm, protocol=None
) -> Experiment[Module]:
    """A run on examples that are known by their number, which is also their input."""
    x = torch.arange(float(examples))[:, None]
    dev = Arrays(x[:4], x[:4])
    problem = ModuleParts(nn.Linear(1, 1), nn.functional.mse_loss, Arrays(x, x), dev, None, {})
    return experiment(Module,
        algorithm=algorithm, protocol=protocol, schedule=Constant(1e-6),
        stages=(Stage(minibatch, minibatch),), passes=passes, chunk=1.0, evaluations=2,
        cluster=CLUSTER, workers=workers, seed=3, device="cpu", problem=problem,
        work=Workload(minibatch, 0.0, 0.0), tested="never",
    )  # fmt: skip


def in_order(steps: dict[int, list[int]]) -> list[int]:
    assert sorted(steps) == list(range(len(steps)))
    return [row for step in sorted(steps) for row in steps[step]]


def assert_passes(rows: list[int], own: set[int]) -> None:
    """Every example once in each pass, in another order each time; the last may be unfinished."""
    size = len(own)
    passes = [rows[first : first + size] for first in range(0, len(rows), size)]
    for each in passes[:-1]:
        assert set(each) == own
    assert len(set(passes[-1])) == len(passes[-1])
    assert len({tuple(each) for each in passes}) == len(passes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("examples", "workers", "minibatch", "every", "passes"), CASES)
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_every_example_of_each_pass_is_trained_on_once(
    examples, workers, minibatch, every, passes, overlap, asked, tmp_path
):
    algorithm = EagerDiLoCo(workers) if overlap else ModelAveraging()
    protocol = Averaging(every, overlap=overlap)
    config = configured(examples, workers, minibatch, passes, algorithm, protocol)
    run = execute(config, Store(tmp_path), silent)
    each = ceil(passes * examples / (workers * minibatch))
    for worker in range(workers):
        rows = in_order(asked[worker])
        assert len(rows) == each * minibatch
        assert_passes(rows, set(range(worker, examples, workers)))  # dealt one by one
    folded = load_timeline(run.path("timeline.parquet")).folded()
    last = each - every * (ceil(each / every) - 1)
    whole = folded.fold < folded.fold.max()
    assert set(folded.steps[whole].tolist()) <= {every}
    assert set(folded.steps[~whole].tolist()) == {last}
    assert run.summary["epochs"] == each * workers * minibatch / examples
    assert run.summary["trained_share"] == pytest.approx(run.summary["epochs"] / passes)
    assert 0 <= run.summary["epochs"] * examples - passes * examples < workers * minibatch
    assert run.summary["virtual_s"] == pytest.approx(each * STEP_S)
    assert run.curve("dev_loss/iterate")[0][-1] == run.summary["epochs"]


@pytest.mark.parametrize(("examples", "workers", "passes"), [(100, 4, 3), (97, 5, 4), (64, 8, 1)])
def test_rounds_with_backup_workers_have_one_sequence_of_examples(
    examples, workers, passes, asked, tmp_path
):
    parts = GradientAveraging(), BackupWorkers(backups=0)
    run = execute(configured(examples, workers, 8, passes, *parts), Store(tmp_path), silent)
    steps = {step: rows for own in asked.values() for step, rows in own.items()}
    assert len(steps) == workers * ceil(passes * examples / (8 * workers))
    assert_passes(in_order(steps), set(range(examples)))
    assert run.summary["epochs"] == len(steps) * 8 / examples


def test_what_backup_workers_drop_is_not_called_trained(tmp_path):
    parts = GradientAveraging(), BackupWorkers(backups=1)
    run = execute(configured(128, 4, 8, 2, *parts), Store(tmp_path), silent)
    assert run.summary["trained_share"] == 0.75


def test_asynchronous_runs_say_what_each_pass_leaves_out(tmp_path):
    run = execute(configured(100, 4, 8, 3, AsyncSgd()), Store(tmp_path), silent)
    assert run.summary["epochs"] == 3 * 96 / 100
    assert run.summary["trained_share"] == 0.96


def test_the_cost_of_an_epoch_is_due_once_a_pass(tmp_path):
    """However long the cluster's own epochs are; none is shortened by them."""
    parallel = Parallel(epoch_s=1.0, epoch_minibatches=5)
    config = configured(130, 4, 8, 3, ModelAveraging(), Averaging(3))
    config = replace(config, cluster=replace(CLUSTER, parallel=parallel))
    run = execute(config, Store(tmp_path), silent)
    assert run.summary["virtual_s"] == pytest.approx(3 * 1.0 + ceil(3 * 130 / 32) * STEP_S)


def test_rounds_that_are_lost_are_handed_out_anew_and_not_called_trained(tmp_path):
    death = Fault("death", mean_s=0.15, down_s=0.02)
    config = configured(130, 2, 8, 4, ModelAveraging(), Averaging(3))
    config = replace(config, cluster=replace(CLUSTER, faults=(death,)))
    run = execute(config, Store(tmp_path), silent)
    rows = load_timeline(run.path("timeline.parquet"))
    assert (rows.contributions.fold < 0).any()
    assert run.summary["folds"] == ceil(4 * 130 / (2 * 8 * 3))
    assert run.summary["epochs"] == rows.folded().steps.sum() * 8 / 130


def test_a_worker_without_examples_is_refused(tmp_path):
    config = configured(3, 4, 8, 9, ModelAveraging(), Averaging(4))
    with pytest.raises(UserError, match="workers: 4 leave one of them 0 examples; allowed: fewer"):
        execute(config, Store(tmp_path), silent)


UNEQUAL = replace(CLUSTER, jitter=Jitter("gamma", 0.5), server=Server(1e-3))
DEATHS = replace(UNEQUAL, faults=(Fault("death", mean_s=0.1, down_s=0.02),))
WITHOUT_BARRIER = {
    "async": (AsyncSgd(), None, UNEQUAL),
    "deaths": (AsyncSgd(), None, DEATHS),
    "pushes": (FedBuff(), ParameterServer(push_every=3), UNEQUAL),
    "depth": (AsyncDescent(Momentum()), ParameterServer(depth=2, bound=2), UNEQUAL),
    "elastic": (ElasticDiLoCo(), ParameterServer(push_every=2, queue=2), UNEQUAL),
    "overlap": (EagerDiLoCo(4), Averaging(2, overlap=True), UNEQUAL),
    "backups": (GradientAveraging(), BackupWorkers(backups=1), UNEQUAL),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", [Constant(1e-6), Exponential(1e-6, 0.1)], ids=repr)
@pytest.mark.parametrize("case", WITHOUT_BARRIER)
def test_a_pass_is_no_barrier(case, schedule):
    """However many passes make up the same number of folds, and whatever is evaluated."""
    algorithm, protocol, cluster = WITHOUT_BARRIER[case]
    digests = set()
    for passes, evaluations in ((1, 1), (5, 1), (5, 7)):
        config = configured(480 // passes, 4, 8, passes, algorithm, protocol)
        further = {"evaluations": evaluations, "schedule": schedule}
        config = replace(config, cluster=cluster, **further)
        digests.add(time_passes(config, config.task.problem.train).timeline.sha256())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("further", "waits"),
    [
        ({}, False),
        ({"schedule": Halving(1e-6)}, True),
        ({"stages": (Stage(8, 8), Stage(4, 4))}, True),
    ],
    ids=repr,
)
def test_workers_wait_at_the_end_of_a_pass_where_training_needs_it(further, waits):
    config = replace(configured(60, 4, 8, 2, AsyncSgd()), cluster=UNEQUAL, **further)
    timeline = time_passes(config, config.task.problem.train).timeline
    rows = timeline.folded()
    crossing = (rows.read_version < 7) & (rows.fold >= 7)  # the first pass has 7
    assert bool(crossing.any()) is not waits


def test_minibatches_in_flight_at_the_end_of_a_pass_are_of_their_own_pass(asked, tmp_path):
    config = configured(96, 4, 8, 3, AsyncSgd(), ParameterServer(push_every=2))
    execute(replace(config, cluster=UNEQUAL), Store(tmp_path), silent)
    steps = {step: rows for own in asked.values() for step, rows in own.items()}
    assert len(steps) == 3 * 12
    assert_passes(in_order(steps), set(range(96)))


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_an_epoch_begins_with_the_next_round_or_the_one_under_way(overlap):
    simulation = Simulation(CLUSTER, Averaging(3, overlap=overlap), Workload(8, 0.0, 0.0), 4)
    simulation.begin_epoch(5)
    assert simulation.advance(folds=2).folded().steps.tolist() == [3] * 4 + [2] * 4
    simulation.begin_epoch(4)
    steps = simulation.advance(folds=4).folded().steps
    assert steps.tolist() == [3] * 4 + [1] * 4 + [3] * 4 + [1] * 4
