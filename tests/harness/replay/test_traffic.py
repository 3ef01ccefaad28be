"""Bytes that a fold moves, counted without its numbers, against what it cannot do without."""

from __future__ import annotations

import pytest
import torch

from harness.networks.feedforward import Layout
from harness.replay.block_replay import BLOCK
from tests.folds import NETWORKS, moved
from tests.traffic import Traffic, floor


@pytest.mark.parametrize(
    ("name", "share"), [("paper 1", 1.3), ("512 x 3", 1.42), ("128 x 4", 1.34)]
)
def test_a_fold_moves_so_many_times_what_it_must(name, share):
    least = BLOCK * floor(*NETWORKS[name])
    assert round(moved(name).total() / least, 2) == share


def test_a_fold_and_its_average_are_five_passes_over_the_parameters():
    whole = 4 * Layout(NETWORKS["paper 1"][0]).parameters
    assert moved("paper 1")["lagbench.step_and_draw"] == BLOCK * (5 * whole + 8)


def test_a_stack_of_bfloat16_moves_less_than_rounding_at_every_gradient():
    narrow, wide = (moved("paper 1", stack=each) for each in (torch.bfloat16, torch.float32))
    assert narrow.total() < wide.total()


def test_traffic_counts_an_expanded_operand_once_and_what_is_picked():
    with Traffic() as traffic:
        torch.ones(5).expand(3, 5).add(torch.ones(3, 5))
        torch.ones(100, 2).index_select(0, torch.tensor([1, 2]))
    assert traffic.moved["aten.add"] == 4 * (5 + 15 + 15)
    assert traffic.moved["aten.index_select"] == 2 * 4 * 4 + 2 * 8
