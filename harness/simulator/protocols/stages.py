"""What follows from the end of a copy: computing what was fetched, folding what was handed in."""

from __future__ import annotations

from harness.simulator.costs import Costs
from harness.simulator.events import append
from harness.simulator.jit import kernel
from harness.simulator.protocols.slots import (
    AT_SERVER,
    COMPUTED,
    FETCHED,
    PUSHED,
    Rules,
    State,
    plan,
)

__all__ = ["compute", "fetched", "handed_in", "serve"]


@kernel
def fetched(state: State, rules: Rules, place: int, arrival_s: float, stage_s: float) -> None:
    """The parameters arrive at a worker, which then copies them for so long and computes.

    They arrive in the order in which this becomes known. Where a worker may begin without a
    fetch, in between, the arrival is an event of its own.
    """
    if rules.fetch_every == 1 and rules.shards == 1:
        compute(state, place, arrival_s + stage_s)
    else:
        plan(state, place, arrival_s, FETCHED)


@kernel
def compute(state: State, place: int, start_s: float) -> None:
    """Compute the gradient from an instant on."""
    slot = state.slots[place]
    slot.fetch_end_s = start_s
    slot.compute_end_s = start_s + slot.compute_s
    plan(state, place, slot.compute_end_s, COMPUTED)


@kernel
def handed_in(state: State, costs: Costs, rules: Rules, place: int, arrival_s: float) -> None:
    """A contribution arrives over links that others share, on which it cannot be overtaken."""
    certain = len(costs.faults.kind) == 0 and costs.faults.probability == 0.0
    if certain and rules.shards == 1:
        serve(state, place, arrival_s)
    else:
        plan(state, place, arrival_s, PUSHED)


@kernel
def serve(state: State, place: int, arrival_s: float) -> None:
    """A contribution queues at the one server, and it is known when it is folded."""
    clock, slot = state.clock[0], state.slots[place]
    slot.phase = AT_SERVER
    slot.push_end_s = arrival_s
    slot.fold_start_s = max(arrival_s, clock.server_free_s)
    slot.fold_end_s = slot.fold_start_s + slot.fold_s
    clock.server_free_s = slot.fold_end_s
    append(state.folds, slot.fold_end_s, place)
