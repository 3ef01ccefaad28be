import pytest
import torch
from torch import nn
from torch.nn import functional

from harness.base.errors import UserError
from harness.modules.network import Drawing, ModuleNetwork, Parameters, flat, trainable_parameters
from tests.modules import KINDS

REPLICAS = 3


def several(kind: str):
    """A module, its loss, and a different model and minibatch for each replica."""
    made, loss, data = KINDS[kind]
    torch.manual_seed(0)
    module = made()
    x, y = (part[: 4 * REPLICAS].unflatten(0, (REPLICAS, 1, 4)) for part in data())
    model = flat(list(trainable_parameters(module).values()))
    stack = model + 0.1 * torch.randn(REPLICAS, len(model))
    return module, loss, stack, x, y


@pytest.mark.parametrize("kind", KINDS)
def test_one_by_one_gradients_are_autograd_s_to_the_bit(kind):
    module, loss, stack, x, y = several(kind)
    out = torch.empty_like(stack)
    with torch.no_grad():
        losses = ModuleNetwork(module, loss).gradient(stack, x, y, out)
    for w in range(REPLICAS):
        for p, view in zip(
            trainable_parameters(module).values(),
            Parameters.from_module(module).views(stack[w]),
            strict=True,
        ):
            p.data = view.clone()
        expected = loss(module(x[w, 0]), y[w, 0])
        slopes = torch.autograd.grad(expected, list(trainable_parameters(module).values()))
        assert torch.equal(out[w], flat(slopes))
        assert losses[w] == expected


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", KINDS)
def test_all_at_once_gradients_are_the_same_but_for_rounding(kind):
    module, loss, stack, x, y = several(kind)
    outs = [torch.empty_like(stack) for _ in range(2)]
    with torch.no_grad():
        alone = ModuleNetwork(module, loss).gradient(stack, x, y, outs[0])
        both = ModuleNetwork(module, loss, together=2).gradient(stack, x, y, outs[1])
    assert torch.allclose(alone, both, rtol=1e-5)
    assert torch.allclose(*outs, rtol=1e-4, atol=1e-6)


def test_a_gradient_agrees_with_finite_differences():
    module, loss, stack, x, y = several("perceptron")
    network = ModuleNetwork(module.double(), loss)
    model, out = stack[:1].double(), torch.empty(1, stack.shape[1], dtype=torch.float64)
    network.gradient(model, x[:1].double(), y[:1], out)
    along = torch.randn(model.shape[1], dtype=torch.float64)
    ends = [
        loss(network.bind_parameters(model[0] + s * along)(x[0, 0].double()), y[0, 0])
        for s in (1e-6, -1e-6)
    ]
    assert float((ends[0] - ends[1]) / 2e-6) == pytest.approx(float(out[0] @ along), rel=1e-6)


def test_tied_and_frozen_parameters_count_once_and_not_at_all():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    module[2].bias.requires_grad_(False)
    places = Parameters.from_module(module)
    assert places.names == ("0.weight", "0.bias", "1.bias", "2.weight")
    assert places.count == 16 + 4 + 4 + 8
    x, y = torch.randn(1, 1, 5, 4), torch.randint(2, (1, 1, 5))
    model = flat(list(trainable_parameters(module).values())).unsqueeze(0)
    out = torch.empty_like(model)
    ModuleNetwork(module, functional.cross_entropy).gradient(model, x, y, out)
    functional.cross_entropy(module(x[0, 0]), y[0, 0]).backward()
    assert torch.equal(out[0, :16].view(4, 4), module[0].weight.grad)


def test_what_is_drawn_depends_on_the_key_alone():
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model = flat(list(trainable_parameters(module).values()))
    x, y = torch.randn(1, 1, 5, 4), torch.randint(2, (1, 1, 5))

    def gradients(*keys: int) -> list[torch.Tensor]:
        stack = model.repeat(len(keys), 1)
        shared = Drawing(x.expand(len(keys), -1, -1, -1), keys)
        out = torch.empty_like(stack)
        ys = y.expand(len(keys), -1, -1)
        ModuleNetwork(module, functional.cross_entropy).gradient(stack, shared, ys, out)
        return list(out)

    one, two, again = gradients(1, 2, 1)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert torch.equal(two, gradients(2)[0])


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.Identity(), "no parameter requires a gradient; allowed: at least one"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "float32 and torch.float64"),
        (nn.LazyLinear(3), "'weight' has no shape yet"),
    ],
)
def test_a_module_without_a_vector_of_parameters_is_refused(module, told):
    with pytest.raises(UserError, match=f"model: .*{told}"):
        Parameters.from_module(module)
