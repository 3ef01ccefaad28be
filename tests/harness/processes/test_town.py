"""Simulated processes in one thread are as separate as real ones."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.harness.processes.schedules import play
from tests.harness.processes.town import Place, Town, in_process


def town_of_two(seen: list[bool], sleeps_s: float) -> None:
    """One process sleeps without gradients, the other looks and then asks for them."""
    town = Town(lambda pipe, words: [words], lambda: 0.01)
    one, other = Place(town, "one"), Place(town, "other")

    def without() -> None:
        with torch.no_grad():
            one.sleep(sleeps_s)
            seen.append(torch.is_grad_enabled())

    def beside() -> None:
        other.sleep(0.5)
        seen.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)
        other.sleep(1.0)

    in_process(one, without)
    in_process(other, beside)
    town.run(10.0, lambda: not (one.alive or other.alive))


def test_each_process_keeps_its_own_grad_mode() -> None:
    seen: list[bool] = []
    town_of_two(seen, 1.0)
    assert seen == [True, False]


@pytest.mark.parametrize("mode", [True, False])
def test_one_that_never_leaves_its_mode_changes_nobody_elses(mode: bool) -> None:
    with torch.set_grad_enabled(mode):
        town_of_two([], 100.0)
        assert torch.is_grad_enabled() == mode
        gc.collect()  # now it leaves
        assert torch.is_grad_enabled() == mode


@pytest.mark.parametrize("mode", [True, False])
def test_a_schedule_leaves_the_grad_mode_as_it_was(mode: bool) -> None:
    with torch.set_grad_enabled(mode):
        play("rounds", 1000)  # a process is killed without gradients
        gc.collect()
        assert torch.is_grad_enabled() == mode
