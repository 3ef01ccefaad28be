from __future__ import annotations

import copy
import io
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.base.errors import UserError
from harness.natural_gradient import NGSGD, NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.natural_gradient.layer_hooks import LayerHook
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout

FLOAT64 = torch.float64
LAYOUT = Layout((7, 12, 9, 5))
SMALL = (Preconditioner(4, 2), Preconditioner(3, 2))
DOCS = Path(__file__).parents[3] / "docs" / "natural_gradient.md"


def model(dtype: torch.dtype = FLOAT64, seed: int = 0) -> nn.Module:
    levels = [nn.Linear(7, 12), nn.Sigmoid(), nn.Linear(12, 9), nn.Sigmoid(), nn.Linear(9, 5)]
    return drawn(nn.Sequential(*levels).to(dtype), seed)


def drawn(net: nn.Module, seed: int = 0) -> nn.Module:
    draw = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        nn.init.normal_(parameter, generator=draw)
    return net


def batch(key: int, count: int = 20, dtype: torch.dtype = FLOAT64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 + key)
    x = torch.randn(count, 7, generator=draw, dtype=dtype)
    return x, torch.randint(0, 5, (count,), generator=draw)


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range, reduction: str = "mean"):
    dtype = next(net.parameters()).dtype
    for step in steps:
        x, y = batch(step, dtype=dtype)
        optimizer.zero_grad()
        cross_entropy(net(x), y, reduction=reduction).backward()
        optimizer.step()


@pytest.mark.parametrize("limit", [None, PerSample(0.05), PerComponent(0.2, 0.3)], ids=str)
def test_hooks_and_autograd_give_the_direction_of_the_stack(limit):
    options = NaturalGradient(*SMALL, limit)
    net = model()
    network, stack = Dnn(LAYOUT), flat(net)[None].clone()
    out, state = torch.empty_like(stack), options.start(LAYOUT.sizes, 1, FLOAT64)
    optimizer = NGSGD(net, lr=0.02, options=options, reduction="sum")
    for step in range(15):
        x, y = batch(step)
        given = Minibatch(x[None], y[None])
        _, state = options.direction(network, stack, given, state, 0.02, out)
        stack.sub_(out, alpha=0.02)
        train(net, optimizer, range(step, step + 1), "sum")
    torch.testing.assert_close(flat(net), stack[0], rtol=1e-9, atol=1e-10)


def test_a_mean_loss_is_a_sum_with_the_rate_divided():
    options = NaturalGradient(*SMALL)
    mean, total = model(), model()
    train(mean, NGSGD(mean, lr=0.4, options=options), range(15))
    train(total, NGSGD(total, lr=0.02, options=options, reduction="sum"), range(15), "sum")
    torch.testing.assert_close(flat(mean), flat(total), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_without_preconditioners_it_is_torchs_sgd(extra):
    plain, watched = model(), model()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.3, **extra), range(10))
    options = NaturalGradient(None, None)
    train(watched, NGSGD(watched, lr=0.3, options=options, **extra), range(10))
    torch.testing.assert_close(flat(watched), flat(plain), rtol=1e-12, atol=1e-13)


class Mixed(nn.Module):
    """Two convolutions, one in groups, a norm, linear layers: twice used, without bias, unused."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 3, 2), nn.LayerNorm(6)
        self.twice, self.last = nn.Linear(6, 6), nn.Linear(6, 5, bias=False)
        self.unused, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.grouped = nn.Conv1d(2, 2, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(self.grouped(x.unflatten(1, (1, 7)).expand(-1, 2, -1))))
        h = self.frozen(torch.relu(self.twice(torch.relu_(self.twice(input=h)))))
        return self.last(h).sum(1)


def test_other_layers_take_plain_steps_and_the_rest_descends():
    net = drawn(Mixed().double())
    before = copy.deepcopy(net)
    optimizer = NGSGD(net, lr=0.1, options=NaturalGradient(*SMALL))
    x, y = batch(0)
    cross_entropy(net(x), y).backward()
    optimizer.step()
    for name in ("grouped", "norm"):
        now, was = getattr(net, name), getattr(before, name)
        for p, q in zip(now.parameters(), was.parameters(), strict=True):
            torch.testing.assert_close(p.detach(), q.detach() - 0.1 * p.grad, rtol=1e-12, atol=0)
    for name in ("unused", "frozen"):
        assert torch.equal(flat(getattr(net, name)), flat(getattr(before, name)))
    for name in ("conv", "twice", "last"):
        assert not torch.equal(flat(getattr(net, name)), flat(getattr(before, name)))
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 3), (4, 6, 5)),
        (nn.Linear(5, 3, bias=False), (5,)),
        (nn.Conv1d(2, 3, 4, stride=2, padding=3, dilation=2), (4, 2, 9)),
        (nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), bias=False), (4, 2, 6, 7)),
        (nn.Conv2d(2, 3, 3), (2, 6, 7)),
    ],
    ids=str,
)
def test_the_rows_that_a_layer_sees_are_those_its_gradient_is_made_of(layer, shape):
    watched = LayerHook(layer.double())
    hook = layer.register_forward_hook(watched.watch, with_kwargs=True)
    draw = torch.Generator().manual_seed(3)
    for _ in range(2):
        layer(torch.randn(shape, generator=draw, dtype=FLOAT64)).sin().sum().backward()
    hook.remove()
    x, ends = watched.rows()
    torch.testing.assert_close((ends.x.mT @ x.x)[0], layer.weight.grad.flatten(1))
    if layer.bias is not None:
        torch.testing.assert_close(ends.x.sum(1)[0], layer.bias.grad)
    assert (x.width, ends.width) == watched.widths


def test_rows_of_every_pass_since_the_last_step_count():
    whole, parts = model(), model()
    options = NaturalGradient(*SMALL)
    one = NGSGD(whole, lr=0.02, options=options, reduction="sum")
    two = NGSGD(parts, lr=0.02, options=options, reduction="sum")
    for step in range(12):
        x, y = batch(step)
        train(whole, one, range(step, step + 1), "sum")
        two.zero_grad()
        for half in (slice(0, 8), slice(8, 20)):
            cross_entropy(parts(x[half]), y[half], reduction="sum").backward()
        two.step()
    torch.testing.assert_close(flat(whole), flat(parts), rtol=1e-9, atol=1e-10)


def test_passes_without_a_step_are_forgotten():
    net, other = model(), model()
    options = NaturalGradient(*SMALL)
    one, two = NGSGD(net, lr=0.02, options=options), NGSGD(other, lr=0.02, options=options)
    for step in range(5):
        with torch.no_grad():
            net(batch(99)[0])
        cross_entropy(net(batch(98)[0]), batch(98)[1]).backward()
        train(net, one, range(step, step + 1))
        train(other, two, range(step, step + 1))
    assert torch.equal(flat(net), flat(other))


def test_a_closure_and_a_scheduler_work_as_with_sgd():
    net, other = model(), model()
    options = NaturalGradient(*SMALL)
    one, two = NGSGD(net, lr=0.02, options=options), NGSGD(other, lr=0.02, options=options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(two, 0.9)
    for step in range(6):
        one.param_groups[0]["lr"] = 0.02 * 0.9**step
        train(net, one, range(step, step + 1))

        def closure(step: int = step) -> float:
            two.zero_grad()
            loss = cross_entropy(other(batch(step)[0]), batch(step)[1])
            loss.backward()
            return loss.item()

        assert two.step(closure) > 0.0
        schedule.step()
    torch.testing.assert_close(flat(net), flat(other), rtol=1e-12, atol=0)


def test_a_saved_optimizer_continues_with_the_same_bytes():
    options = NaturalGradient(*SMALL, PerSample(0.1))
    whole = model(torch.float32)
    train(whole, NGSGD(whole, lr=0.1, momentum=0.5, options=options), range(20))

    first = model(torch.float32)
    optimizer = NGSGD(first, lr=0.1, momentum=0.5, options=options)
    train(first, optimizer, range(11))
    file = io.BytesIO()
    torch.save((first.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    parameters, state = torch.load(file, weights_only=True)
    second = model(torch.float32, seed=1)
    second.load_state_dict(parameters)
    resumed = NGSGD(second, lr=0.3, momentum=0.5, options=options)
    resumed.load_state_dict(state)
    train(second, resumed, range(11, 20))
    assert torch.equal(flat(whole), flat(second))


def test_restarting_forgets_and_closing_unhooks():
    net = model()
    optimizer = NGSGD(net, lr=0.02, options=NaturalGradient(*SMALL))
    train(net, optimizer, range(5))
    assert len(optimizer.state_dict()["natural_gradient"]) == 3
    optimizer.restart()
    assert optimizer.state_dict()["natural_gradient"] == {}
    optimizer.close()
    before = flat(net)
    train(net, optimizer, range(1))
    gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    torch.testing.assert_close(flat(net), before - 0.02 * gradient, rtol=1e-12, atol=0)


def test_users_mistakes_are_named():
    net = model()
    for wrong, said in [
        (lambda: NGSGD(net.parameters(), lr=0.1), "modules"),
        (lambda: NGSGD([], lr=0.1), "modules"),
        (lambda: NGSGD(net, lr=-1.0), "lr is -1"),
        (lambda: NGSGD(net, lr=0.1, reduction="average"), "allowed: mean, sum"),
    ]:
        with pytest.raises(UserError, match=said):
            wrong()


def test_the_examples_of_the_documentation_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    assert names["natural"] < names["sgd"]
    assert "loss after 150 steps" in capsys.readouterr().out


def test_the_documented_change_is_three_lines_and_names_what_exists():
    (block,) = re.findall(r"```diff\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    added = [line[1:] for line in block.splitlines() if line.startswith("+")]
    assert len(added) == 3
    names: dict[str, object] = {"model": model()}
    exec("\n".join(added), names)
    assert isinstance(names["optimizer"], NGSGD)
