import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.networks.contract import Minibatch
from tests.harness.algorithms.conftest import LAYOUT, NET, drawn

RATE = 0.05


def problem(workers: int, steps: int) -> tuple[torch.Tensor, list[Minibatch]]:
    stack, minibatches = drawn(steps)
    return stack[0], [Minibatch(x[:workers], targets[:workers]) for x, targets in minibatches]


def one_round(algorithm, model, minibatches):
    workers = len(minibatches[0].x)
    server = algorithm.start(model)
    out = torch.empty(workers, LAYOUT.parameters, dtype=torch.float64)
    replicas = model.repeat(workers, 1)
    algorithm.contribute(LocalWork(NET, replicas, minibatches, out, RATE, Memory()))
    algorithm.fold(server, Fold(out, [0] * workers, RATE))
    return server


def gradient(model, minibatch, worker):
    out = torch.empty(1, LAYOUT.parameters, dtype=torch.float64)
    NET.gradient(
        model.unsqueeze(0), minibatch.x[worker, None], minibatch.targets[worker, None], out
    )
    return out[0]


def test_several_local_steps_of_async_sgd_hand_in_the_sum_of_their_gradients():
    model, minibatches = problem(workers=1, steps=3)
    server = one_round(AsyncSgd(), model, minibatches)
    theta = model
    for minibatch in minibatches:
        theta = theta - RATE * gradient(theta, minibatch, 0)
    torch.testing.assert_close(server.model, theta, rtol=0, atol=1e-14)


def test_async_contributions_of_one_fold_add_up():
    model, minibatches = problem(workers=3, steps=1)
    server = one_round(AsyncSgd(), model, minibatches)
    total = sum(gradient(model, minibatches[0], w) for w in range(3))
    torch.testing.assert_close(server.model, model - RATE * total, rtol=0, atol=1e-14)
    assert server.version == 1
