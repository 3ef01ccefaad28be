import pickle
from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lagbench
from harness.base.errors import UserError
from harness.modules.inspection import inspect_module
from harness.modules.parts import Arrays
from harness.modules.reading import arrays_of
from harness.modules.values import Tree, leaves, unwrap
from harness.tasks.order import Order

N = 60
torch.manual_seed(3)
IDS, MASK, Y = torch.randint(9, (N, 4)), torch.rand(N, 4), torch.randint(3, (N,))
NAMED = {"input_ids": IDS, "attention_mask": MASK}


class Items:
    """A map-style data set of whatever a function makes of a number."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.make(i)


def dict_item(i):
    return {"input_ids": IDS[i].tolist(), "attention_mask": MASK[i].numpy(), "labels": int(Y[i])}


TUPLES = {
    "columns": ((IDS, MASK), Y),
    "flat columns": (IDS, MASK, Y),
    "a list of columns": [IDS.numpy(), MASK, Y],
    "a data set": Items(lambda i: ((IDS[i], MASK[i]), Y[i])),
    "a flat data set": Items(lambda i: (IDS[i], MASK[i], int(Y[i]))),
    "a loader": DataLoader(Items(lambda i: ((IDS[i], MASK[i]), Y[i])), batch_size=8),
    "a flat loader": DataLoader(Items(lambda i: (IDS[i], MASK[i], Y[i])), batch_size=8),
}
DICTS = {
    "columns": (NAMED, Y),
    "columns with labels": {**NAMED, "labels": Y},
    "pairs": Items(lambda i: ({name: t[i] for name, t in NAMED.items()}, Y[i])),
    "dicts": Items(dict_item),
    "a list of dicts": [dict_item(i) for i in range(N)],
    "other dicts": [
        UserDict({"label": Y[i], **{k: t[i] for k, t in NAMED.items()}}) for i in range(N)
    ],
    "a loader": DataLoader(
        Items(lambda i: {**{k: t[i] for k, t in NAMED.items()}, "labels": Y[i]}), batch_size=8
    ),
}


@pytest.mark.parametrize("kind", TUPLES)
def test_tuples_of_inputs_are_the_same_whatever_holds_them(kind):
    found = arrays_of(TUPLES[kind], "data")
    assert [torch.equal(*both) for both in zip(unwrap(found.x), (IDS, MASK), strict=True)] == [
        True
    ] * 2
    assert torch.equal(found.y, Y)
    assert found.sha256 == Arrays(Tree((IDS, MASK)), Y).sha256


@pytest.mark.parametrize("kind", DICTS)
def test_dicts_of_inputs_are_the_same_whatever_holds_them(kind):
    found = arrays_of(DICTS[kind], "data")
    assert found.sha256 == Arrays(Tree(NAMED), Y).sha256


def test_plain_numbers_in_a_tuple_are_one_array_as_ever():
    found = arrays_of([((0.5, 1.5), 1), ((2.5, 3.5), 0)], "data")
    assert torch.equal(found.x, torch.tensor([[0.5, 1.5], [2.5, 3.5]]))


def test_names_order_and_content_count_in_the_digest():
    x, y = {"a": MASK, "b": MASK}, Y
    digests = {
        Arrays(Tree(parts), y).sha256
        for parts in (x, {"a": MASK, "c": MASK}, {"a": MASK, "b": 2 * MASK}, (MASK, MASK), (MASK,))
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (((IDS, MASK[:3]), Y), "inputs of 60 and of 3 examples"),
        (((IDS, MASK), Y[:3]), "60 examples with 3 targets"),
        ([{"labels": 3}, {"labels": 4}], "a dict of 'labels'"),
        ([{"a": [1.0], "labels": 3}, {"b": [1.0], "labels": 4}], "unequal shape"),
        ([{"text": "six words", "labels": 3}], "str holds no numbers"),
    ],
)
def test_mistakes_are_one_line(data, told):
    with pytest.raises(UserError, match=f"data: .*{told}"):
        arrays_of(data, "data")


def test_minibatches_splits_and_copies_have_every_part():
    whole = arrays_of((NAMED, (MASK, Y)), "data")
    rows = torch.tensor([[0, 3], [5, 1]])
    x, y = whole.gather(rows)
    assert x.parts["input_ids"].shape == (2, 1, 2, 4)
    assert torch.equal(y.parts[1][:, 0], Y[rows])
    copied = pickle.loads(pickle.dumps(whole))
    assert Arrays(copied.x, copied.y).sha256 == whole.sha256
    train, dev = whole.split(0.25)
    assert sum(map(len, (train, dev))) == N
    assert all(len(t) == len(dev) for t in leaves(dev.x) + leaves(dev.y))


class TwoInputs(nn.Module):
    """A weighted mean of embeddings; the weights are its second input."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 5), nn.Linear(5, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids, attention_mask):
        weighted = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        return self.out(self.dropout(weighted.mean(1)))


class WithLabels(TwoInputs):
    """As Hugging Face's models: an object with the loss, if labels are given."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = super().forward(input_ids, attention_mask)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


class Logits(TwoInputs):
    """Takes labels and gives no loss."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        return super().forward(input_ids, attention_mask)


def outputs_loss(outputs, targets):
    return outputs.loss


def logits_loss(outputs, targets):
    return functional.cross_entropy(outputs.logits, targets)


def train(model, loss, data, store, **more):
    given = {"rate": 0.1, "passes": 2, "seeds": 1, "dev": data, "store": store, "minibatch": 8}
    given |= {"cluster": "k20m-server", "step_seconds": 0.01, "evaluations": 1} | more
    (run,) = lagbench.train(model, loss, data, **given).runs
    return run


@pytest.fixture(scope="module")
def alike():
    torch.manual_seed(5)
    plain = TwoInputs()
    labelled = WithLabels()
    labelled.load_state_dict(plain.state_dict())
    return plain, labelled


@pytest.mark.parametrize("workers", [1, 3, 17])
def test_tuples_dicts_and_labels_train_the_same_model(workers, alike, tmp_path):
    plain, labelled = alike
    asked = [
        (plain, functional.cross_entropy, ((IDS, MASK), Y)),
        (plain, functional.cross_entropy, (NAMED, Y)),
        (labelled, "model", {**NAMED, "labels": Y}),
        (labelled, outputs_loss, (NAMED, Y)),
        (labelled, logits_loss, ((IDS, MASK), Y)),
    ]
    models = [
        train(*each, tmp_path, workers=workers, metric="loss")
        .path("model.safetensors")
        .read_bytes()
        for each in asked
    ]
    assert len(set(models)) == 1


@pytest.mark.parametrize("optimizer", ["ngsgd", "adamw"])
def test_optimizers_and_random_layers_take_several_inputs(optimizer, tmp_path):
    run = train(
        TwoInputs(0.2), functional.cross_entropy, (NAMED, Y), tmp_path, workers=2,
        optimizer=optimizer,
    )  # fmt: skip
    assert run.status == "done"


def test_one_worker_is_a_plain_loop_over_the_same_dicts(alike, tmp_path):
    _, model = alike
    run = train(model, "model", {**NAMED, "labels": Y}, tmp_path, metric="loss", passes=1)
    own = WithLabels()
    own.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(own.parameters(), 0.1)
    order = Order(0, 0, np.arange(N), np.ones(N, np.int64), 8)
    for step in range(order.steps):
        rows = torch.as_tensor(order.rows(step))
        optimizer.zero_grad()
        own(**{k: t[rows] for k, t in NAMED.items()}, labels=Y[rows]).loss.backward()
        optimizer.step()

    found = load_file(run.path("model.safetensors"))["model"]
    assert torch.equal(found, torch.cat([p.detach().flatten() for p in own.parameters()]))


def test_a_model_without_a_loss_of_its_own_is_named(tmp_path):
    with pytest.raises(UserError, match="loss: 'model': a Tensor without 'loss'; allowed: a func"):
        train(Logits(), "model", (NAMED, Y), tmp_path)


class Several(TwoInputs):
    """Outputs of a chosen kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, input_ids, attention_mask):
        logits = super().forward(input_ids, attention_mask)
        return {
            "object": SimpleNamespace(logits=logits),
            "dict": {"logits": logits},
            "tuple": (logits, input_ids),
        }[self.kind]


def loss_of_dict(outputs, targets):
    return functional.cross_entropy(outputs["logits"], targets)


def loss_of_tuple(outputs, targets):
    return functional.cross_entropy(outputs[0], targets)


def error_of_tuple(outputs, targets):
    return (outputs[0].argmax(1) != targets).double().mean()


def test_outputs_may_be_objects_dicts_and_tuples(alike, tmp_path):
    plain, _ = alike
    losses = {"object": logits_loss, "dict": loss_of_dict, "tuple": loss_of_tuple}
    expected = train(plain, functional.cross_entropy, (NAMED, Y), tmp_path).summary
    for kind, loss in losses.items():
        model = Several(kind)
        model.load_state_dict(plain.state_dict())
        metric = error_of_tuple if kind == "tuple" else None
        found = train(model, loss, (NAMED, Y), tmp_path, metric=metric).summary
        name = "error_of_tuple" if kind == "tuple" else "error"
        assert found[f"dev_{name}/iterate"] == expected["dev_error/iterate"]
        assert found["dev_loss/iterate"] == expected["dev_loss/iterate"]


def test_a_metric_that_needs_a_tensor_says_so_before_anything_is_trained(tmp_path):
    told = r"metric: 'error' needs a tensor, .* not a tuple of outputs; allowed: metric='loss' or"
    with pytest.raises(UserError, match=told):
        train(Several("tuple"), loss_of_tuple, (NAMED, Y), tmp_path)
    told = "metric: 'mse' needs .* not a tuple of targets"
    pair = (torch.zeros(N, 1), torch.zeros(N, 1))
    model, loss = nn.Linear(4, 1), lambda o, t: functional.mse_loss(o, t[0])
    with pytest.raises(UserError, match=told):
        train(model, loss, (MASK, pair), tmp_path, metric="mse")


@pytest.mark.parametrize(("reduction", "found"), [("mean", "mean"), ("sum", "sum")])
def test_a_sum_is_seen_in_outputs_of_any_kind(reduction, found):
    def loss(outputs, targets):
        return functional.cross_entropy(outputs.logits, targets, reduction=reduction)

    some = Tree({name: tensor[:8] for name, tensor in NAMED.items()})
    seen = inspect_module(Several("object"), loss, some, Y[:8])
    assert seen.reduction == found


def test_the_loss_decides_where_it_is_the_models_own(alike, tmp_path):
    _, labelled = alike
    run = train(labelled, "model", (NAMED, Y), tmp_path)
    assert "dev_error/iterate" not in run.summary
    run = train(labelled, "model", (NAMED, Y), tmp_path, metric="error")
    assert "dev_error/iterate" in run.summary
