"""What a GPU is asked for in a fold: launches and bytes, exact, counted where there is none.

A fold one by one and a block of 16, of every algorithm, on a small network; a block of averaged SGD
at the sizes of papers, with the least that it has to move beside it; natural gradient's minibatch.
"""

from __future__ import annotations

import pytest
import torch

from harness.replay.block_replay import BLOCK
from tests.folds import (
    ALGORITHMS,
    NETWORKS,
    REPEATING,
    asked_in_blocks,
    launches_of_natural_steps,
    moved,
    replayed,
)
from tests.traffic import floor

FOLDS = 8
"""Twice all workers; an update of natural gradient's estimates is among them."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_folds_one_by_one(benchmark, name):
    counts, moved = benchmark.pedantic(replayed, (ALGORITHMS[name], FOLDS), rounds=1)
    benchmark.extra_info["counts"] = {
        "folds": FOLDS,
        "launches": counts.launches.total(),
        "round_trips": counts.round_trips.total(),
        "mixes": counts.mixes.total(),
        "bytes": moved,
    }


@pytest.mark.parametrize("name", REPEATING)
def test_a_block_of_folds(benchmark, name):
    found = benchmark.pedantic(asked_in_blocks, (ALGORITHMS[name],), rounds=1)
    benchmark.extra_info["counts"] = {
        "folds": BLOCK,
        "launches": found.outside.launches.total(),
        "operations_inside": found.inside.launches.total(),
        "round_trips": found.inside.round_trips.total() + found.outside.round_trips.total(),
        "mixes": found.inside.mixes.total() + found.outside.mixes.total(),
    }


@pytest.mark.parametrize("stack", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_bytes_of_a_block_of_averaged_sgd(benchmark, network, stack):
    given = {} if stack is None else {"stack": stack}
    found = benchmark.pedantic(moved, (network,), given, rounds=1)
    least = BLOCK * floor(*NETWORKS[network])
    benchmark.extra_info["counts"] = {
        "folds": BLOCK,
        "bytes": found.total(),
        "floor_bytes": least,
        "over_floor": round(found.total() / least, 3),
    }


@pytest.mark.parametrize("layers", [3, 5, 9, 24])
def test_a_minibatch_of_natural_gradient(benchmark, layers):
    gradient, first, later = benchmark.pedantic(launches_of_natural_steps, (layers,), rounds=1)
    benchmark.extra_info["counts"] = {
        "gradient": gradient,
        "added_first_after_update": first,
        "added": later,
    }
