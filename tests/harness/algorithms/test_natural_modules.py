"""Natural gradient of anybody's module, held to the house's own and to the published formulas."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.algorithms.contract import Memory
from harness.algorithms.descent import local_direction, local_steps
from harness.base.errors import UserError
from harness.modules.network import ModuleNetwork, flat, trainable_parameters
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from tests.harness.natural_gradient.dense import DenseOracle

FLOAT64 = torch.float64
SIZES = (7, 12, 9, 5)
SMALL = Preconditioner(4, 2), Preconditioner(3, 2)
RATE = 0.3


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(7, 12), nn.Sigmoid(), nn.Linear(12, 9), nn.Sigmoid(), nn.Linear(9, 5)
    return nn.Sequential(*layers).double()


def data(step: int, workers: int, shape: tuple[int, ...] = (7,), classes: int = 5) -> Minibatch:
    draw = torch.Generator().manual_seed(100 + step)
    x = torch.randn(workers, 20, *shape, generator=draw, dtype=FLOAT64)
    return Minibatch(x, torch.randint(0, classes, (workers, 20), generator=draw))


def as_one(minibatch: Minibatch) -> Minibatch:
    """To an algorithm a user's minibatch is one frame."""
    return Minibatch(minibatch.x.unsqueeze(1), minibatch.targets.unsqueeze(1))


def parameters_of(module: nn.Module) -> Tensor:
    return flat(list(trainable_parameters(module).values()))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("limit", [None, PerSample(0.02), PerComponent(0.2, 0.3)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_mlp_descends_as_the_network_of_affine_layers_does(limit, reduction):
    options, module = NaturalGradient(*SMALL, limit), perceptron()
    ours = ModuleNetwork(
        module, lambda z, y: cross_entropy(z, y, reduction=reduction), reduction=reduction
    )
    theirs, workers = Dnn(Layout(SIZES)), 3
    mine = parameters_of(module).repeat(workers, 1)
    other, memories = mine.clone(), (Memory(), Memory())
    rate = RATE if reduction == "mean" else RATE / 20
    for step in range(15):
        batch = data(step, workers)
        local_steps(options, ours, mine, [as_one(batch)], rate, memories[0])
        local_steps(options, theirs, other, [batch], RATE, memories[1])
    assert memories[0].tensors.keys() == memories[1].tensors.keys()
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def convolutional() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)
    return nn.Sequential(*layers).double()


def by_formulas(x: np.ndarray, y: np.ndarray, row: np.ndarray, oracles: list[DenseOracle]):
    """Forward, backward and direction of `convolutional`, patch by patch, with dense matrices."""
    kernel, shift = row[:18].reshape(2, 9), row[18:20]
    weight, bias = row[20:74].reshape(3, 18), row[74:]
    padded = np.pad(x[:, 0], ((0, 0), (1, 1), (1, 1)))
    places = [(2 * i, 2 * j) for i in range(3) for j in range(3)]
    patches = np.stack([padded[:, i : i + 3, j : j + 3].reshape(-1, 9) for i, j in places], 1)
    hidden = np.tanh(patches @ kernel.T + shift)  # examples, places, channels
    level = hidden.transpose(0, 2, 1).reshape(len(x), 18)
    shares = np.exp(level @ weight.T + bias)
    shares /= shares.sum(1, keepdims=True)
    ends = shares - np.eye(3)[y]  # of the sum
    below = (ends @ weight).reshape(-1, 2, 9).transpose(0, 2, 1) * (1.0 - hidden**2)
    sides = [(patches.reshape(-1, 9), below.reshape(-1, 2)), (level, ends)]
    out = []
    for (seen, delta), inputs, outputs in zip(sides, oracles[::2], oracles[1::2], strict=True):
        rows, count = np.concatenate([seen, np.ones((len(seen), 1))], 1), len(delta)
        # A layer's derivatives of the mean are compared as those of a sum over its own rows.
        made = outputs(delta / len(x) * count).T @ inputs(rows) / count
        out += [made[:, :-1].ravel(), made[:, -1]]
    return np.concatenate(out)


def test_a_convolution_and_a_linear_layer_follow_the_published_formulas():
    module, options = convolutional(), NaturalGradient(*SMALL)
    network, memory = ModuleNetwork(module, cross_entropy), Memory()
    widths = zip((options.inputs, options.outputs) * 2, (10, 2, 19, 3), strict=True)
    oracles = [DenseOracle(how, width) for how, width in widths]
    stack = parameters_of(module)[None].clone()
    for step in range(20):
        batch = data(step, 1, (1, 5, 5), classes=3)
        found, _ = local_direction(options, network, stack, [as_one(batch)], RATE, memory)
        x, y, row = batch.x[0].numpy(), batch.targets[0].numpy(), stack[0].numpy()
        expected = by_formulas(x, y, row, oracles)
        apart = np.linalg.norm(found[0].numpy() - expected) / np.linalg.norm(expected)
        assert apart < 5e-5, step
        stack.sub_(found, alpha=RATE)


class Branches(nn.Module):
    """Layers that share a weight, one that is used for large inputs alone, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(7, 7), nn.Linear(7, 7), nn.LayerNorm(7)
        self.sometimes, self.last = nn.Linear(7, 7), nn.Linear(7, 5)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.two(self.one(x)))
        return self.last(self.sometimes(h) if x.abs().max() > 10.0 else h)


def test_what_is_no_layer_of_its_own_takes_plain_steps():
    torch.manual_seed(0)
    network = ModuleNetwork(Branches().double(), cross_entropy)
    assert len(network.layers) == 2
    stack = parameters_of(network.module)[None].clone()
    plain, batch = torch.empty_like(stack), as_one(data(0, 1))
    network.gradient(stack, *batch, plain)
    options = NaturalGradient(*SMALL)
    found, _ = local_direction(options, network, stack, [batch], RATE, Memory())
    for name, ours, slope in zip(
        network.parameters.names,
        network.parameters.views(found[0]),
        network.parameters.views(plain[0]),
        strict=True,
    ):
        assert torch.equal(ours, slope) == (not name.startswith("last")), name


def test_a_layer_that_only_some_workers_use_is_refused():
    torch.manual_seed(0)
    network = ModuleNetwork(Branches().double(), cross_entropy)
    stack = parameters_of(network.module).repeat(2, 1)
    batch = as_one(data(0, 2))
    batch.x[1] *= 100.0
    with pytest.raises(UserError, match="a layer that some workers use and others do not"):
        local_direction(NaturalGradient(*SMALL), network, stack, [batch], RATE, Memory())


def test_a_module_without_such_layers_is_refused():
    network = ModuleNetwork(nn.LayerNorm(7).double(), cross_entropy)
    stack = parameters_of(network.module)[None].clone()
    with pytest.raises(UserError, match="none of this module can be hooked"):
        local_steps(NaturalGradient(), network, stack, [as_one(data(0, 1))], RATE, Memory())
