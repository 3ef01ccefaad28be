"""Parameters in bfloat16, autocast, tied and frozen parameters: the same as a plain loop."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import lagbench
from harness.base.errors import UserError
from harness.experiment.methods import method_of, with_optimizer
from harness.experiment.run import run as execute
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.trained import load_into
from harness.store import Store
from harness.store.schema import MODEL
from tests.harness.modules.test_modules import RATE, configured, plain_loop
from tests.killed import check_resumption
from tests.modules import Transformer, mlp, points, rows, symbols_loss
from tests.silence import silent


def tied() -> nn.Module:
    """A transformer whose embeddings are its output layer too."""
    model = Transformer()
    model.out.weight = model.symbols.weight
    return model


def frozen() -> nn.Module:
    """A perceptron with a frozen layer between trained ones, and a frozen bias."""
    model = mlp()
    model[3].requires_grad_(False)
    model[0].bias.requires_grad_(False)
    return model


def problem_of(model, loss, data, **further) -> ModuleParts:
    train, dev = Arrays(*data).split(0.2)
    return ModuleParts(model, loss, train, dev, None, {}, **further)


def made(kind: str, **further) -> ModuleParts:
    torch.manual_seed(0)
    if kind == "tied":
        return problem_of(tied(), symbols_loss, rows(), **further)
    model = frozen() if kind == "frozen" else mlp()
    if kind == "bfloat16":
        model = model.bfloat16()
    return problem_of(model, functional.cross_entropy, points(), **further)


def adamw(parameters):
    return torch.optim.AdamW(parameters, RATE, weight_decay=0.0)


def momentum(parameters):
    return torch.optim.SGD(parameters, RATE, momentum=0.9)


def same(run, model) -> bool:
    own = load_into(copy.deepcopy(model), run)
    return all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(own.parameters(), model.parameters(), strict=True)
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", ["async", "sync", "averaging:5"])
@pytest.mark.parametrize("kind", ["tied", "frozen"])
def test_one_worker_is_a_plain_loop_bit_for_bit(kind, method, tmp_path):
    problem, named = made(kind), method_of(method)
    config = configured(problem, named.algorithm, named.protocol, workers=1)
    run = execute(config, Store(tmp_path), silent)
    untrained = copy.deepcopy(problem.module(0))
    model = plain_loop(config)
    assert same(run, model)
    for before, after in zip(untrained.parameters(), model.parameters(), strict=True):
        assert torch.equal(before, after) != after.requires_grad


@pytest.mark.parametrize("method", ["async", "sync", "averaging:5"])
def test_bfloat16_is_a_plain_loop_over_one_vector_bit_for_bit(method, tmp_path):
    # PyTorch rounds `add_` of bfloat16 otherwise in the last elements of a tensor, so the step is
    # over one vector here too. Gradients are the module's.
    named = method_of(method)
    config = configured(made("bfloat16"), named.algorithm, named.protocol, workers=1)
    run, model = (
        execute(config, Store(tmp_path), silent),
        copy.deepcopy(config.task.problem.module(0)),
    )
    train = config.task.problem.train.to("cpu", torch.bfloat16)
    parameters = list(model.parameters())
    for stage in range(config.passes):
        order = config.order(stage, train)
        for step in range(order.steps):
            index = torch.as_tensor(order.rows_of([(0, step)])[0])
            loss = functional.cross_entropy(model(train.x[index]), train.y[index])
            slopes = torch.autograd.grad(loss, parameters)
            vector = torch.cat([p.detach().flatten() for p in parameters])
            vector.add_(torch.cat([slope.flatten() for slope in slopes]), alpha=-RATE)
            parts = vector.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.data = part.view_as(parameter)
    assert same(run, model)
    assert {p.dtype for p in parameters} == {torch.bfloat16}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "theirs"), [("momentum", momentum), ("adamw", adamw)])
@pytest.mark.parametrize("kind", ["tied", "frozen"])
def test_optimizers_see_tied_parameters_once_and_frozen_ones_never(kind, name, theirs, tmp_path):
    problem, method = made(kind), with_optimizer(method_of("async"), name)
    train, dev = (part.to("cpu", torch.float64) for part in (problem.train, problem.dev))
    problem = ModuleParts(problem.model.double(), problem.loss, train, dev, None, {})
    config = configured(problem, method.algorithm, method.protocol, workers=1)
    run = execute(config, Store(tmp_path), silent)
    untrained, model = copy.deepcopy(problem.module(0)), plain_loop(config, theirs)
    own = load_into(untrained, run)
    for ours, parameter in zip(own.parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, parameter, rtol=1e-5, atol=1e-5)


def test_bfloat16_goes_on_to_the_same_bits_after_a_death(tmp_path):
    method = with_optimizer(method_of("averaging:3"), "momentum")
    config = configured(made("bfloat16"), method.algorithm, method.protocol, workers=3)
    run = check_resumption(config, tmp_path)
    assert load_file(run.path(MODEL))["model"].dtype == torch.int16


def test_autocast_is_that_of_a_plain_loop_and_another_run(tmp_path):
    problem = made("plain", autocast="bfloat16")
    config = configured(problem, workers=1)
    run = execute(config, Store(tmp_path), silent)
    plain = configured(made("plain"), workers=1)
    assert "autocast" not in plain.to_dict()["problem"]
    assert run.config["problem"]["autocast"] == "torch.bfloat16"
    model = copy.deepcopy(problem.module(0))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for stage in range(config.passes):
        order = config.order(stage, problem.train)
        for step in range(order.steps):
            index = torch.as_tensor(order.rows_of([(0, step)])[0])
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(problem.train.x[index])
                loss = functional.cross_entropy(outputs, problem.train.y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert outputs.dtype == torch.bfloat16
    assert same(run, model)
    assert not same(execute(plain, Store(tmp_path), silent), model)


def test_other_types_are_refused_in_one_line():
    for asked in ("float16", torch.float32, 16):
        with pytest.raises(UserError, match=f"autocast: {asked!r}; allowed: None, 'bfloat16' or"):
            made("plain", autocast=asked)
    narrow = nn.Linear(6, 3).to(torch.float8_e4m3fn)
    with pytest.raises(UserError, match=r"parameters of torch.float8_e4m3fn; allowed: bfloat16"):
        problem_of(narrow, functional.cross_entropy, points()).module(0)


def test_numbers_of_two_bytes_are_charged_as_such(tmp_path):
    assert made("bfloat16").bytes_of_number == 2.0
    assert made("plain").bytes_of_number == 4.0


def test_two_workers_in_bfloat16_from_a_program(tmp_path):
    torch.manual_seed(0)
    result = lagbench.compare(
        *(mlp().bfloat16(), functional.cross_entropy, points()),
        **{"cluster": "k20m-server", "algorithms": ["async", "averaging:2"], "workers": [2]},
        **{"rates": RATE, "seeds": 1, "passes": 2, "step_seconds": 0.01, "store": tmp_path},
    )
    assert [run.status for run in result.runs] == ["done", "done"]
    assert {p.dtype for p in result.model().parameters()} == {torch.bfloat16}
