"""Data that differ by worker: each worker's examples beside those of a walk around its share."""

from collections import defaultdict
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import lagbench
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.schedules import Constant
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.run import run as execute
from harness.fidelity.predict import time_passes
from harness.fidelity.replay import execute_again
from harness.modules.parts import (
    Arrays,
    Dirichlet,
    ModuleParts,
    by_label,
    dirichlet,
    measure_skew,
    split_rows,
)
from harness.modules.task import Module
from harness.simulator.cluster import Cluster, Device, Fault, WorkerGroup, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from harness.store.schema import MODEL
from tests.experiments import experiment
from tests.killed import check_resumption
from tests.silence import silent

STEP_S, SIZE, SEED, EXAMPLES, PASSES = 0.01, 8, 3, 130, 3
CLUSTER = Cluster(
    "uneven",
    {"quick": Device(launch_s=STEP_S), "slow": Device(launch_s=2.5 * STEP_S)},
    (WorkerGroup(2, "quick"), WorkerGroup(2, "slow")),
)
LOSSY = replace(CLUSTER, faults=(Fault("death", mean_s=0.15, down_s=0.02),))


def uneven(targets, workers, random):
    """Shares of unequal size, the first smaller than a minibatch."""
    rows = random.permutation(len(targets))
    return np.split(rows, [5, 40, 70][: workers - 1])


def configured(algorithm=None, protocol=None, partition=uneven, **further) -> Experiment[Module]:
    """A run on examples that are known by their number, which is also their input."""
    x = torch.arange(EXAMPLES, dtype=torch.float64)[:, None]
    y = torch.arange(EXAMPLES) % 5
    dev = Arrays(x[:4], y[:4])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 5)).double()
    loss = nn.functional.cross_entropy
    problem = ModuleParts(model, loss, Arrays(x, y), dev, None, {}, partition=partition)
    usual = {"workers": 4, "passes": PASSES, "cluster": CLUSTER, "schedule": Constant(0.01)}
    return experiment(
        Module, algorithm=algorithm or AsyncSgd(), protocol=protocol, stages=(Stage(SIZE, SIZE),),
        evaluations=2, seed=SEED, problem=problem, work=Workload(SIZE, 0.0, 0.0), tested="never",
        **(usual | further),
    )  # fmt: skip


def walk(shares, worker: int, steps: int) -> list[list[int]]:
    """Minibatches of a worker that goes around its share, shuffled anew each time."""
    rows: list[int] = []
    times = 0
    while len(rows) < steps * SIZE:
        named = stream(SEED, "frames of a worker", times, worker)
        rows += named.permutation(shares[worker]).tolist()
        times += 1
    return [rows[SIZE * k : SIZE * (k + 1)] for k in range(steps)]


KINDS = {
    "async": (AsyncSgd(), None),
    "async, two in flight": (AsyncSgd(), ParameterServer(depth=2)),
    "async, three minibatches": (AsyncSgd(), ParameterServer(push_every=3)),
    "sync": (GradientAveraging(), Averaging(1)),
    "averaging": (ModelAveraging(), Averaging(3)),
    "backup workers": (GradientAveraging(), BackupWorkers(backups=1)),
}


PARTITIONS = {"uneven": uneven, "by label": by_label, "dirichlet": Dirichlet(1.0)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_worker_goes_around_its_own_share(kind, partition, asked, tmp_path):
    config = configured(*KINDS[kind], partition)
    run = execute(config, Store(tmp_path), silent)
    shares = config.task.problem.shares(4, SEED)
    assert sorted(np.concatenate(shares).tolist()) == list(range(EXAMPLES))
    for worker, steps in asked.items():
        expected = walk(shares, worker, max(steps) + 1)
        assert {step: expected[step] for step in steps} == steps
    folded = load_timeline(run.path("timeline.parquet")).folded()
    assert run.summary["epochs"] == folded.steps.sum() * SIZE / EXAMPLES
    if kind == "backup workers":  # what they drop is handed out, and not trained
        return
    for worker, steps in asked.items():
        whose = folded.worker == worker
        if "two" not in kind:
            assert sorted(steps) == list(range(int(folded.steps[whose].sum())))
    at_once = config.handing.a_fold if not config.rounds else 1
    assert 0 <= run.summary["epochs"] * EXAMPLES - PASSES * EXAMPLES < 4 * at_once * SIZE


def test_a_fast_worker_goes_around_more_often(tmp_path):
    run = execute(configured(), Store(tmp_path), silent)
    folded = load_timeline(run.path("timeline.parquet")).folded()
    counts = np.bincount(folded.worker, minlength=4)
    assert counts.sum() == ceil(PASSES * EXAMPLES / SIZE)
    assert 2 * counts[2] < counts[0] < 3 * counts[2]


@pytest.mark.parametrize("cluster", [CLUSTER, LOSSY], ids=["whole", "workers fail"])
def test_stale_gradients_are_of_the_examples_that_each_worker_would_take_next(cluster, tmp_path):
    """Beside a plain loop over the same simulation, in which each worker counts for itself."""
    config = configured(cluster=cluster, passes=2)
    run = execute(config, Store(tmp_path), silent)
    told = load_timeline(run.path("timeline.parquet")).contributions
    whole = time_passes(config, config.task.problem.train).timeline
    rows, counts = whole.contributions, defaultdict(int)
    own = {}
    for first, worker in sorted(zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True)):
        own[first] = counts[worker]
        counts[worker] += 1
    shares, model = config.task.problem.shares(4, SEED), config.task.problem.module(SEED)
    walks = [walk(shares, worker, counts[worker] + 1) for worker in range(4)]
    names = list(dict(model.named_parameters()))
    versions = [{name: each.detach().clone() for name, each in model.named_parameters()}]
    x, y = config.task.problem.train.x, config.task.problem.train.y
    folded = whole.folded()
    columns = (folded.fold, folded.worker, folded.read_version, folded.first_step)
    for _, worker, read, first in zip(*(column.tolist() for column in columns), strict=True):
        some = torch.tensor(walks[worker][own[first]])
        params = {name: each.requires_grad_() for name, each in versions[read].items()}
        outputs = torch.func.functional_call(model, params, (x[some],))
        slopes = torch.autograd.grad(
            nn.functional.cross_entropy(outputs, y[some]), list(params.values())
        )
        last = versions[-1]
        pairs = zip(names, slopes, strict=True)
        versions.append({name: last[name].detach() - 0.01 * slope for name, slope in pairs})
    ours = load_file(run.path(MODEL))["model"]
    expected = torch.cat([versions[-1][name].flatten() for name in names])
    assert torch.allclose(ours, expected, rtol=0, atol=1e-9)
    if cluster is LOSSY:
        assert (told.fold == -2).any()


@pytest.mark.parametrize("kind", ["async", "averaging", "backup workers"])
def test_a_run_that_is_killed_goes_on_to_the_same_bytes(kind, tmp_path):
    config = configured(*KINDS[kind])
    check_resumption(config, tmp_path)


def test_a_record_replays_to_the_same_bytes(tmp_path):
    config = configured()
    run = execute(config, Store(tmp_path), silent)
    again = execute_again(config, run, Store(tmp_path), silent)
    assert again.path(MODEL).read_bytes() == run.path(MODEL).read_bytes()


def test_one_worker_has_all_data_and_every_partition_the_same_steps(tmp_path):
    found = [
        execute(configured(AsyncSgd(), None, each, workers=1), Store(tmp_path), silent)
        for each in (lambda y, workers, random: [np.arange(len(y))], lambda *_: [range(EXAMPLES)])
    ]
    assert found[0].hash != found[1].hash
    assert found[0].path(MODEL).read_bytes() == found[1].path(MODEL).read_bytes()


# -- identity ------------------------------------------------------------------------------------


def test_equal_shares_have_the_identity_and_the_summary_of_before(tmp_path):
    config = configured(partition=None)
    assert "partition" not in str(config.to_dict())
    assert (
        not {"label_skew", "smallest_share"}
        & execute(config, Store(tmp_path), silent).summary.keys()
    )


def test_a_partition_is_part_of_the_identity_by_its_settings_or_code():
    def first(y, workers, random):
        return np.array_split(np.arange(len(y)), workers)

    def second(y, workers, random):
        return np.array_split(np.arange(len(y))[::-1], workers)

    parts = [None, by_label, dirichlet(0.5), dirichlet(0.6), first, second]
    found = [configured(partition=each).to_dict()["problem"].get("partition") for each in parts]
    assert len({str(each) for each in found}) == len(parts)
    assert found[:3] == [None, "by_label", {"is": "Dirichlet", "alpha": 0.5}]
    again = configured(partition=dirichlet(0.5)).to_dict()["problem"]["partition"]
    assert again == found[2]


# -- partitions ----------------------------------------------------------------------------------


def split(partition, targets, workers, seed=0):
    return split_rows(partition, targets, len(targets), workers, seed)


def test_by_label_gives_each_worker_as_few_classes_as_equal_shares_allow():
    targets = torch.tensor([2, 0, 1, 0, 2, 1] * 4)
    assert [set(targets[rows].tolist()) for rows in split(by_label, targets, 3)] == [{0}, {1}, {2}]
    halves = split(by_label, targets, 2)
    assert [len(rows) for rows in halves] == [12, 12]
    assert [set(targets[rows].tolist()) for rows in halves] == [{0, 1}, {1, 2}]
    assert [rows.tolist() for rows in split(by_label, targets, 2, 1)] != [
        rows.tolist() for rows in halves
    ]


def test_dirichlet_shares_of_a_class_have_the_mean_and_variance_of_the_distribution():
    alpha, workers, draws = 0.7, 4, 400
    targets = np.zeros(4000, np.int64)
    shares = [
        [len(rows) / 4000 for rows in split(Dirichlet(alpha), targets, workers, seed)]
        for seed in range(draws)
    ]
    # A draw with a share below ten examples is repeated, which moves the moments by less than this.
    found, mean = np.array(shares), 1 / workers
    variance = mean * (1 - mean) / (workers * alpha + 1)
    assert found.mean(0) == pytest.approx([mean] * workers, abs=5 * (variance / draws) ** 0.5)
    assert found.var() == pytest.approx(variance, rel=0.15)


def test_the_skew_falls_from_one_class_each_to_equal_shares():
    targets = torch.arange(4000) % 10
    skews = [
        measure_skew(split(Dirichlet(alpha), targets, 8), targets)["label_skew"]
        for alpha in (0.1, 1.0, 10.0, 1e5)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5
    assert skews[-1] < 0.02


def test_the_skew_is_that_by_hand():
    targets = torch.tensor([0, 0, 0, 1])  # of all: 3/4 and 1/4
    shares = [np.array([0, 1]), np.array([2, 3])]  # 1 and 0; 1/2 and 1/2
    assert measure_skew(shares, targets) == {
        "smallest_share": 2.0,
        "largest_share": 2.0,
        "label_skew": 0.25,
    }
    assert "label_skew" not in measure_skew(shares, targets.double())


def test_the_skew_is_in_the_run_the_row_and_below_the_table(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = torch.arange(200) % 4
    result = lagbench.compare(
        *(lambda: nn.Linear(6, 4), nn.functional.cross_entropy, (x, y)), dev=(x[:10], y[:10]),
        cluster=CLUSTER, algorithms=["async", "sync"], workers=[1, 4], rates=0.1, seeds=1, passes=1,
        step_seconds=0.01, partition="by_label", store=tmp_path,
    )  # fmt: skip
    expected = {"label_skew": 0.75, "smallest_share": 50.0, "largest_share": 50.0}
    assert [row.skew for row in result.rows if row.cell.workers == 4] == [expected] * 2
    assert result.rows[1].cell.runs[0].summary["label_skew"] == 0.75
    told = "50 to 50 examples each of 4, classes 0.75 from those of all (total variation)"
    assert str(result).splitlines()[-1] == f"workers' data differ: {told}"


# -- mistakes ------------------------------------------------------------------------------------

LABELS = torch.arange(100) % 10


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        (lambda y, n, r: [range(100)], "gives 1 shares; allowed: the rows of each of 4 workers"),
        (lambda y, n, r: [range(100), [], [], []], "worker 1 a share of shape [0]"),
        (lambda y, n, r: [range(97), [98], [99], [100]], "gives row 100; allowed"),
        (lambda y, n, r: [range(98), [98], [98], [99]], "gives row 98 2 times"),
        (lambda y, n, r: [range(96), [97], [98], [99]], "gives row 96 0 times"),
        (lambda y, n, r: [[0.5], [1], [2], [3]], "raised"),
        (lambda y, n, r: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_what_is_no_partition_is_refused_in_one_line(partition, told):
    with pytest.raises(UserError) as caught:
        split(partition, LABELS, 4)
    assert str(caught.value).startswith("partition: ")
    assert told in str(caught.value)


def test_draws_that_all_leave_a_worker_too_few_examples_are_given_up():
    with pytest.raises(UserError, match="one of 20 workers fewer than 1 examples; allowed: a lar"):
        split(dirichlet(1e-6), LABELS, 20)  # of ten classes, each at one worker


@pytest.mark.parametrize(
    "targets", [torch.zeros(20, 1), torch.zeros(20), torch.zeros(20, 2).long()]
)
@pytest.mark.parametrize("partition", [by_label, Dirichlet(1.0)])
def test_classes_are_needed_where_they_are_used(targets, partition):
    with pytest.raises(UserError, match="needs targets that are class numbers"):
        split(partition, targets, 4)


@pytest.mark.parametrize("asked", ["even", "dirichlet", "dirichlet:0", "dirichlet:x", 3, int])
def test_other_values_are_refused_by_name(asked, tmp_path):
    with pytest.raises(UserError, match=r"^partition: .*allowed"):
        lagbench.train(
            *(nn.Linear(6, 4), nn.functional.cross_entropy, (torch.randn(100, 6), LABELS)),
            cluster=CLUSTER, rate=0.1, partition=asked, store=tmp_path,
        )  # fmt: skip


def test_real_processes_share_data_in_rounds_alone():
    assert configured().counts_by_worker
    assert not configured(*KINDS["sync"]).counts_by_worker
    assert not configured(partition=None).counts_by_worker
