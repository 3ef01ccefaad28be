"""Mistakes of a first program: one line each, which names the argument at fault."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import lagbench
from harness.algorithms.catalogue import AsyncSgd
from harness.cli import main
from harness.experiment.run import resolve
from tests.modules import points

X, LABELS = points(40)
LOSS = functional.cross_entropy
FREE = "[network] is not used by a parameter server without [network.server]"


def module(width: int = 3) -> nn.Module:
    return nn.Linear(X.shape[1], width)


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(X.shape[1], 3)
        self.lock = threading.Lock()


class Frozen(nn.Linear):
    def __init__(self):
        super().__init__(X.shape[1], 3)
        self.requires_grad_(False)


class Zeroed(nn.Module):
    def forward(self, x):
        return torch.nan_to_num(x)


def raises_late(outputs, targets):
    if not torch.is_grad_enabled():
        raise ZeroDivisionError("a mistake of the user's")
    return LOSS(outputs, targets)


@dataclass(frozen=True)
class Serverless(AsyncSgd):
    def start(self, model):
        return {"model": model}


@dataclass(frozen=True)
class Lossless(AsyncSgd):
    def contribute(self, work):
        return torch.zeros(3)


@dataclass(frozen=True)
class Returning(lagbench.LocalOptimizer):
    def start(self, replicas):
        return {}

    def direct_(self, gradients, replicas, state, network):
        return gradients.sign()


@dataclass(frozen=True)
class Stateless(Returning):
    def start(self, replicas):
        return None


@dataclass(frozen=True)
class Forgetful(AsyncSgd):
    def fold(self, server, fold):
        server.model.add_(fold.contributions[0], alpha=-fold.rate)


@pytest.mark.parametrize(
    ("name", "method", "told"),
    [
        ("start", lambda self: None, "start(self); allowed: start(self, model)"),
        ("contribute", lambda self, a, b: None, "contribute(self, a, b); allowed: contribute("),
        ("fold", lambda self, server: None, "fold(self, server); allowed: fold(self, server, fold"),
    ],
)
def test_an_algorithm_with_other_arguments_is_refused_where_it_is_defined(name, method, told):
    with pytest.raises(lagbench.UserError) as refused:
        type("Short", (AsyncSgd,), {name: method})
    assert str(refused.value).startswith(f"algorithm: Short.{told}")


def spoilt(tensor, *place, value=torch.nan):
    """A copy with one other number."""
    made = tensor.clone()
    made[place] = value
    return made


@pytest.fixture
def train(tmp_path):
    usual = {"cluster": "k20m-server", "rate": 0.1, "seeds": 1, "passes": 1, "minibatch": 8}
    usual |= {"step_seconds": 0.1, "store": tmp_path}

    def call(model=None, loss=LOSS, data=(X, LABELS), **given):
        return lagbench.train(model or module(), loss, data, **{**usual, **given})

    return call


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"algorithm": ["async"]}, "algorithm: ['async']; allowed: a name, an Algorithm"),
        ({"algorithm": AsyncSgd}, "algorithm: AsyncSgd is a class; allowed: an object of it"),
        ({"algorithm": Forgetful()}, "algorithm: fold of Forgetful leaves version 0, not 1; allow"),
        ({"cluster": {"workers": 4}}, "cluster: {'workers': 4}; allowed: a lagbench.Cluster, a"),
        ({"cluster": None}, "cluster: None; allowed: a lagbench.Cluster, a TOML file, or a name"),
        ({"dev": 0}, "dev: 0.0; allowed: a share between 0 and 1, or data"),
        ({"device": "gpu"}, "device: unknown 'gpu' (did you mean 'cuda'?); allowed: auto, cpu"),
        ({"device": 3}, "device: 3; allowed: 'cpu', 'cuda' or 'auto'"),
        ({"workers": "4"}, "workers: '4'; allowed: a whole number from 1"),
        ({"target": 85, "metric": "accuracy"}, "target: 85; allowed: from 0 to 1, as accuracy is"),
        ({"workers": [4]}, "workers: [4]; allowed: a whole number from 1"),
        ({"metric": lambda o, t: (o.argmax(1) != t).float()}, "metric: "),
        ({"metric": "acc"}, "metric: unknown 'acc' (did you mean 'accuracy'?); allowed: "),
        ({"model": Locked()}, "model: cannot be copied (TypeError: cannot pickle '_thread.lock'"),
        ({"model": nn.Linear}, "model: Linear raised TypeError: "),
        ({"model": Frozen()}, "model: no parameter requires a gradient; allowed: at least one"),
        ({"model": LOSS, "loss": module()}, "model, loss: the loss is a module; allowed: the mo"),
        ({"loss": nn.CrossEntropyLoss}, "loss: CrossEntropyLoss is a class; allowed: an object"),
        ({"data": (X, LABELS.float())}, "loss: fails on a minibatch of 8 examples: "),
        ({"data": (X, LABELS[:, None])}, "loss: fails on a minibatch of 8 examples: "),
        ({"seeds": 0}, "seeds: 0; allowed: how many, from 1; or which, from 0, each once"),
        ({"seeds": []}, "seeds: []; allowed: how many, from 1; or which, from 0, each once"),
        ({"seeds": [0, -1]}, "seeds: [0, -1]; allowed: "),
        ({"partition": "dirichlet"}, "partition: 'dirichlet' without a concentration; allowed: w"),
        ({"partition": lagbench.dirichlet}, "partition: lagbench.dirichlet without a concentrat"),
        ({"data": zip(X, LABELS, strict=True)}, "data: zip has no items by number, or no length;"),
        ({"schedule": lambda step: 0.9**step}, "schedule: a function of 'step' is called with the"),
        ({"model": nn.Linear(3, 3)}, "model: fails on a minibatch of 8 examples: "),
        ({"dev": (X[:, :3], LABELS)}, "dev: fails on 40 examples: RuntimeError: "),
        ({"loss": "model"}, "loss: 'model', but Linear.forward takes no 'labels'; allowed: a fun"),
        ({"loss": raises_late}, "raises_late (test_mistakes.py, line "),
        (
            {"data": (X, torch.cat([LABELS[:1], LABELS[1:3] + 9, LABELS[3:]]))},
            "data, model or loss: fails",
        ),
        ({"algorithm": Serverless()}, "algorithm: start of Serverless returns a dict; allowed: a "),
        ({"algorithm": Lossless()}, "algorithm: contribute of Lossless returns shape [3]; allowed"),
        ({"optimizer": Returning()}, "optimizer: direct_ of Returning returns a Tensor; allowed: "),
        ({"optimizer": Stateless()}, "optimizer: start of Stateless returns a NoneType; allowed: "),
    ],
)
def test_the_argument_at_fault_is_named_in_one_line(given, told, train):
    with pytest.raises(lagbench.UserError) as refused:
        train(**given)
    assert str(refused.value).startswith(told)
    assert str(refused.value).isprintable()


def test_an_optimizer_of_other_arguments_is_refused_where_it_is_made():
    with pytest.raises(lagbench.UserError, match=r"Narrow.direct_\(self, gradients\); allowed: "):

        class Narrow(Returning):
            def direct_(self, gradients):
                pass


@pytest.mark.parametrize("name", ["data", "dev", "test"])
def test_numbers_that_are_not_finite_are_remarked_on(name, train, caplog):
    with caplog.at_level("INFO", "lagbench"):
        train(**{name: (spoilt(X, 17, 3), LABELS)})
    assert f"{name}: holds numbers that are not finite" in caplog.messages


def test_a_module_that_expects_such_numbers_is_trained(train):
    model = nn.Sequential(Zeroed(), module())
    assert train(model, data=(spoilt(X, 17, 3), LABELS)).runs[0].status == "done"


def test_numbers_of_numpy_are_those_of_python(train):
    model = module()
    numbers = {"workers": np.int64(2), "rate": np.float64(0.1), "seeds": np.arange(1)}
    assert train(model, **numbers).runs[0].hash == train(model, workers=2).runs[0].hash


def test_an_argument_has_one_meaning_under_the_names_of_other_libraries(train, caplog):
    model = module()
    named = {"lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 0, "machines": "k20m-server"}
    usual = {"step_seconds": 0.1, "store": train(model).runs[0].dir.parent}
    with caplog.at_level("INFO", "lagbench"):
        run = lagbench.train(model, LOSS, (X, LABELS), **usual, **named, algorithms=["async"])
    assert run.runs[0].hash == train(model).runs[0].hash
    assert "train: epochs is called passes here" in caplog.messages
    with pytest.raises(lagbench.UserError, match=r"train: unknown 'lr' \(did you mean 'rate'"):
        train(model, lr=0.1)


def test_a_metric_has_the_name_under_which_it_is_given(train):
    right = train(module(), metrics={"accuracy": lambda o, t: (o.argmax(1) == t).double().mean()})
    run = right.runs[0]
    assert run.config["problem"]["better"] == "more"
    assert run.curve("accuracy")[1].tolist() == run.curve("dev_accuracy/iterate")[1].tolist()
    assert run.curve("staleness")[1].tolist() == run.timeline.staleness().tolist()
    assert (
        train(module(), metric={"share": "accuracy"}).runs[0].config["problem"]["better"] == "more"
    )


@pytest.mark.parametrize("rates", [[0.4, 0.1], {"async": (0.1, 0.4)}])
def test_a_rate_is_chosen_among_several(rates, tmp_path):
    usual = {"cluster": "k20m-server", "passes": 1, "seeds": 1, "store": tmp_path, "workers": 1}
    usual |= {"step_seconds": 0.1, "algorithms": "async"}
    result = lagbench.compare(module(), LOSS, (X, LABELS), rates=rates, **usual)
    assert set(result.rows[0].cell.tried) == {0.1, 0.4}
    assert result.rows[0].rate in (0.1, 0.4)


def test_a_missing_device_is_named_as_the_argument_or_the_option(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for names, told in ((("device",), "device: cuda asked for"), ((), "--device: cuda asked for")):
        with pytest.raises(lagbench.UserError) as refused:
            resolve("cuda", *names)
        assert str(refused.value).startswith(told)


def test_a_device_of_torch_is_the_device_of_its_name(train):
    model = module()
    found = [train(model, device=given).runs[0].hash for given in ("cpu", torch.device("cpu"))]
    assert found[0] == found[1]


def test_sparse_gradients_train_as_dense_ones(train):
    def made(sparse):
        torch.manual_seed(1)
        embedding = nn.Embedding(10, 2, sparse=sparse)
        return nn.Sequential(embedding, nn.Flatten(), nn.Linear(6, 3))

    ids = torch.randint(0, 10, (40, 3), generator=torch.manual_seed(2))
    losses = [
        train(made(sparse), data=(ids, LABELS), workers=2).runs[0].summary["dev_loss/iterate"]
        for sparse in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_run_that_is_not_there_is_told_with_where_it_was_looked_for(tmp_path, monkeypatch, train):
    monkeypatch.chdir(tmp_path)
    made = train(store="lagbench-runs").runs[0]
    assert lagbench.load(made.hash[:8]).summary == made.summary
    assert lagbench.load(made.hash, store=made.dir.parent).summary == made.summary
    assert lagbench.load(tmp_path / "lagbench-runs" / made.hash).hash == made.hash
    with pytest.raises(lagbench.UserError, match=r"^lagbench-runs: no run with hash 'nope'; lag"):
        lagbench.load("nope")
    with pytest.raises(lagbench.UserError, match=rf"^run: '{tmp_path}' is no run; allowed: the fo"):
        lagbench.load(tmp_path)


@pytest.mark.parametrize(
    ("cluster", "workers", "told"),
    [
        ("k20m-server", 4, []),
        ("k20m-server", 16, ["K20m server describes 4 workers; 16 are these 4 times over"]),
        ("k20m-server", 6, ["K20m server describes 4 workers; 6 are these 1.5 times over"]),
        ("l40s-wide-area", 4, [f"4 x L40S, limited links: {FREE}: its messages take no time"]),
    ],
)
def test_repeated_workers_and_free_messages_are_said_once(
    cluster, workers, told, caplog, capsys, train
):
    def select(lines):
        return [line for line in lines if "describes" in line or "take no time" in line]

    with caplog.at_level("INFO", "lagbench"):
        lagbench.simulate(cluster, workers=workers, folds=10)
    assert select(caplog.messages) == told
    caplog.clear()
    with caplog.at_level("INFO", "lagbench"):
        train(cluster=cluster, workers=workers, minibatch=1)
    assert select(caplog.messages) == told
    capsys.readouterr()
    words = ["simulate", cluster, "--workers", f"1,{workers}", "--folds", "10"]
    assert main(words) == 0
    assert select(capsys.readouterr().err.splitlines()) == told
