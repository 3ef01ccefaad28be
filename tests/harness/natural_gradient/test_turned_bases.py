"""Natural gradient steps the same way whatever signs and turns its decompositions come with."""

import pytest
import torch

from harness.algorithms.contract import Memory
from harness.algorithms.descent import local_steps
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.natural_gradient.layer import state_from_tensors
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from tests.harness.natural_gradient.invariants import invariants
from tests.portable.flips import flip_bases

LAYOUT = Layout((9, 12, 12, 7))
OPTIONS = NaturalGradient(Preconditioner(6, 2), Preconditioner(5, 2), PerSample(0.02))
FRAMES = 4
"""Fewer than the ranks: directions that no row has are all of the same size."""


def stepped(steps: int = 15) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    stack = 0.3 * torch.randn(2, LAYOUT.parameters, dtype=torch.float64, generator=draw)
    x = torch.randn(steps, 2, FRAMES, 9, dtype=torch.float64, generator=draw)
    y = torch.randint(0, 7, (steps, 2, FRAMES), generator=draw)
    minibatches = [Minibatch(*each) for each in zip(x, y, strict=True)]
    memory = Memory()
    losses = local_steps(OPTIONS, Dnn(LAYOUT), stack, minibatches, 0.3, memory)
    return [stack, losses, *invariants(state_from_tensors(memory.tensors, 3))]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_turned_bases_change_a_step_by_rounding_alone(seed, monkeypatch):
    usual = stepped()
    flip_bases(monkeypatch, seed)
    for found, expected in zip(stepped(), usual, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
