"""What a user's model, loss and metrics hold besides parameters and buffers is refused or kept."""

from __future__ import annotations

import functools
import pickle
import random
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

import lagbench
from harness.base.errors import UserError
from harness.base.log import LOG as LAGBENCH
from harness.experiment.digests import VARYING
from harness.modules.network import copy_module
from harness.modules.parts import Arrays, ModuleParts

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
CALLS = 0


class Base(nn.Module):
    """A layer, and one attribute more."""

    def __init__(self, value: object = None) -> None:
        super().__init__()
        self.inner, self.value = nn.Linear(4, 1), value


class Counting(Base):
    def forward(self, x):
        self.value += 1
        return self.inner(x) * self.value


class InAList(Base):
    def forward(self, x):
        self.value[0] = self.value[0] + 1
        return self.inner(x) * self.value[0]


class Carried(Base):
    """A state that starts as None, such as a recurrent one."""

    def forward(self, x):
        h = torch.zeros(1) if self.value is None else self.value
        out = self.inner(x) + h
        self.value = out.mean().detach()
        return out


class Written(Base):
    """A tensor that is no buffer, written with what it holds at first."""

    def forward(self, x):
        self.value.lerp_(self.inner.weight.detach(), 0.1)
        return self.inner(x)


class FromFirst(Base):
    """Something that the first call makes."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def forward(self, x):
        if self.value is None:
            self.value = self.make(self, x)
        return self.inner(x / self.value)


class OwnGenerator(Base):
    def forward(self, x):
        return self.inner(x) * float(self.value.normal(1.0, 0.1))


class OfItsClass(Base):
    count = 0

    def forward(self, x):
        type(self).count += 1
        return self.inner(x) * self.count


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return functional.mse_loss(outputs, targets) * self.calls


class Calling(Base):
    memory = SimpleNamespace(function=Slotted())

    def forward(self, x):
        return self.inner(x) * (self.value or self.memory.function)(x, 0 * x)


class InEvaluation(Base):
    def forward(self, x):
        self.value = self.value if self.training else self.value + 1
        return self.inner(x) * self.value


def written():
    module = Written()
    module.value = module.inner.weight.detach().clone()
    return module


class OfOtherData(Base):
    """A state that the first call does not write: how often weights were below a limit."""

    def __init__(self) -> None:
        super().__init__(0)
        self.limit = 0.85 * float(self.inner.weight.detach().abs().mean())

    def forward(self, x):
        self.value += float(self.inner.weight.detach().abs().mean()) < self.limit
        return self.inner(x) * (1.0 + self.value)


REFUSED = {
    "other data": OfOtherData,
    "count": lambda: Counting(0),
    "tensor": lambda: Counting(torch.zeros(())),
    "list": lambda: InAList([1.0]),
    "array": lambda: InAList(np.ones(1)),
    "None at first": Carried,
    "an equal value": written,
    "first data": lambda: FromFirst(lambda model, x: x.std(0)),
    "first weights": lambda: FromFirst(lambda model, x: model.inner.weight.detach()[0].clone()),
    "first draw": lambda: FromFirst(lambda model, x: torch.rand(4)),
    "generator": lambda: OwnGenerator(np.random.default_rng(0)),
    "class": OfItsClass,
    "submodule": lambda: nn.Sequential(nn.Linear(4, 4), Counting(0)),
    "evaluation": lambda: InEvaluation(0),
    "object with slots": lambda: Calling(Slotted()),
    "function": lambda: Calling(counting_closure()),
    "object of a class": Calling,
}


def inspect(model, loss=functional.mse_loss, metrics=None):
    arrays = Arrays(X, Y)
    return ModuleParts(model, loss, arrays, arrays, None, metrics or {}).inspect(16, "cpu")


@pytest.mark.parametrize("kind", REFUSED)
def test_a_state_outside_of_buffers_is_refused(kind):
    with pytest.raises(UserError, match=r"model: '.*' changes from call to call.*register_buffer"):
        inspect(REFUSED[kind]())


class Storing(Base):
    def forward(self, x):
        self.value = self.inner(x)
        return self.value


class Logging(Base):
    def forward(self, x):
        self.value.append(len(x))
        return self.inner(x)


@pytest.mark.parametrize(
    "model",
    [Storing(), Logging([]), FromFirst(lambda model, x: torch.ones(x.shape[1])), nn.LSTM(4, 1)],
)
def test_what_no_later_call_depends_on_is_taken(model):
    def loss(outputs, targets):
        return functional.mse_loss(outputs[0] if isinstance(outputs, tuple) else outputs, targets)

    inspect(model, loss)


def counting_global(outputs, targets):
    global CALLS
    CALLS += 1
    return functional.mse_loss(outputs, targets) * CALLS


def counting_closure():
    count = 0

    def loss(outputs, targets):
        nonlocal count
        count += 1
        return functional.mse_loss(outputs, targets) * count

    return loss


def counting_wrapped():
    return functools.wraps(functional.mse_loss)(counting_closure())


def counting_attribute(outputs, targets):
    counting_attribute.calls += 1
    return functional.mse_loss(outputs, targets) * counting_attribute.calls


counting_attribute.calls = 0


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs, targets, weight=1.0):
        self.calls += 1
        return functional.mse_loss(outputs, targets) * self.calls * weight


class Centred(nn.Module):
    """A loss with a buffer that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))

    def forward(self, outputs, targets):
        self.centre.lerp_(outputs.detach().mean(0), 0.1)
        return functional.mse_loss(outputs - self.centre, targets)


TALLY, DRAWS = [0], random.Random(0)
LOG = []


def tally():
    TALLY[0] += 1
    return TALLY[0]


def counting_in_a_list(outputs, targets):
    return functional.mse_loss(outputs, targets) * tally()


def drawing(outputs, targets):
    return functional.mse_loss(outputs, targets) * DRAWS.random()


LOSSES = {
    "TALLY": lambda: counting_in_a_list,
    "DRAWS": lambda: drawing,
    "CALLS": lambda: counting_global,
    "count": counting_closure,
    "counting_attribute.calls": lambda: counting_attribute,
    "calls": Counted,
    "calls/slots": Slotted,
    "count/wrapped": counting_wrapped,
    "centre": Centred,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_or_metric_that_keeps_a_state_is_refused(name):
    model, told = nn.Linear(4, 1), f"{re.escape(repr(name.split('/')[0]))} changes from call"
    with pytest.raises(UserError, match=f"^loss: {told}.*a buffer of the model"):
        inspect(model, LOSSES[name]())
    with pytest.raises(UserError, match=f"^metric: own: {told}.*outputs and targets alone"):
        inspect(model, metrics={"own": LOSSES[name]()})
    if name == "calls":
        with pytest.raises(UserError, match=told):
            inspect(model, functools.partial(Counted(), weight=2.0))


def logged(outputs, targets):
    value = functional.mse_loss(outputs, targets)
    LOG.append(value.item())
    return value


def collecting(into):
    def loss(outputs, targets):
        into.extend([1.0])
        return functional.mse_loss(outputs, targets)

    return loss


@pytest.mark.parametrize(
    ("model", "loss", "name"),
    [
        (nn.Linear(4, 1), logged, "LOG"),
        (nn.Linear(4, 1), collecting([]), "collecting.<locals>.loss.into"),
    ],
)
def test_what_calls_change_without_harm_identifies_no_run(model, loss, name, caplog):
    """Three equal problems have one identity, here and in another process; a line says so."""
    LAGBENCH.addHandler(caplog.handler)
    VARYING.clear()
    found = []
    for _ in range(3):
        arrays = Arrays(X, Y)
        problem = ModuleParts(model, loss, arrays, arrays, None, {})
        problem.inspect(16, "cpu")
        found.append(problem.to_identity())
    LAGBENCH.removeHandler(caplog.handler)
    told = f"{__name__}.{name}: calls change it, so its value is no part of a run's identity"
    assert found[0] == found[1] == found[2]
    assert caplog.messages == [told]
    VARYING.clear()
    assert pickle.loads(pickle.dumps(problem)).to_identity() == found[0]
    VARYING.clear()


def test_parameters_of_a_loss_are_refused():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, targets):
            return functional.mse_loss(self.scale * outputs, targets)

    model = nn.Linear(4, 1)
    with pytest.raises(UserError, match="loss: depends on parameters that are not"):
        inspect(model, Scaled())
    with pytest.raises(UserError, match="loss: depends on parameters that are not"):
        inspect(model, functools.partial(Scaled()))
    inspect(model, Scaled().requires_grad_(False))


class Averaged(nn.Module):
    """The weights' moving average in a buffer that equals them at first."""

    def __init__(self, *, replaced: bool = False) -> None:
        super().__init__()
        self.inner, self.replaced = nn.Linear(4, 1), replaced
        self.register_buffer("shadow", self.inner.weight.detach().clone())

    def forward(self, x):
        if not self.training:
            return x @ self.shadow.T + self.inner.bias
        if self.replaced:
            self.shadow = self.shadow.lerp(self.inner.weight.detach(), 0.1)
        else:
            self.shadow.lerp_(self.inner.weight.detach(), 0.1)
        return self.inner(x)


def must_train_alike(tmp_path, model: nn.Module) -> None:
    found = train(tmp_path, model).model()
    for _ in range(8):
        step(model)
    torch.testing.assert_close(found.state_dict(), model.state_dict())


@pytest.mark.parametrize("replaced", [False, True])
def test_an_average_of_the_weights_is_a_plain_loops(tmp_path, replaced):
    must_train_alike(tmp_path, Averaged(replaced=replaced))


class Kept(nn.Module):
    """Buffers, of which a function writes one in training."""

    def __init__(self, write, kept, held_of=None) -> None:
        super().__init__()
        self.inner, self.write, self.norm = nn.Linear(4, 1), write, nn.BatchNorm1d(4)
        self.register_buffer("kept", kept)
        if held_of is not None:
            self.held = held_of(self)

    def forward(self, x):
        if self.training:
            self.write(self, x)
        return self.inner(self.norm(x)) * (1 if self.kept is None else self.kept.mean())


def through_numpy(module, x):
    module.kept.numpy()[:] += 0.1


BY_DATA = [lambda m, x: m.kept.data.add_(0.1), lambda m, x: setattr(m.kept, "data", m.kept + 0.1)]


@pytest.mark.parametrize("write", [through_numpy, *BY_DATA])
def test_a_buffer_written_unseen_by_versions_is_a_plain_loops(tmp_path, write):
    must_train_alike(tmp_path, Kept(write, torch.ones(4)))


def replace(module, x):
    module.kept = x.mean(0).detach()


def teacher(module):
    return nn.Parameter(module.inner.weight.detach().clone(), requires_grad=False)


@pytest.mark.parametrize(
    ("write", "kept", "held_of", "told"),
    [
        (
            replace,
            torch.ones(5),
            None,
            r"'kept' is torch.float32 \[5\] at first, and .* \[4\] after",
        ),
        (replace, None, None, "'kept' is None at first, and torch.float32"),
        (replace, torch.ones(4).long(), None, "'kept' is torch.int64 .* torch.float32"),
        (
            lambda m, x: m.held.data.lerp_(m.inner.weight, 0.1),
            X[0],
            teacher,
            "writes the .* 'held'",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused(write, kept, held_of, told):
    with pytest.raises(UserError, match=f"^model: .*{told}"):
        inspect(Kept(write, kept, held_of))


def late(module, x):
    if module.norm.num_batches_tracked > 6:
        module.kept.data.mul_(0.5)


def test_what_is_first_written_late_in_training_ends_it(tmp_path):
    with pytest.raises(UserError, match=r"^model: training has written 'kept'"):
        train(tmp_path, Kept(late, torch.ones(4)))


def train(store, model, **settings):
    """Eight steps on all examples at once."""
    return lagbench.train(
        model, functional.mse_loss, (X, Y),
        **{"dev": (X, Y), "metric": "mse", "cluster": "k20m-server", "workers": 1},
        **{"rate": 0.01, "minibatch": 64, "passes": 8, "seeds": 1, "step_seconds": 0.01},
        store=store, **settings,
    )  # fmt: skip


def step(model):
    functional.mse_loss(model(X), Y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


def pruned():
    module = nn.Linear(4, 1)
    prune.random_unstructured(module, "weight", 0.5)
    return module


def normed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(4, 1))


@pytest.mark.parametrize("make", [pruned, normed], ids=["pruned", "weight_norm"])
def test_weights_computed_before_each_forward_are_trained_as_in_a_plain_loop(tmp_path, make):
    must_train_alike(tmp_path, make())


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_are_refused(hook):
    model = nn.Linear(4, 1)
    getattr(model.weight, hook)(lambda _: None)
    with pytest.raises(UserError, match="the parameter 'weight' has a hook"):
        inspect(model)


def test_attributes_of_parameters_are_copied():
    model = nn.Linear(4, 1)
    model.weight.mask = torch.ones(4)
    assert torch.equal(copy_module(model).weight.mask, torch.ones(4))


def test_a_forward_that_writes_parameters_is_refused():
    class Clipping(Base):
        def forward(self, x):
            self.inner.weight.data.clamp_(-0.1, 0.1)
            return self.inner(x)

    with pytest.raises(UserError, match=r"forward writes the parameter 'inner\.weight'"):
        inspect(Clipping())


def _penalties(model):
    loss, weight = nn.functional.cross_entropy, model[0].weight
    held = {"parameters": list(model.parameters())}

    def by_global(o, t):
        return loss(o, t) + sum(p.pow(2).sum() for p in held["parameters"])

    def by_argument(model, o, t):
        return loss(o, t) + model[0].weight.norm()

    yield by_global
    yield functools.partial(by_argument, model)
    yield lambda o, t, w=weight: loss(o, t) + w.norm()
    yield lambda o, t: loss(o, t) + model[0].weight.norm()


def test_a_loss_of_parameters_that_are_not_the_models_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(8, 2))
    x, y = torch.randn(64, 8), torch.arange(64) % 2
    for loss in _penalties(model):
        with pytest.raises(UserError, match="not the model's"):
            lagbench.train(
                model, loss, (x, y), cluster="k20m-server", algorithm="async", workers=1, rate=0.1,
                passes=1, seeds=[0], step_seconds=1e-3, store=tmp_path,
            )  # fmt: skip


def test_a_metric_that_writes_what_it_gets_spoils_no_other(tmp_path):
    def write(outputs, targets):
        outputs.mul_(0)
        targets.mul_(0)
        return 0.5

    x, y = torch.randn(64, 8), torch.arange(64) % 2
    result = lagbench.train(
        nn.Linear(8, 2), functional.cross_entropy, (x, y), dev=(x, y), metric=[write, "error"],
        cluster="k20m-server", algorithm="async", workers=1, rate=0.1, passes=3, seeds=[0],
        step_seconds=1e-3, store=tmp_path,
    )  # fmt: skip
    error = float((result.model()(x).argmax(1) != y).double().mean())
    assert result.runs[0].summary["dev_error/iterate"] == pytest.approx(error)
