import torch

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.contract import Fold


def fold(algorithm, server, values, rate=0.5):
    for value in values:
        contribution = torch.tensor([[value]], dtype=torch.float64)
        algorithm.fold(server, Fold(contribution, [0], rate))


def start(algorithm, value=0.0):
    return algorithm.start(torch.tensor([value], dtype=torch.float64))


def test_plain_fold_steps_against_the_gradient():
    algorithm = AsyncSgd()
    server = start(algorithm, 1.0)
    fold(algorithm, server, [4.0, -2.0])
    assert server.model.item() == 1.0 - 0.5 * 4.0 + 0.5 * 2.0
    assert server.version == 2


def test_memory_of_one_divides_by_the_present_gradient_only():
    algorithm = AsyncSgd("memory_of_one", k=1.0)
    server = start(algorithm)
    fold(algorithm, server, [3.0], rate=0.008)
    assert server.model.item() == -0.008 * 3.0 / 10.0**0.5


def test_start_copies_the_initial_model():
    initial = torch.zeros(1, dtype=torch.float64)
    algorithm = AveragedSgd()
    server = algorithm.start(initial)
    fold(algorithm, server, [1.0])
    assert initial.item() == 0.0
    assert server.vectors["average"].item() != server.model.item()


def test_running_average_follows_the_printed_recursion():
    algorithm = AveragedSgd(eta=0.25)
    server = start(algorithm)
    fold(algorithm, server, [-2.0, -2.0, -2.0])
    average, theta = 0.0, 0.0
    for _ in range(3):
        theta += 1.0
        average = 0.75 * average + 0.25 * theta
    assert server.vectors["average"].item() == average


def test_after_the_switch_the_average_is_the_mean_of_all_iterates_since():
    algorithm = AveragedSgd()
    server = start(algorithm)
    assert algorithm.consider(server, {"iterate": 0.4, "average": 0.3})
    fold(algorithm, server, [-2.0] * 5)
    assert abs(server.vectors["average"].item() - (0 + 1 + 2 + 3 + 4 + 5) / 6) < 1e-15


def test_the_switch_waits_until_the_average_is_strictly_better_and_happens_once():
    algorithm = AveragedSgd()
    server = start(algorithm)
    assert not algorithm.consider(server, {"iterate": 0.3, "average": 0.3})
    assert algorithm.consider(server, {"iterate": 0.3, "average": 0.29})
    assert not algorithm.consider(server, {"iterate": 0.3, "average": 0.1})


def test_the_window_spans_the_last_share_of_the_iterates_by_polynomial_decay():
    """With a half, iterate i of n has the weight i; with all of them every one the same."""
    for share, weights in ((0.5, [1, 2, 3, 4, 5]), (1.0, [1, 1, 1, 1, 1])):
        algorithm, naive = AveragedSgd(window=share), 0.0
        server = start(algorithm, 7.0)
        for weight, value in zip(weights, (-2.0, 4.0, 6.0, -8.0, 1.0), strict=True):
            fold(algorithm, server, [value])
            naive += weight * server.model.item() / sum(weights)
        assert abs(server.vectors["window"].item() - naive) < 1e-15
    assert "window" not in start(AveragedSgd()).vectors
