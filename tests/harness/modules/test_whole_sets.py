"""Losses and metrics of a whole set: of parts they are not the mean, so they are not split."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import lagbench
from harness.base.errors import UserError
from harness.modules.evaluation import BLOCK, metrics_of, right, wrong
from harness.modules.inspection import inspect_module
from harness.modules.network import (
    Drawing,
    GradientRules,
    ModuleNetwork,
    flat,
    own_loss,
    trainable_parameters,
)
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.reading import arrays_of
from harness.modules.task import ModuleProblem
from harness.modules.values import WHOLE, map_tensors
from tests.harness.modules.test_modules import configured, final

PARTS, SIZE, CLASSES, WIDE = 4, 16, 3, 50


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = drawn(SIZE, 6)
Y = (X[:, :CLASSES]).argmax(1)
IGNORED = Y.where(torch.arange(SIZE) % 5 < 2, -100)
ROWS, MARKS = drawn(SIZE, 5, 6, seed=1), drawn(SIZE, 5, CLASSES, seed=1).argmax(2)


def linear() -> nn.Module:
    return nn.Linear(6, CLASSES)


class TimeFirst(nn.Module):
    """Outputs ``[T, B, C]``, as `nn.CTCLoss` takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = linear()

    def forward(self, x):
        return self.out(x).transpose(0, 1)


class Flattened(TimeFirst):
    """Outputs ``[T B, C]``, of which those of an example are not together."""

    def forward(self, x):
        return super().forward(x).flatten(0, 1)


class Named(TimeFirst):
    """Outputs by name, with None and hidden values whose examples are in the second dimension."""

    def forward(self, x):
        return {"scores": self.out(x), "hidden": x.T, "memory": None}


class Mixing(nn.Module):
    """Normalises by the statistics of the examples beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out((x - x.mean(0)) / x.std(0))


class Largest(TimeFirst):
    """Divides by the largest number beside an example."""

    def forward(self, x):
        return self.out(x / x.max())


class Sorted(TimeFirst):
    """Adds the place of an example among those beside it."""

    def forward(self, x):
        return self.out(x) + x[:, :1].argsort(0).argsort(0)


class Own(TimeFirst):
    """A model that computes its own loss."""

    def forward(self, x, labels):
        return {"loss": functional.cross_entropy(self.out(x), labels)}


def weighted_sum(outputs, targets):
    each = functional.cross_entropy(outputs, targets[0], reduction="none")
    return (each * targets[1]).sum()


def root(outputs, targets):
    return functional.mse_loss(outputs.softmax(1), functional.one_hot(targets, CLASSES)).sqrt()


def contrast(outputs, targets):
    del targets
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def connect(outputs, targets):
    lengths = [torch.full((len(targets),), n) for n in (len(outputs), 2)]
    return functional.ctc_loss(outputs.log_softmax(2), targets[:, :2].clamp(min=1), *lengths)


def mark(outputs, targets):
    return functional.cross_entropy(outputs, targets.T.flatten())


LOSSES = {
    "ignored": (linear, functional.cross_entropy, X, IGNORED),
    "weighted": (linear, nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.1])), X, Y),
    "summed": (linear, weighted_sum, X, (Y, drawn(SIZE).abs())),
    "root": (linear, root, X, Y),
    "contrast": (linear, contrast, X, Y),
    "time first": (TimeFirst, connect, ROWS, MARKS),
    "flattened": (Flattened, mark, ROWS, MARKS),
    "named": (Named, lambda o, y: functional.cross_entropy(o["scores"], y), X, IGNORED),
    "own": (Own, own_loss, X, IGNORED),
    "largest": (Largest, functional.cross_entropy, X, Y),
    "sorted": (Sorted, root, X, Y),
}
CANNOT_BE_JOINED = {"flattened", "own", "largest", "sorted"}


def gradient_of(module, loss, data: Arrays, accumulate: int = PARTS, key: int | None = None):
    """Our gradient of a minibatch in parts."""
    seen = inspect_module(module, loss, data.x, data.y)
    rules = GradientRules(accumulate=accumulate)
    network = ModuleNetwork(module, loss, rules=rules, axes=seen.axes, changing=seen.changing)
    stack = flat(list(trainable_parameters(module).values()))[None]
    x, y = (map_tensors(lambda t: t[None, None], part) for part in (data.x, data.y))
    with torch.no_grad():
        out, state = torch.empty_like(stack), network.fresh_state()
        given = x if key is None else Drawing(x, [key])
        losses = network.with_state(state).gradient(stack, given, y, out)
    return out[0], losses[0], state, seen


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_a_minibatch_have_the_loss_and_gradient_of_the_whole(name):
    made, loss, x, y = LOSSES[name]
    torch.manual_seed(0)
    module, data = made(), arrays_of((x, y), "data")
    ours, value, _, seen = gradient_of(module, loss, data)

    named = {"labels": y} if name == "own" else {}
    expected = loss(module(x, **named), y)
    slopes = torch.autograd.grad(expected, list(module.parameters()))
    assert torch.allclose(ours, flat(slopes), atol=1e-6)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (seen.axes is None) == (name in CANNOT_BE_JOINED)


def test_random_layers_draw_once_for_outputs_and_gradients():
    torch.manual_seed(0)
    module, data = nn.Sequential(linear(), nn.Dropout(0.5)), Arrays(X, IGNORED)
    ours, *_ = gradient_of(module, functional.cross_entropy, data, key=7)

    torch.manual_seed(7)
    outputs = torch.cat([module(part) for part in X.chunk(PARTS)])
    slopes = torch.autograd.grad(
        functional.cross_entropy(outputs, IGNORED), list(module.parameters())
    )
    assert torch.allclose(ours, flat(slopes), atol=1e-6)


def test_buffers_change_once_for_each_part():
    torch.manual_seed(0)
    module = nn.Sequential(linear(), nn.BatchNorm1d(CLASSES))
    ours, _, state, _ = gradient_of(module, functional.cross_entropy, Arrays(X, IGNORED))

    outputs = torch.cat([module(part) for part in X.chunk(PARTS)])
    loss = functional.cross_entropy(outputs, IGNORED)
    assert torch.allclose(ours, flat(torch.autograd.grad(loss, [*module.parameters()])), atol=1e-6)
    assert state["1.num_batches_tracked"].item() == PARTS
    assert torch.allclose(state["1.running_mean"][0], module[1].running_mean)


def test_activations_of_one_part_are_kept_at_a_time():
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, CLASSES))

        def forward(self, x):
            sizes.append(len(x))
            return self.out(x)

    sizes: list[int] = []
    seen = inspect_module(Counted(), functional.cross_entropy, X, Y)
    rules = GradientRules(accumulate=PARTS)
    network = ModuleNetwork(Counted(), functional.cross_entropy, rules=rules, axes=seen.axes)
    kept: list[int] = []
    sizes.clear()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        loss = network.loss_of(network.module, X, Y)
        before = sum(kept)
        loss.backward()
    assert sizes == [SIZE // PARTS] * 2 * PARTS  # outputs, then gradients
    assert before < SIZE * WIDE  # only inputs, outputs and what the loss keeps


def test_parts_whose_outputs_have_other_lengths_are_computed_whole_unless_buffers_changed():
    x = ROWS.clone()
    x[:, 0, 0] = (torch.arange(SIZE) // 4 != 1).float()
    module, data = Trimmed(), Arrays(x, MARKS)
    ours, *_ = gradient_of(module, trimmed_loss, data)
    slopes = torch.autograd.grad(trimmed_loss(module(x), MARKS), list(module.parameters()))
    assert torch.allclose(ours, flat(slopes), atol=1e-6)

    module.register_buffer("calls", torch.zeros(()))
    module.register_forward_hook(lambda module, *_: module.calls.add_(1) and None)
    with pytest.raises(UserError, match=r"^accumulate: outputs of parts of a minibatch differ"):
        gradient_of(module, trimmed_loss, data)


def test_a_module_that_writes_its_inputs_is_computed_twice_from_the_same():
    class Halving(TimeFirst):
        def forward(self, x):
            return self.out(x.mul_(0.5))

    module = Halving()
    ours, value, _, seen = gradient_of(module, nn.CrossEntropyLoss(reduction="sum"), Arrays(X, Y))
    loss = functional.cross_entropy(module(X.clone()), Y, reduction="sum")
    assert seen.reduction == "sum"
    assert value.item() == pytest.approx(loss.item(), rel=1e-6)
    assert torch.allclose(ours, flat(torch.autograd.grad(loss, [*module.parameters()])), atol=1e-5)


def test_what_cannot_be_joined_is_trained_whole_and_said(tmp_path, capsys):
    model, data = Own(), ({"x": X}, IGNORED)
    usual = {"rate": 0.1, "minibatch": 8, "passes": 1, "seeds": 1}
    usual |= {"cluster": "k20m-server", "step_seconds": 0.01, "store": tmp_path, "dev": data}
    runs = [
        lagbench.train(model, "model", data, accumulate=parts, **usual).runs[0]
        for parts in (1, PARTS)
    ]
    assert torch.equal(*map(final, runs))
    assert capsys.readouterr().err.count(WHOLE) == 1


# -- evaluation ----------------------------------------------------------------------------------

MANY = 2 * BLOCK + 300


def sorted_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Examples in the order of their classes, more than two blocks."""
    x = drawn(MANY, 6, seed=3)
    y = (x[:, :2] + 0.5 * drawn(MANY, 2, seed=4)).argmax(1)
    order = torch.argsort(x[:, 0] - x[:, 1])
    return x[order], y[order]


def opened(model, loss, data, metric=None, train=None) -> ModuleProblem:
    x, y = data
    dev = arrays_of((x, y), "dev")
    train = (
        arrays_of(train, "data")
        if train
        else dev.take(np.random.default_rng(0).permutation(len(dev))[:64])
    )
    parts = ModuleParts(model, loss, train, dev, None, metrics_of(metric, train, loss))
    config = configured(parts, workers=1, passes=1)
    return config.task.open(config)


def scores_of(model, loss, data, metric=None, **further):
    problem = opened(model, loss, data, metric, **further)
    return problem.evaluate(problem.initial())


def one_minus_f1(outputs, targets):
    hits = ((outputs.argmax(1) == 1) & (targets == 1)).sum()
    return 1 - 2 * hits / ((outputs.argmax(1) == 1).sum() + (targets == 1).sum())


def one_minus_auc(outputs, targets):
    ranks = (outputs[:, 1] - outputs[:, 0]).argsort().argsort().double() + 1
    ones = targets == 1
    pairs = int(ones.sum()) * int((~ones).sum())
    if not pairs:
        raise ValueError("only one class")
    return 1 - (ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2) / pairs


def unexplained(outputs, targets):
    errors = outputs[:, 1] - targets
    return errors.square().sum() / (targets - targets.double().mean()).square().sum()


def perplexity(outputs, targets):
    return functional.cross_entropy(outputs, targets).exp()


@pytest.mark.parametrize("metric", [one_minus_f1, one_minus_auc, unexplained, perplexity])
def test_a_metric_is_that_of_the_whole_set(metric):
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(6, 2), sorted_data()
    found = scores_of(model, functional.cross_entropy, (x, y), metric)
    with torch.no_grad():
        assert found[metric.__name__] == pytest.approx(float(metric(model(x), y)), rel=1e-5)


class Trimmed(TimeFirst):
    """Outputs as long as the longest sequence beside it."""

    def forward(self, x):
        return self.out(x[:, : 1 + int(x[:, 0, 0].max() > 0)])


def trimmed_loss(outputs, targets):
    return functional.cross_entropy(outputs.mT, targets[:, : outputs.shape[1]])


WEIGHTS = nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.1]))


@pytest.mark.parametrize(
    ("made", "loss", "length"),
    [
        (linear, functional.cross_entropy, 0),
        (linear, WEIGHTS, 0),
        (linear, root, 0),
        (Own, own_loss, 0),
        (Mixing, functional.cross_entropy, 0),
        (Largest, functional.cross_entropy, 0),
        (Sorted, root, 0),
        (TimeFirst, connect, 5),
        (Flattened, mark, 5),
        (Trimmed, trimmed_loss, 5),
    ],
)
def test_the_loss_is_that_of_the_whole_set(made, loss, length):
    torch.manual_seed(0)
    model = made()
    x = drawn(MANY, length, 6) if length else drawn(MANY, 6)
    y = drawn(MANY, length, CLASSES).argmax(2) if length else x[:, :CLASSES].argmax(1)
    x, y = (part[torch.argsort(x.flatten(1)[:, 0])] for part in (x, y))
    if loss in (functional.cross_entropy, own_loss):
        y[:MANY:2] = -100
        y[:BLOCK:3] = -100
    named = {"labels": y} if loss is own_loss else {}
    found = scores_of(model, "model" if loss is own_loss else loss, (x, y), "loss")["loss"]
    with torch.no_grad():
        assert found == pytest.approx(loss(model(x, **named), y).item(), rel=1e-5)


def test_a_sum_over_examples_with_several_targets_is_reported_as_their_mean():
    x, weights = drawn(MANY, 6), torch.ones(MANY)
    y = x[:, :CLASSES].argmax(1)
    model = linear()
    found = scores_of(model, weighted_sum, (x, (y, weights)), "loss")["loss"]
    with torch.no_grad():
        assert found == pytest.approx(functional.cross_entropy(model(x), y).item(), rel=1e-4)


# -- targets that do not count -------------------------------------------------------------------


def padded(outputs, targets):
    return functional.cross_entropy(outputs, targets, ignore_index=0)


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (functional.cross_entropy, -100),
        (nn.CrossEntropyLoss(ignore_index=255), 255),
        (nn.CrossEntropyLoss(ignore_index=0), 0),
        (padded, 0),
    ],
    ids=["below", "above", "a class", "a class, in a function"],
)
def test_targets_that_the_loss_ignores_count_in_no_error_and_no_interval(loss, ignored):
    torch.manual_seed(0)
    model, x = linear(), drawn(400, 6)
    y = drawn(400, CLASSES, seed=5).argmax(1)
    y[drawn(400, seed=6) > 0] = ignored
    counted = y != ignored
    expected = float((model(x).argmax(1) != y)[counted].double().mean())

    for name, metric in {"error": wrong, "accuracy": right}.items():
        problem = opened(model, loss, (x, y), name)
        found = problem.evaluate(problem.initial())[name]
        assert found == pytest.approx(expected if metric is wrong else 1 - expected)
        assert problem.experiment.example_weight == pytest.approx(1 / int(counted.sum()))


def test_ignored_tokens_of_sequences_do_not_count():
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    x, y = drawn(50, 5, 6), drawn(50, 5, CLASSES, seed=5).argmax(2)
    y[:, 3:], y[:10] = 0, 0

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.mT, targets, ignore_index=0)

    problem = opened(model, loss, (x, y), "error")
    expected = float((model(x).argmax(2) != y)[y != 0].double().mean())
    assert problem.evaluate(problem.initial())["error"] == pytest.approx(expected)
    assert problem.experiment.example_weight == pytest.approx(1 / int((y != 0).any(1).sum()))


def test_a_saturated_margin_is_not_taken_for_an_ignored_class():
    model, x = nn.Linear(6, CLASSES), drawn(60, 6)
    y = x[:, :CLASSES].argmax(1)
    with torch.no_grad():
        model.weight.copy_(100 * torch.eye(CLASSES, 6))
        model.bias.zero_()
    seen = inspect_module(model, nn.MultiMarginLoss(), x, y)
    assert seen.classes is not None
    assert seen.classes.ignored == ()


def test_a_development_set_without_a_target_that_counts_is_one_line():
    data = X, torch.full((SIZE,), -100)
    with pytest.raises(UserError, match=r"^dev: no target is a class that the loss counts"):
        scores_of(linear(), functional.cross_entropy, data, train=(X, Y))


# -- the same draws at every evaluation ----------------------------------------------------------


class Noisy(nn.Module):
    """Draws in evaluation too, as a diffusion model does."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.out, self.draw = linear(), draw

    def forward(self, x):
        return self.out(x + self.draw(x))


def of_numpy(x):
    return torch.as_tensor(np.random.normal(size=x.shape), dtype=x.dtype)


def kept_dropout(x):
    return functional.dropout(x)


def noisy_loss(outputs, targets):
    return functional.cross_entropy(outputs + torch.randn_like(outputs), targets)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [100, BLOCK + 100])
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda: Noisy(torch.randn_like), functional.cross_entropy),
        (lambda: Noisy(of_numpy), functional.cross_entropy),
        (lambda: Noisy(kept_dropout), functional.cross_entropy),
        (linear, noisy_loss),
    ],
    ids=["diffusion", "numpy", "dropout", "loss"],
)
def test_what_draws_is_scored_with_the_same_draws_each_time(model, loss, count):
    torch.manual_seed(0)
    module, x = model(), drawn(count, 6)
    problem = opened(module, loss, (x, x[:, :CLASSES].argmax(1)))
    first = problem.evaluate(problem.initial())
    state = torch.get_rng_state(), np.random.get_state()[1].sum()
    torch.manual_seed(5)
    np.random.seed(5)
    assert problem.evaluate(problem.initial()) == first
    torch.set_rng_state(state[0])
    again = opened(module, loss, (x, x[:, :CLASSES].argmax(1)))
    assert again.evaluate(again.initial()) == first
    assert math.isfinite(first["loss"])


GENERATOR = np.random.default_rng(0)


def of_a_generator(x):
    return torch.as_tensor(GENERATOR.normal(size=x.shape), dtype=x.dtype)


def test_what_draws_from_a_generator_of_its_own_is_refused():
    told = "'GENERATOR' changes from call to call"
    with pytest.raises(UserError, match=told):
        scores_of(Noisy(of_a_generator), functional.cross_entropy, (X, Y))
