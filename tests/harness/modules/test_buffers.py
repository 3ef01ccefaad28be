"""Running statistics: a worker's own, in the order of its own steps."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import lagbench
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.schedules import Search
from harness.base.errors import UserError
from harness.experiment.loop import SimulationExecutor
from harness.experiment.run import run as execute
from harness.modules.buffers import Buffers, deploy
from harness.modules.evaluation import wrong
from harness.modules.parts import Arrays, ModuleParts
from harness.processes import rank_main
from harness.simulator.cluster import Fault
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from harness.store.schema import MODEL, STATE
from tests.harness.modules.test_modules import CLUSTER, RATE, SIZE, configured
from tests.killed import check_resumption
from tests.modules import images
from tests.silence import silent


class Residual(nn.Module):
    """A residual network of one block, with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.after = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.relu(x + self.after(self.inner(x)))
        return self.out(functional.avg_pool2d(x, 2).flatten(1))


class Counting(nn.Module):
    """Buffers of several kinds: replaced by another tensor, shared, and never changed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(6, 3), nn.Module()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(6))
        self.register_buffer("fixed", torch.ones(3))
        self.inner.register_buffer("shared", self.largest)

    def forward(self, x):
        if self.training:
            self.seen = self.seen + len(x)
            self.largest.copy_(torch.maximum(self.largest, x.detach().amax(0)))
        return self.layer(x) * self.fixed + self.inner.shared.sum()


def problem_of(model: nn.Module, data=None, **further) -> ModuleParts:
    train, dev = Arrays(*(data or images(160))).split(0.2)
    return ModuleParts(
        model, functional.cross_entropy, train, dev, None, {"error": wrong}, **further
    )


def residual() -> nn.Module:
    torch.manual_seed(0)
    return Residual()


def minibatch_of(config, worker: int, step: int):
    """A minibatch by its number since the run began."""
    train, before = config.task.problem.train, 0
    for stage in range(config.passes):
        order = config.order(stage, train)
        if step < before + order.steps:
            rows = torch.as_tensor(order.rows_of([(worker, step - before)])[0])
            return train.x[rows], train.y[rows]
        before += order.steps
    raise AssertionError(step)


def one_step(module, config, worker: int, step: int) -> None:
    """A step of an ordinary loop."""
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    x, y = minibatch_of(config, worker, step)
    functional.cross_entropy(module(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def vector(module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def set_vector(module, values) -> None:
    parts = values.split([p.numel() for p in module.parameters()])
    for parameter, part in zip(module.parameters(), parts, strict=True):
        parameter.data.copy_(part.view_as(parameter))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("algorithm", "protocol"),
    [(AsyncSgd(), None), (GradientAveraging(), Averaging(1)), (ModelAveraging(), Averaging(5))],
    ids=["async", "sync", "averaging"],
)
@pytest.mark.parametrize("buffers", ["mean", "first", "local"])
def test_one_worker_is_a_plain_loop_to_the_bit_statistics_included(
    algorithm, protocol, buffers, tmp_path
):
    problem = problem_of(residual(), buffers=buffers)
    config = configured(problem, algorithm, protocol, workers=1)
    run = execute(config, Store(tmp_path), silent)
    own = copy.deepcopy(problem.module(0))
    for step in range(sum(config.order(stage, problem.train).steps for stage in (0, 1))):
        one_step(own, config, 0, step)
    assert torch.equal(load_file(run.path(MODEL))["model"], vector(own))
    found = load_file(run.path(STATE))
    assert found.keys() == dict(own.named_buffers()).keys()
    for name, buffer in own.named_buffers():
        assert torch.equal(found[name][0], buffer), name
    own.eval()
    with torch.no_grad():
        expected = functional.cross_entropy(own(problem.dev.x), problem.dev.y)
    assert run.summary["dev_loss/iterate"] == pytest.approx(float(expected), rel=1e-6)
    assert problem.module(0).norm.num_batches_tracked == 0


def walk(config, run):
    """The final parameters, and each worker's module when its last contribution was computed."""
    modules = [copy.deepcopy(config.task.problem.module(0)) for _ in range(config.workers)]
    rows = load_timeline(run.path("timeline.parquet")).folded()
    columns = (rows.fold, rows.worker, rows.first_step, rows.read_version, rows.steps)
    contributions = sorted(zip(*(c.tolist() for c in columns), strict=True))
    versions = [config.task.problem.initial(0)]
    for fold in range(contributions[-1][0] + 1):
        moved = []
        for at, worker, step, read, steps in contributions:
            if at == fold:
                set_vector(modules[worker], versions[read])
                for each in range(step, step + steps):
                    one_step(modules[worker], config, worker, each)
                moved.append(vector(modules[worker]) - versions[read])
        versions.append(versions[-1] + torch.stack(moved).mean(0))
    return versions[-1], modules


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    ("algorithm", "protocol"),
    [(AsyncSgd(), None), (GradientAveraging(), Averaging(1)), (ModelAveraging(), Averaging(3))],
    ids=["async", "sync", "averaging"],
)
def test_each_worker_has_the_statistics_of_its_own_steps(algorithm, protocol, workers, tmp_path):
    runs = {}
    for buffers in ("local", "mean", "first"):
        problem = problem_of(residual(), buffers=buffers)
        config = configured(problem, algorithm, protocol, workers=workers)
        runs[buffers] = execute(config, Store(tmp_path), silent)
    assert len({run.hash for run in runs.values()}) == 3
    model, modules = walk(config, runs["local"])
    found = {rule: load_file(run.path(STATE)) for rule, run in runs.items()}
    assert torch.allclose(load_file(runs["local"].path(MODEL))["model"], model, atol=1e-6)
    for name, _ in modules[0].named_buffers():
        each = torch.stack([module.get_buffer(name) for module in modules])
        assert found["local"][name].shape == each.shape
        assert torch.allclose(found["local"][name], each, rtol=1e-5, atol=1e-6), name
        assert torch.equal(found["first"][name], found["local"][name][:1])
        if each.is_floating_point():
            mean = found["local"][name].double().mean(0).to(each.dtype)
            assert torch.equal(found["mean"][name][0], mean)
        assert not each.is_floating_point() or not torch.equal(each[0], each[1])
    losses = {rule: run.summary["dev_loss/iterate"] for rule, run in runs.items()}
    for module in modules:
        set_vector(module, load_file(runs["local"].path(MODEL))["model"])
        module.eval()
    dev = config.task.problem.dev
    with torch.no_grad():
        own = [float(functional.cross_entropy(module(dev.x), dev.y)) for module in modules]
    assert losses["local"] == pytest.approx(sum(own) / workers, rel=1e-5)
    assert losses["first"] == pytest.approx(own[0], rel=1e-5)
    assert len(set(losses.values())) == 3


@pytest.mark.parametrize("protocol", [None, Averaging(3)], ids=["async", "rounds"])
def test_a_run_that_is_killed_goes_on_to_the_same_statistics(protocol, tmp_path):
    algorithm = ModelAveraging() if protocol else None
    config = configured(problem_of(residual()), algorithm, protocol, workers=3)
    check_resumption(config, tmp_path, (MODEL, STATE, "metrics.parquet"))


def test_statistics_of_lost_contributions_are_lost(tmp_path):
    config = configured(
        problem_of(residual(), buffers="local"),
        cluster=replace(CLUSTER, faults=(Fault("death", (1,), at_s=(0.055,), down_s=0.023),)),
        workers=2,
        passes=1,
    )
    problem = config.task.open(config)
    parts = problem, problem.initial(), problem.minibatches(config)
    assert SimulationExecutor(config, *parts).replay.alone
    run = execute(config, Store(tmp_path), silent)
    folded = load_timeline(run.path("timeline.parquet")).folded()
    counted = load_file(run.path(STATE))["norm.num_batches_tracked"].tolist()
    lost = load_timeline(run.path("timeline.parquet")).lost()
    assert len(lost)
    assert counted == [int((folded.worker == worker).sum()) for worker in (0, 1)]


def test_counters_replaced_and_shared_buffers_follow_too(tmp_path):
    torch.manual_seed(1)
    x, y = torch.randn(80, 6), torch.randint(3, (80,))
    problem = problem_of(Counting(), (x, y))
    config = configured(problem, workers=1, passes=1)
    run = execute(config, Store(tmp_path), silent)
    own = copy.deepcopy(problem.module(0))
    for step in range(config.order(0, problem.train).steps):
        one_step(own, config, 0, step)
    found = load_file(run.path(STATE))
    assert {"seen", "largest"} <= found.keys()
    assert found["seen"].tolist() == [int(own.seen)] == [64]
    assert torch.equal(found["largest"][0], own.largest)
    assert torch.equal(load_file(run.path(MODEL))["model"], vector(own))


def test_buffers_are_views_of_the_rows_of_a_state():
    module = Counting()
    buffers = Buffers.from_module(module, ["seen", "largest"])
    state = {name: torch.cat([t, t]) for name, t in buffers.fresh().items()}
    bound = buffers.bind(state, 1)
    module(torch.full((4, 6), 2.0))
    buffers.write_back(state, 1, bound)
    assert state["seen"].tolist() == [0, 4]
    assert state["largest"].tolist() == [[0.0] * 6, [2.0] * 6]
    assert module.inner.shared is module.largest
    assert deploy({}, buffers.fresh(), "mean")["seen"].shape == (1,)
    assert deploy({3: state, 1: state}, {}, "first")["seen"].tolist() == [0]


def test_no_search_of_rates_by_trial_and_an_unknown_rule_are_refused():
    with pytest.raises(UserError, match="schedule: no trial descents of a module"):
        configured(problem_of(residual()), schedule=Search(RATE))
    with pytest.raises(UserError, match="buffers: unknown 'last'; allowed: first, local, mean"):
        lagbench.train(
            residual(), functional.cross_entropy, images(), cluster="k20m-server", buffers="last"
        )


def test_real_processes_refuse_buffers_that_change_in_words():
    asked = SimpleNamespace(file=Path("run.toml"), restarts=0)
    config = configured(problem_of(residual()), workers=2)
    with pytest.raises(
        UserError, match=r"run.toml: model: its buffers change .* simulated cluster"
    ):
        rank_main.check(config, asked, 3)


def test_the_rule_is_said_once_and_jobs_give_the_same_bytes(tmp_path, capsys):
    def train(store, **more):
        given = {"cluster": "k20m-server", "workers": 2, "rate": RATE, "seeds": 2, "passes": 1}
        given |= {"step_seconds": 0.01, "minibatch": SIZE, "store": tmp_path / store}
        return lagbench.train(
            residual(), functional.cross_entropy, images(160), **given, **more
        ).runs

    alone = train("alone")
    said = capsys.readouterr().err
    assert said.count("each worker has buffers of its own (norm.running_mean and 5 more)") == 1
    for one, other in zip(alone, train("jobs", jobs=2), strict=True):
        for name in (MODEL, STATE):
            assert one.path(name).read_bytes() == other.path(name).read_bytes()


def test_a_result_gives_its_trained_modules_back(tmp_path):
    model, data = residual(), images(160)
    before = vector(model).clone()
    result = lagbench.compare(
        *(model, functional.cross_entropy, data),
        **{"cluster": "k20m-server", "algorithms": ["async", "sync"], "workers": [2]},
        **{"rates": RATE, "seeds": [3, 4], "passes": 1, "step_seconds": 0.01, "dev": data},
        **{"minibatch": SIZE, "store": tmp_path, "buffers": "local"},
    )
    errors = [row.error.estimate for row in result.rows]
    best = errors.index(min(errors))
    for given in ({}, {"row": 1, "seed": 4}, {"row": 0, "seed": 3}):
        row, seed = given.get("row", best), given.get("seed", 3)
        (run,) = (each for each in result.rows[row].cell.runs if each.config["seed"] == seed)
        trained = [result.model(**given, worker=worker) for worker in (0, 1)]
        assert not trained[0].training
        with torch.no_grad():
            losses = [float(functional.cross_entropy(each(data[0]), data[1])) for each in trained]
        assert run.summary["dev_loss/iterate"] == pytest.approx(sum(losses) / 2, rel=1e-6)
        own = lagbench.load_into(Residual(), run)
        for name, tensor in own.state_dict().items():
            assert torch.equal(tensor, trained[0].state_dict()[name])
    assert torch.equal(vector(model), before)
    for given, told in (
        ({"row": 2}, "row: 2; allowed: from 0 to 1"),
        ({"seed": 9}, "seed: 9; allowed: 3, 4"),
        ({"worker": 2}, "worker: 2; allowed: from 0 to 1"),
    ):
        with pytest.raises(UserError, match=told):
            result.model(**given)
    with pytest.raises(UserError, match=r"model: 30 trained parameters, the run has \d+"):
        lagbench.load_into(nn.Linear(5, 5), result.runs[0])
