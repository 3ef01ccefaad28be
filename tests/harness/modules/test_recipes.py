"""Recipes of the field, for every algorithm: one worker is the plain loop of torch."""

import math

import pytest
import torch
from torch import nn

from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd
from harness.algorithms.averaging import Easgd, GradientAveraging, ModelAveraging
from harness.algorithms.contract import Algorithm
from harness.algorithms.descent import AdamW, Momentum, Muon
from harness.algorithms.schedules import (
    Cosine,
    Exponential,
    Linear,
    Rates,
    Schedule,
    StepRates,
    Steps,
    Warmup,
)
from harness.base.errors import UserError
from harness.experiment.run import run as execute
from harness.modules.network import GradientRules, ModuleNetwork, Parameters
from harness.modules.settings import schedule_of, with_decay
from harness.natural_gradient import NGSGD, NaturalGradient
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from tests.harness.modules.test_modules import (
    RATE,
    configured,
    final,
    must_equal,
    plain_loop,
    problem_of,
)  # fmt: skip
from tests.killed import check_resumption
from tests.modules import KINDS
from tests.silence import silent

ROUND = 4


def factor(share: float) -> float:
    """Warm-up and cosine, written once more."""
    if share < 0.2:
        return share / 0.2
    return 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * (share - 0.2) / 0.8))


def sgd(parameters):
    return torch.optim.SGD(parameters, RATE)


def momentum(parameters):
    return torch.optim.SGD(parameters, RATE, momentum=0.9)


ALGORITHMS: dict[str, tuple] = {
    "async": (AsyncSgd(), None, sgd),
    "async, momentum": (AsyncDescent(Momentum()), None, momentum),
    "sync": (GradientAveraging(), Averaging(1), sgd),
    "averaging": (ModelAveraging(), Averaging(ROUND), sgd),
    "averaging, momentum": (ModelAveraging(Momentum()), Averaging(ROUND), momentum),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["perceptron", "transformer"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_worker_with_warm_up_and_cosine_is_a_loop_with_a_scheduler_to_the_bit(
    name, kind, tmp_path
):
    assert kind in KINDS
    algorithm, protocol, made = ALGORITHMS[name]
    schedule = Cosine(RATE, warmup=0.2, floor=0.1)
    further = {"schedule": schedule, "workers": 1, "passes": 2}
    config = configured(problem_of(kind), algorithm, protocol, **further)
    run = execute(config, Store(tmp_path), silent)
    must_equal(run, plain_loop(config, made, factor=factor))


def test_elastic_averaging_follows_a_schedule_at_each_local_step(tmp_path):
    schedule = Cosine(RATE, warmup=0.2, floor=0.1)
    parts = (problem_of("perceptron"), Easgd(alpha=0.5), ParameterServer(push_every=ROUND))
    config = configured(*parts, schedule=schedule, workers=1, passes=1)
    run = execute(config, Store(tmp_path), silent)
    problem, order = config.task.problem, config.order(0, config.task.problem.train)
    model, folds = problem.module(config.seed), order.steps // ROUND
    own = [p.detach().clone() for p in model.parameters()]
    centre = [p.clone() for p in own]
    for step in range(folds * ROUND):
        rows = torch.as_tensor(order.rows_of([(0, step)])[0])
        with torch.no_grad():
            for p, value in zip(model.parameters(), own, strict=True):
                p.copy_(value)
        loss = problem.loss(model(problem.train.x[rows]), problem.train.y[rows])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        force, rate = 0.5 * (step % ROUND == 0), RATE * factor(step / ROUND / folds)
        pulls = [force * (c - x) for c, x in zip(centre, own, strict=True)]
        own = [x - rate * g + pull for x, g, pull in zip(own, slopes, pulls, strict=True)]
        centre = [c - pull for c, pull in zip(centre, pulls, strict=True)]
    ours = Parameters.from_module(model).views(final(run))
    for found, expected in zip(ours, centre, strict=True):
        assert torch.allclose(found, expected, atol=1e-5)


class Noted(Algorithm):
    """Asynchronous SGD that notes its learning rates."""

    remembers = False

    def __init__(self) -> None:
        self.folds: list[tuple[int, float]] = []
        self.local: list[float] = []

    def start(self, model):
        return AsyncSgd().start(model)

    def contribute(self, work):
        self.local.append(work.rate)
        return AsyncSgd().contribute(work)

    def fold(self, server, fold):
        self.folds.append((server.version, fold.rate))
        AsyncSgd().fold(server, fold)


@pytest.mark.parametrize("steps", [1, 3])
def test_folds_have_the_rate_of_their_version_and_local_steps_that_of_the_version_read(
    steps, tmp_path
):
    from harness.experiment.loop import SimulationExecutor

    config = configured(problem_of("perceptron"), AsyncSgd(), ParameterServer(push_every=steps))
    config = configured(
        config.task.problem, AsyncSgd(), config.protocol, schedule=Linear(RATE, warmup=0.0)
    )
    problem = config.task.open(config)
    folds = sum(config.order(stage, problem.pieces).folds for stage in range(2))
    minibatches = problem.minibatches(config)
    executor = SimulationExecutor(config, problem, problem.initial(), minibatches)
    executor.replay.algorithm = noted = Noted()
    timeline = executor.advance(minibatches.order.folds, handing_out=None, rate=RATE).folded()
    expected = [RATE * (1 - version / folds) for version, _ in noted.folds]
    assert [rate for _, rate in noted.folds] == pytest.approx(expected)
    assert len(set(expected)) == len(noted.folds) == minibatches.order.folds
    read = sorted(set(timeline.read_version.tolist()))  # equal versions are one batch
    wanted = [[RATE * (1 - (v * steps + k) / (folds * steps)) for k in range(steps)] for v in read]
    assert all(isinstance(each, StepRates) for each in noted.local)
    found = sorted({each.steps for each in noted.local}, reverse=True)
    assert [list(each) for each in found] == [pytest.approx(each) for each in wanted]


def test_a_constant_schedule_gives_the_executor_one_number():
    rates = Rates()
    assert rates.fold_rate(0.3, 7) == rates.step_rates(0.3, 7, 4) == 0.3
    assert not isinstance(rates.step_rates(0.3, 7, 4), StepRates)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Warmup(1.0, warmup=0.5), [0.0, 0.5, 1.0, 1.0]),
        (Linear(1.0, warmup=0.0, floor=0.5), [1.0, 0.875, 0.75, 0.625]),
        (Steps(1.0, at=(0.25, 0.75), by=0.1), [1.0, 0.1, 0.1, 0.01]),
        (Cosine(1.0, warmup=0.0, floor=1.0), [1.0] * 4),
        (Cosine(1.0, warmup=1.0), [0.0, 0.25, 0.5, 0.75]),
        (Exponential(1.0, passes=3), [1.0] * 4),
    ],
)
def test_factors_of_the_schedules(schedule: Schedule, expected):
    found = [schedule.factor_at(share) for share in (0.0, 0.25, 0.5, 0.75)]
    assert found == pytest.approx(expected)


def test_a_run_that_is_killed_with_stale_reads_goes_on_at_the_same_rates(tmp_path):
    schedule = Cosine(RATE, warmup=0.2)
    config = configured(problem_of("perceptron"), schedule=schedule, workers=4, evaluations=5)
    resumed = check_resumption(config, tmp_path)
    assert load_timeline(resumed.path("timeline.parquet")).staleness().max() > 0


def test_a_schedule_is_a_name_an_object_or_a_function_of_the_share():
    assert schedule_of("steps", 0.3) == Steps(0.3)
    assert schedule_of(Cosine(9.0, floor=0.2), 0.3) == Cosine(0.3, floor=0.2)
    own = schedule_of(lambda share: 1.0 - share, 0.3)
    assert own.rate == 0.3
    assert own.varies
    assert own.factor_at(0.25) == 0.75
    other = schedule_of(lambda share: 1.0 - share / 2, 0.3)
    assert own.to_identity() != other.to_identity()
    again = schedule_of(lambda share: 1.0 - share, 0.3)
    assert own.to_identity() == again.to_identity()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("cosin", "unknown 'cosin' (did you mean 'cosine'?)"),
        (torch.optim.lr_scheduler.CosineAnnealingLR, "torch's CosineAnnealingLR counts the steps"),
        (torch.optim.lr_scheduler.StepLR(sgd([nn.Parameter(torch.zeros(1))]), 3), "'steps'"),
        (3, "schedule: 3; allowed: 'cosine'"),
        (lambda share: "a", "gives 'a' where a share of 0.5 is done; allowed: a number from 0"),
        (lambda share: 1 / 0, "raised ZeroDivisionError"),
        (lambda share, step: 2, "raised TypeError"),
    ],
)
def test_what_is_no_schedule_is_one_line(asked, told):
    with pytest.raises(UserError, match=r"^schedule: ") as raised:
        schedule_of(asked, 0.1)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_function_that_gives_no_number_later_is_one_line():
    schedule = schedule_of(lambda share: 1.0 if share == 0.5 else math.nan, 0.1)
    with pytest.raises(UserError, match=r"gives nan where a share of 0\.25 is done"):
        schedule.factor_at(0.25)


def clip(model: nn.Module) -> None:
    clipped.append(bool(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3) > 0.3))


clipped: list[bool] = []


def decayed(parameters):
    return torch.optim.SGD(parameters, RATE, momentum=0.9, weight_decay=0.1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["perceptron", "transformer"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_clipping_and_microbatches_are_those_of_a_loop_to_the_bit(name, kind, tmp_path):
    algorithm, protocol, made = ALGORITHMS[name]
    further = {"clip": 0.3, "accumulate": 2, "workers": 1, "passes": 1}
    config = configured(problem_of(kind), algorithm, protocol, **further)
    run = execute(config, Store(tmp_path), silent)
    clipped.clear()
    model = plain_loop(config, made, clip=clip, parts=2)
    assert any(clipped)
    must_equal(run, model)


def test_weight_decay_comes_after_clipping_and_before_momentum(tmp_path):
    further = {"clip": 0.3, "weight_decay": 0.1, "workers": 1, "passes": 1}
    config = configured(problem_of("perceptron"), AsyncDescent(Momentum()), None, **further)
    run = execute(config, Store(tmp_path), silent)
    must_equal(run, plain_loop(config, decayed, clip=clip))


def test_natural_gradient_clips_before_and_decays_after_preconditioning(tmp_path):
    problem = problem_of("perceptron")
    further = {"clip": 0.3, "weight_decay": 0.1, "workers": 1, "passes": 1}
    config = configured(problem, AsyncDescent(NaturalGradient()), None, **further)
    run = execute(config, Store(tmp_path), silent)
    natural = NGSGD(problem.module(0), lr=RATE, weight_decay=0.1)
    must_equal(run, plain_loop(config, lambda _: natural, clip=clip), rtol=1e-5, atol=1e-6)


def test_rules_are_the_same_for_replicas_at_once_and_one_by_one():
    problem = problem_of("perceptron")
    rules = GradientRules(clip=0.3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    stack = problem.initial(0) + 0.1 * torch.randn(3, len(problem.initial(0)), generator=generator)
    x, y = (t[:24].view(3, 1, 8, *t.shape[1:]) for t in (problem.train.x, problem.train.y))
    found = []
    for together in (None, 1):
        network = ModuleNetwork(problem.module(0), problem.loss, together=together, rules=rules)
        found.append(torch.empty_like(stack))
        network.gradient(stack, x, y, found[-1])
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
    norms = (found[0] - 0.1 * stack).norm(dim=1)
    assert norms.tolist() == pytest.approx([0.3] * 3, rel=1e-4)


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_adamw_and_muon_decay_beside_the_gradient_wherever_they_are(kind):
    inner = ModelAveraging(descent=kind())
    expected = AdamW(decay=0.1) if kind is AdamW else Muon(rest=AdamW(decay=0.1), decay=0.1)
    assert with_decay(inner, 0.1) == ModelAveraging(descent=expected)
    assert with_decay(ModelAveraging(Momentum()), 0.1) == ModelAveraging(Momentum())
    assert with_decay(inner, 0.0) is inner
    with pytest.raises(UserError, match=r"weight_decay: 0\.2; .* of 0\.1; allowed: one"):
        with_decay(with_decay(inner, 0.1), 0.2)


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_the_decay_of_an_optimizer_is_the_learning_rate_times_the_parameters(kind):
    network = ModuleNetwork(nn.Linear(3, 2), torch.nn.functional.mse_loss)
    theta, slope = torch.randn(2, 8), torch.randn(2, 8)
    plain, decayed_ = slope.clone(), slope.clone()
    kind().direct_(plain, theta, kind().start(theta), network)
    kind(decay=0.5).direct_(decayed_, theta, kind().start(theta), network)
    shares = (decayed_ - plain) / theta
    weights = 6 if kind is Muon else 8  # Muon's biases have the decay of `rest`
    assert torch.allclose(shares[:, :weights], torch.tensor(0.5), atol=1e-5)


def test_a_minibatch_that_cannot_be_cut_is_one_line():
    with pytest.raises(UserError, match=r"^accumulate: 3; allowed: a divisor of minibatch, 8$"):
        configured(problem_of("perceptron"), accumulate=3)
