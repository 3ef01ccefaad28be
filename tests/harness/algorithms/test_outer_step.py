import pytest
import torch

from harness.algorithms.averaging import (
    BlockMomentum,
    Mean,
    ModelAveraging,
    OuterNesterov,
)
from harness.algorithms.contract import Fold, LocalWork, Memory, Server
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_mean_replaces_the_model_to_the_last_bit():
    server = ModelAveraging(outer=Mean()).start(vector(0.1, 7.0))
    both = torch.stack([vector(0.3, 1.0), vector(0.5, 2.0)])
    ModelAveraging().fold(server, Fold(both, [0, 0], 1.0))
    assert server.model.tolist() == [torch.tensor([0.3, 0.5], dtype=torch.float64).mean(), 1.5]


def test_without_momentum_and_at_rate_one_an_outer_step_goes_to_the_mean():
    for step in (BlockMomentum(0.0, 1.0), OuterNesterov(0.0, 1.0)):
        server = Server(vector(2.0), tensors=step.start(vector(2.0)))
        step.step(server, vector(5.0))
        assert server.model.item() == 5.0


def test_momenta_are_no_models_to_deploy():
    for outer in (Mean(), BlockMomentum(), OuterNesterov()):
        assert ModelAveraging(outer=outer).start(vector(1.0)).candidates().keys() == {"iterate"}


def test_a_contribution_that_began_a_version_ago_counts_as_the_way_it_went():
    algorithm = ModelAveraging()
    server = algorithm.start(vector(0.0))
    algorithm.fold(server, Fold(vector(4.0).unsqueeze(0), [0], 1.0))  # 0 to 4
    both = torch.stack([vector(6.0), vector(3.0)])
    algorithm.fold(server, Fold(both, [0, 1], 1.0))  # 4 to 6, and 0 to 3
    assert server.model.item() == 4.0 + (2.0 + 3.0) / 2


def test_an_older_contribution_is_refused():
    algorithm = ModelAveraging()
    server = algorithm.start(vector(0.0))
    with pytest.raises(ValueError, match="2 versions old"):
        algorithm.fold(server, Fold(vector(1.0).unsqueeze(0), [2], 1.0))


def test_contributing_leaves_the_memory_empty_where_nothing_is_estimated():
    net, memory = Dnn(Layout((2, 2))), Memory()
    replicas = torch.zeros(3, 6)
    minibatch = Minibatch(torch.ones(3, 4, 2), torch.zeros(3, 4, dtype=torch.int64))
    work = LocalWork(net, replicas, [minibatch], torch.empty(3, 6), 0.1, memory)
    ModelAveraging().contribute(work)
    assert memory.tensors == {}
