"""A fold and its average as one operation: PyTorch's own, and the kernel that a GPU would run.

The kernel runs in Triton's interpreter, on numbers all of whose sums and products are exact, so
that neither fused multiplications nor their absence change a bit; and it is compiled for Hopper.
"""

from __future__ import annotations

import re

import pytest
import torch

from harness.algorithms import folding

SIZES = (5, folding.TILE, 3 * folding.TILE - 1)
NEAR, FAR = 0.25, 0.75
"""Weights on both sides of where ``lerp`` changes its formula."""


def operands(size, folded, weight):
    """Small whole numbers, ``(before, contributions, numbers, model, average)``."""
    draw = torch.Generator().manual_seed(size)
    before, average = (torch.randint(-8, 9, (size,), generator=draw).float() for _ in range(2))
    contributions = torch.randint(-8, 9, (folded, size), generator=draw).float()
    numbers = torch.tensor([0.25, weight])
    return before, contributions, numbers, torch.full((size,), 99.0), average


@pytest.mark.parametrize("weight", [NEAR, FAR])
@pytest.mark.parametrize("folded", [1, 3])
def test_the_operation_steps_along_each_gradient_and_then_draws_the_average(folded, weight):
    before, contributions, numbers, model, average = operands(40, folded, weight)
    expected = before - 0.25 * contributions.sum(0)
    drawn = average + weight * (expected - average)
    folding.step_and_draw(before, contributions, numbers, model, average)
    assert torch.equal(model, expected)
    assert torch.equal(average, drawn)


def test_the_model_may_be_folded_into_itself():
    apart, within = operands(40, 2, NEAR), operands(40, 2, NEAR)
    folding.step_and_draw(*apart)
    before, contributions, numbers, _, average = within
    folding.step_and_draw(before, contributions, numbers, before, average)
    assert torch.equal(before, apart[3])
    assert torch.equal(average, apart[4])


def test_torch_is_told_what_the_operation_changes():
    given = operands(40, 2, NEAR)
    before = [each.clone() for each in given]
    folding.step_and_draw(*given)
    changed = [not torch.equal(now, then) for now, then in zip(given, before, strict=True)]
    declared = torch.ops.lagbench.step_and_draw.default._schema.arguments
    assert changed == [each.is_write for each in declared]


@pytest.fixture
def interpreted(monkeypatch):
    interpreter = pytest.importorskip(
        "triton.runtime.interpreter", reason="Triton is not installed (dependency group triton)"
    )
    monkeypatch.setattr(folding, "sweep", interpreter.InterpretedFunction(folding.sweep.fn))
    folding.can_start.cache_clear()
    yield folding.step_and_draw_triton
    folding.can_start.cache_clear()


@pytest.mark.parametrize("weight", [NEAR, FAR])
@pytest.mark.parametrize("folded", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_has_the_bits_of_the_operation(interpreted, size, folded, weight):
    ours, theirs = operands(size, folded, weight), operands(size, folded, weight)
    interpreted(*ours)
    folding.step_and_draw(*theirs)
    assert torch.equal(ours[3], theirs[3])
    assert torch.equal(ours[4], theirs[4])


def test_the_kernel_folds_a_model_into_itself(interpreted):
    ours, theirs = operands(40, 2, FAR), operands(40, 2, FAR)
    before, contributions, numbers, _, average = ours
    interpreted(before, contributions, numbers, before, average)
    folding.step_and_draw(*theirs)
    assert torch.equal(before, theirs[3])
    assert torch.equal(average, theirs[4])


def test_where_no_kernel_can_be_started_folds_do_without(monkeypatch, capsys):
    pytest.importorskip("triton", reason="Triton is not installed (dependency group triton)")

    class Nowhere:
        def __getitem__(self, programs):
            raise RuntimeError("Failed to find C compiler.\nand what else Triton says")

    monkeypatch.setattr(folding, "sweep", Nowhere())
    folding.can_start.cache_clear()
    ours, theirs = operands(40, 2, NEAR), operands(40, 2, NEAR)
    for _ in range(2):
        folding.step_and_draw_triton(*ours)
        folding.step_and_draw(*theirs)
    folding.can_start.cache_clear()
    assert torch.equal(ours[3], theirs[3])
    assert torch.equal(ours[4], theirs[4])
    said = "no kernel of Triton's, but two operations a fold: Failed to find C compiler.\n"
    assert capsys.readouterr().err == said


def test_the_kernel_compiles_for_a_hopper_and_rounds_each_product_with_its_sum():
    compiler = pytest.importorskip(
        "triton.compiler", reason="Triton is not installed (dependency group triton)"
    )
    backends = pytest.importorskip("triton.backends.compiler")
    vectors = dict.fromkeys(("before", "contributions", "numbers", "model", "average"), "*fp32")
    kinds = {**vectors, "P": "i32", "W": "constexpr", "TILE": "constexpr"}
    source = compiler.ASTSource(folding.sweep, kinds, {"W": 1, "TILE": folding.TILE})
    made = compiler.compile(source, target=backends.GPUTarget("cuda", 90, 32)).asm
    assert len(made["cubin"]) > 0
    assert re.search(r"fma\.rn\.f32", made["ptx"])
    assert not re.search(r"mul(\.rn)?\.f32", made["ptx"])
