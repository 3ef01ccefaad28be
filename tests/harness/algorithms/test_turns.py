"""Folds in a row, block by block, against the same folds one by one: the same bytes."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.contract import Server, Turn, Turns, fold_one_by_one, fold_turns, rows
from harness.algorithms.folding import BLOCK, THREADS, is_fit_for_blocks
from harness.networks.feedforward import denormals_flushed

SLOTS, RATE = 5, 0.3
ORDER = [
    Turn([2], [0], [2]),
    Turn([0, 3, 1], [1, 0, 4], []),
    Turn([4], [2], [0, 1, 4]),
]
"""One contribution a fold and several, nobody who reads and many, a slot that nobody reads."""


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def executed(how, algorithm, size, dtype=torch.float32, scale=1.0, switched=False, shared=False):
    """Server and rows after two rounds of ``ORDER``, executed by ``how``."""
    server = algorithm.start(draw(size, dtype=dtype) * scale)
    if switched:
        algorithm.consider(server, {"iterate": 0.4, "average": 0.3})
    contributions = draw(SLOTS, size, dtype=dtype, seed=1) * scale
    replicas = contributions if shared else draw(SLOTS, size, dtype=dtype, seed=2)
    for _ in range(2):
        how(algorithm, server, Turns(contributions, replicas, ORDER), RATE)
    return server, replicas


def must_equal(one: tuple[Server, torch.Tensor], other: tuple[Server, torch.Tensor]) -> None:
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[0].model, other[0].model)
    assert one[0].version == other[0].version == 2 * len(ORDER)
    assert one[0].numbers == other[0].numbers
    for name, vector in one[0].vectors.items():
        assert torch.equal(vector, other[0].vectors[name])


@pytest.fixture(autouse=True)
def few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 7, BLOCK, 3 * BLOCK + 37])
@pytest.mark.parametrize("algorithm", [AsyncSgd(), AveragedSgd(), AveragedSgd(eta=0.7)])
def test_folds_by_block_give_the_bytes_of_folds_one_by_one(algorithm, size, dtype, shared):
    blocks, single = (
        executed(how, algorithm, size, dtype, shared=shared)
        for how in (fold_turns, fold_one_by_one)
    )
    must_equal(blocks, single)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT" or "NUMBA_CPU_NAME" in os.environ,
    reason="torch or numba is told to do without fused multiplications",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_folds_go_by_block_where_torch_fuses_as_the_kernel_does(dtype):
    assert is_fit_for_blocks(draw(7, dtype=dtype))


def test_where_torch_rounds_otherwise_folds_are_torchs_own(monkeypatch):
    monkeypatch.setattr("harness.algorithms.folding._rounds_as_torch", lambda _: False)
    assert not is_fit_for_blocks(draw(7))
    must_equal(*(executed(how, AveragedSgd(), 999) for how in (fold_turns, fold_one_by_one)))


def test_the_full_average_begins_with_weights_of_a_half_and_keeps_count():
    # From a half on, torch interpolates from the other end, which rounds differently.
    blocks, single = (
        executed(how, AveragedSgd(), 999, switched=True) for how in (fold_turns, fold_one_by_one)
    )
    must_equal(blocks, single)
    assert blocks[0].numbers["averaged"] == 1 + 2 * len(ORDER)


@pytest.mark.parametrize("flushed", [True, False])
def test_denormals_are_flushed_or_kept_as_torch_does(flushed):
    with denormals_flushed() if flushed else nullcontext():
        blocks, single = (
            executed(how, AveragedSgd(), 999, scale=3e-38) for how in (fold_turns, fold_one_by_one)
        )
    must_equal(blocks, single)
    size = single[0].vectors["average"].abs()
    assert ((size > 0) & (size < torch.finfo(torch.float32).tiny)).any() != flushed


@pytest.mark.parametrize(
    "algorithm", [AveragedSgd(AsyncSgd("memory_of_one")), AsyncSgd("memory_of_one")]
)
def test_scaled_steps_are_taken_one_by_one(algorithm):
    must_equal(*(executed(how, algorithm, 300) for how in (fold_turns, fold_one_by_one)))


def test_an_algorithm_that_only_folds_is_folded_turn_by_turn():
    server = ModelAveraging().start(torch.zeros(3))
    contributions, replicas = draw(SLOTS, 3), torch.zeros(SLOTS, 3)
    order = [Turn([0, 1], [0, 0], [0]), Turn([3, 2], [0, 0], [1, 2])]
    fold_turns(ModelAveraging(), server, Turns(contributions, replicas, order), RATE)
    assert torch.equal(replicas[0], contributions[:2].mean(0))
    assert torch.equal(replicas[1], contributions[2:4].mean(0))
    assert torch.equal(replicas[2], server.model)
    assert server.version == 2


def test_with_many_threads_torch_goes_over_the_model_itself():
    torch.set_num_threads(THREADS + 1)
    assert not is_fit_for_blocks(torch.zeros(3))


def test_rows_that_lie_together_are_seen_and_others_copied():
    stack = draw(SLOTS, 4)
    assert rows(stack, [1, 2, 3]).data_ptr() == stack[1].data_ptr()
    assert torch.equal(rows(stack, [3, 1]), torch.stack([stack[3], stack[1]]))


def test_rows_come_in_the_order_of_their_slots_though_they_fill_a_stretch():
    stack = torch.arange(5.0).unsqueeze(1)
    assert rows(stack, [1, 3, 2, 4])[:, 0].tolist() == [1.0, 3.0, 2.0, 4.0]
    assert rows(stack, [3, 2])[:, 0].tolist() == [3.0, 2.0]
