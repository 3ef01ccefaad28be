"""Training anybody's module: the same as a plain loop, whatever kills it."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.schedules import Constant
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.methods import method_of, with_optimizer
from harness.experiment.run import run as execute
from harness.modules.evaluation import wrong
from harness.modules.network import Parameters
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.task import Module
from harness.natural_gradient import NGSGD
from harness.simulator.cluster import Cluster, Device, WorkerGroup, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.store import Store
from harness.store.schema import MODEL
from tests.experiments import experiment
from tests.modules import KINDS
from tests.silence import silent

CLUSTER = Cluster("four", {"card": Device(launch_s=0.01)}, (WorkerGroup(4, "card"),))
SIZE, RATE = 8, 0.1


def problem_of(kind: str, **further) -> ModuleParts:
    made, loss, data = KINDS[kind]
    torch.manual_seed(0)
    train, dev = Arrays(*data()).split(0.2)
    return ModuleParts(further.get("model", made()), loss, train, dev, None, {"error": wrong})


def configured(problem: ModuleParts, algorithm=None, protocol=None, workers=4, **further):
    usual = {"passes": 2, "evaluations": 3, "seed": 0, "device": "cpu", "chunk": 1.0}
    usual |= {"schedule": Constant(RATE), "cluster": CLUSTER}
    return experiment(
        Module, algorithm=algorithm or AsyncSgd(), protocol=protocol, stages=(Stage(SIZE, SIZE),),
        workers=workers, problem=problem, work=Workload(SIZE, 0.0, 0.0), **(usual | further),
    )  # fmt: skip


def final(run) -> torch.Tensor:
    return load_file(run.path(MODEL))["model"]


def plain_loop(
    config: Experiment[Module], made=lambda p: torch.optim.SGD(p, RATE), *, factor=None, clip=None,
    parts=1,
) -> nn.Module:  # fmt: skip
    """What anybody writes: forward, backward, step, over the same minibatches."""
    problem = config.task.problem
    model = problem.module(config.seed)
    optimizer = made(model.parameters())
    orders = [config.order(stage, problem.train) for stage in range(config.passes)]
    steps = sum(order.steps for order in orders)
    rate_of = torch.optim.lr_scheduler.LambdaLR
    scheduler = factor and rate_of(optimizer, lambda step: factor(step / steps))
    for order in orders:
        for step in range(order.steps):
            rows = torch.as_tensor(order.rows_of([(0, step)])[0])
            optimizer.zero_grad()
            outputs = [model(problem.train.x[some]) for some in rows.chunk(parts)]
            problem.loss(torch.cat(outputs), problem.train.y[rows]).backward()
            if clip is not None:
                clip(model)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    return model


def must_equal(run, model: nn.Module, **bounds: float) -> None:
    places = Parameters.from_module(model)
    for name, ours in zip(places.names, places.views(final(run)), strict=True):
        theirs = model.get_parameter(name).detach()
        assert torch.allclose(ours, theirs, **{"rtol": 0.0, "atol": 0.0, **bounds}), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("algorithm", "protocol"),
    [(AsyncSgd(), None), (GradientAveraging(), Averaging(1)), (ModelAveraging(), Averaging(5))],
)
def test_one_worker_is_a_plain_loop_bit_for_bit(kind, algorithm, protocol, tmp_path):
    config = configured(problem_of(kind), algorithm, protocol, workers=1)
    run = execute(config, Store(tmp_path), silent)
    must_equal(run, plain_loop(config))


# Without the transformer under AdamW: the gradient of its keys' bias is rounding alone, which AdamW
# makes as large as any other.
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", ["async", "averaging:5"])
def test_natural_gradient_s_steps_are_those_of_ngsgd_to_the_bit(kind, named, tmp_path):
    method, problem = with_optimizer(method_of(named), "ngsgd"), problem_of(kind)
    config = configured(problem, method.algorithm, method.protocol, workers=1)
    run = execute(config, Store(tmp_path), silent)
    must_equal(run, plain_loop(config, lambda _: NGSGD(problem.module(0), RATE)))


@pytest.mark.parametrize(
    ("kind", "named", "optimizer", "workers", "rate", "share"),
    [
        ("convolutions", "async", "ngsgd", 2, RATE, 0.95),
        ("convolutions", "averaging:5", "ngsgd", 2, RATE, 0.95),
        ("transformer", "averaging:5", "muon", 4, 0.02, 0.9),
    ],
)
def test_several_workers_descend_each_with_memories_of_its_own(
    kind, named, optimizer, workers, rate, share, tmp_path
):
    method = with_optimizer(method_of(named), optimizer)
    further = {"workers": workers, "schedule": Constant(rate)}
    config = configured(problem_of(kind), method.algorithm, method.protocol, **further)
    losses = execute(config, Store(tmp_path), silent).curve("dev_loss/iterate")[1]
    assert losses[-1] < share * losses[0]


def test_a_loss_that_sums_is_measured_as_a_mean(tmp_path):
    x, y = KINDS["perceptron"][2]()
    train, dev = Arrays(x, y).split(0.2)
    found: dict[str, float] = {}
    for reduction, rate in {"mean": RATE, "sum": RATE / SIZE}.items():
        torch.manual_seed(0)
        loss = nn.CrossEntropyLoss(reduction=reduction)
        problem = ModuleParts(KINDS["perceptron"][0](), loss, train, dev, None, {})
        config = configured(problem, workers=1, schedule=Constant(rate), passes=1)
        assert ("loss" in config.to_dict()) == (reduction == "sum")
        run = execute(config, Store(tmp_path), silent)
        found[reduction] = run.summary["dev_loss/iterate"]
    assert found["sum"] == pytest.approx(found["mean"], rel=1e-5)


def test_training_leaves_the_user_s_random_numbers_and_module_alone(tmp_path):
    problem = problem_of("perceptron", model=nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1)))
    before, state = problem.initial(0).clone(), torch.get_rng_state()
    execute(configured(problem), Store(tmp_path), silent)
    assert torch.equal(problem.initial(0), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_rate_that_is_too_large_ends_as_diverged(tmp_path):
    config = configured(problem_of("perceptron"), schedule=Constant(1e38))
    run = execute(config, Store(tmp_path), silent)
    assert run.status == "diverged"
    assert "AsyncSgd at fold" in run.note
