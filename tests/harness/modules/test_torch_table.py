"""Names of torch mean what torch means: every optimizer, decay, clip and algorithm in float64.

The other side is plain loops of `torch.optim`, on the same minibatches. Of the module, some
parameters are tied, some have a gradient in some minibatches only, and some have never any.
"""

import copy
import math
import tempfile
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
import torch
from torch import nn

from harness.algorithms.compression import Compressed, TopK
from harness.base.errors import UserError
from harness.experiment.loop import SimulationExecutor
from harness.modules.call import Call
from harness.simulator.cluster import Checkpoints, Cluster, Fault
from harness.simulator.timeline_file import load_timeline
from tests.killed import check_resumption

SIZE, ROUND, LIMIT, DECAY = 6, 2, 0.2, 0.1


class Branching(nn.Module):
    """Classes of the points in columns 1 to 5; column 0 of its first row chooses a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight
        self.left, self.right, self.never = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(2, 2)

    def forward(self, x):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x[:, 1:]))))
        return self.out(hidden) + (self.left if x[0, 0] > 0 else self.right)(hidden)


class Straight(Branching):
    """Without branches, so that replicas can be computed at once."""

    def forward(self, x):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x[:, 1:]))))
        return self.out(hidden) + self.left(hidden)


class Whole(Straight):
    """Without parameters that are not used."""

    def __init__(self) -> None:
        super().__init__()
        del self.right, self.never


class Muon(torch.optim.Optimizer):
    """Orthogonal momenta of matrices, AdamW of the others."""

    def __init__(self, parameters, lr, weight_decay):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        whole = self.param_groups[0]["params"]
        rest = [p for p in whole if p.dim() != 2]
        self.rest = torch.optim.AdamW(rest, lr, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self):
        self.rest.step()
        (group,) = self.param_groups
        for p in (p for p in group["params"] if p.dim() == 2 and p.grad is not None):
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            ahead = p.grad.lerp(momentum.lerp_(p.grad, 0.05), 0.95)
            x = ahead / ahead.norm()
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(x, alpha=0.2 * math.sqrt(max(p.shape)) * group["lr"])


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, 0.1, {}),
    "momentum": (torch.optim.SGD, 0.05, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, 0.05, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, 0.01, {}),
    "adamw": (torch.optim.AdamW, 0.01, {}),
    "muon": (Muon, 0.01, {}),
    "adagrad": (torch.optim.Adagrad, 0.05, {}),
    "rmsprop": (torch.optim.RMSprop, 0.01, {}),
    "nadam": (torch.optim.NAdam, 0.01, {}),
    "radam": (torch.optim.RAdam, 0.01, {}),
}
OUTER = {
    "localsgd": None,
    "bmuf": {"lr": 1.0, "momentum": 0.875},
    "diloco": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
}
CELLS = [
    *(("ddp", 1), ("ddp", 4), ("sync:2", 4), ("async", 1), (f"bmuf:{ROUND}", 4)),
    *((f"{name}:{ROUND}", workers) for name in ("localsgd", "diloco") for workers in (1, 4)),
]


def made(kind: type[nn.Module]) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(72, 6, dtype=torch.float64)
    return kind().double(), (x, x[:, 1:4].argmax(1))


@cache
def experiment(kind: type[nn.Module], **asked) -> Call:
    model, (x, y) = made(kind)
    given = {"minibatch": SIZE, "passes": 1, "dev": (x[:6], y[:6]), "seeds": [0], **asked}
    given |= {"step_seconds": 1e-3, "store": tempfile.mkdtemp(), "metric": "loss"}
    cluster = Cluster.of(workers=18, step_s=0.01)
    return Call(model, nn.functional.cross_entropy, (x, y), cluster, given)


def trained(config):
    """The parameters after a pass of a configuration, and the minibatches by step and worker."""
    problem = config.task.open(config)
    minibatches = problem.minibatches(config)
    executor = SimulationExecutor(config, problem, problem.initial(), minibatches)
    folds = minibatches.order.folds
    executor.advance(folds, handing_out=None, rate=config.schedule.rate)

    def minibatch(worker, step):
        x, y = minibatches.fetch([(worker, step)])
        return x[0, 0], y[0, 0]

    workers = range(config.workers)
    steps = range(len(problem.pieces) // config.stage(0).minibatch // config.workers)
    return executor.server.model, [[minibatch(w, step) for w in workers] for step in steps]


def backpropagate(model, minibatch):
    model.zero_grad()
    nn.functional.cross_entropy(model(minibatch[0]), minibatch[1]).backward()
    return [p.grad for p in model.parameters()]


def step(model, optimizer, clip):
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def data_parallel(model, steps, make, clip=None, together=1):
    """One optimizer of the mean gradient, as `DistributedDataParallel` has it."""
    optimizer = make(model)
    for first in range(0, len(steps), together):
        minibatches = [*chain(*steps[first : first + together])]
        every = [backpropagate(model, each) for each in minibatches]
        for p, slopes in zip(model.parameters(), zip(*every, strict=True), strict=True):
            used = [slope for slope in slopes if slope is not None]
            p.grad = sum(used) / len(slopes) if used else None
        step(model, optimizer, clip)


def local_steps(model, steps, make, clip=None, outer=None):
    """An optimizer for each worker, and an outer one along the mean difference of a round."""
    workers = [copy.deepcopy(model) for _ in steps[0]]
    optimizers = [make(each) for each in workers]
    server = torch.optim.SGD(model.parameters(), **(outer or {"lr": 1.0}))
    while steps:
        due, steps = steps[:ROUND], steps[ROUND:]
        for w, (worker, optimizer) in enumerate(zip(workers, optimizers, strict=True)):
            worker.load_state_dict(model.state_dict())
            for minibatches in due:
                backpropagate(worker, minibatches[w])
                step(worker, optimizer, clip)
        moved = zip(*(each.parameters() for each in workers), strict=True)
        for p, theirs in zip(model.parameters(), moved, strict=True):
            p.grad = p.detach() - sum(each.detach() for each in theirs) / len(workers)
        server.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def check(config, plain, *further):
    """Compare a configuration with a plain loop."""
    (model, _), (ours, steps) = made(type(config.task.problem.model)), trained(config)
    start = flat(model)
    plain(model, steps, *further)
    assert (flat(model) - start).abs().max() > 1e-3
    assert torch.allclose(ours, flat(model), rtol=0, atol=1e-10)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("decay", "clip", "module"),
    [(0.0, None, Whole), (0.0, LIMIT, Branching), (DECAY, None, Branching), (DECAY, LIMIT, Whole)],
)
@pytest.mark.parametrize(("name", "workers"), CELLS)
def test_every_optimizer_under_every_name_is_torch_s_own_loop(
    name, workers, decay, clip, module, optimizer
):
    kind, rate, settings = OPTIMIZERS[optimizer]
    asked = {"clip": clip, "weight_decay": decay, "optimizer": optimizer, "guess": rate}

    def make(model):
        return kind(model.parameters(), lr=rate, weight_decay=decay, **settings)

    config = experiment(module, **asked).first(name, workers)
    if (family := name.split(":")[0]) in OUTER:
        check(config, local_steps, make, clip, OUTER[family])
    else:
        check(config, data_parallel, make, clip, 2 if name == "sync:2" else 1)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=DECAY)


ADAMW = {"optimizer": "adamw", "weight_decay": DECAY, "guess": 0.01}


def test_parameters_that_are_never_used_stay_where_replicas_are_computed_at_once():
    many = experiment(Straight, **ADAMW, minibatch=2)
    assert many.problem(0).inspect(2, "cpu").together <= 18
    check(many.first("ddp", 18), data_parallel, adamw)
    check(many.first(f"localsgd:{ROUND}", 18), local_steps, adamw)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "rmsprop"])
def test_an_optimizer_in_a_parameter_server_is_torch_s_own_loop(optimizer):
    kind, rate, settings = OPTIMIZERS[optimizer]
    asked = {"weight_decay": DECAY, "optimizer": optimizer, "guess": rate, "clip": LIMIT}

    def make(model):
        return kind(model.parameters(), lr=rate, weight_decay=DECAY, **settings)

    check(experiment(Branching, **asked).first("ServerDescent", 1), data_parallel, make, LIMIT)


def grouped(kind, **settings):
    """Makes an optimizer with groups of its own settings."""

    def make(model):
        named = dict(model.named_parameters())
        slow = [named.pop(name) for name in ("left.bias", "second.bias")]
        groups = [{"params": [*named.values()]}, {"params": slow, "lr": 0.002, "weight_decay": 0.0}]
        return kind(groups, lr=0.02, weight_decay=DECAY, **settings)

    return make


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", [Branching, Whole])
@pytest.mark.parametrize(
    "make",
    [
        grouped(torch.optim.SGD),
        grouped(torch.optim.SGD, momentum=0.9),
        grouped(torch.optim.AdamW),
        grouped(torch.optim.Adam, amsgrad=True),
    ],
)
def test_groups_of_parameters_are_torch_s(make, module):
    model, (x, y) = made(module)
    given = {"minibatch": SIZE, "passes": 1, "dev": (x[:6], y[:6]), "seeds": [0], "clip": LIMIT}
    given |= {"step_seconds": 1e-3, "store": tempfile.mkdtemp(), "optimizer": make(model)}
    cluster = Cluster.of(workers=4, step_s=0.01)
    asked = Call(model, nn.functional.cross_entropy, (x, y), cluster, given)
    check(asked.first("ddp", 4), data_parallel, make, LIMIT)
    check(asked.first(f"localsgd:{ROUND}", 1), local_steps, make, LIMIT)


def test_messages_that_are_sent_whole_keep_what_has_no_gradient():
    config = experiment(Branching, **ADAMW).first("ddp", 4)
    check(replace(config, algorithm=Compressed(config.algorithm, TopK(1.0))), data_parallel, adamw)


FAILING = (Fault("server", at_s=(0.003, 0.006), down_s=1e-3, checkpoint_s=0.004),)
DYING = (Fault("death", (1,), at_s=(0.003, 0.0075), down_s=1e-3),)


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        *(("ddp", ()), (f"localsgd:{ROUND}", ())),
        *(("ServerDescent", FAILING), (f"localsgd:{ROUND}", DYING)),
    ],
)
def test_counts_of_each_parameter_are_restored(name, faults, tmp_path):
    config = experiment(Branching, **ADAMW).first(name, 3)
    saves = Checkpoints(2, write_s=1e-4, restart_s=1e-4) if faults is DYING else None
    cluster = replace(config.cluster, faults=faults, checkpoints=saves)
    config = replace(config, cluster=cluster, passes=2, evaluations=4)
    run = check_resumption(config, tmp_path)
    assert len(load_timeline(run.path("timeline.parquet")).restarts) == 2 * len(faults)


def test_a_restart_of_an_optimizer_in_the_server_is_refused():
    config = experiment(Branching, **ADAMW).first("ddp", 4)
    with pytest.raises(UserError, match=r"restart: 'pass' is not allowed with AdamW; allowed: 'ne"):
        replace(config, algorithm=replace(config.algorithm, restart="pass"))
