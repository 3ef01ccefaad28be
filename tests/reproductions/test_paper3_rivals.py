"""Staleness-aware rates and delay compensation beside the law, on searches made by hand."""

import math
from pathlib import Path
from typing import Any

import pytest

from harness.algorithms.stale import DelayCompensated, StalenessAware
from harness.store import Run, Store
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import (
    ALIKE,
    ASKED,
    FITTED,
    HELD_OUT,
    STRENGTH,
    STRENGTHENED,
    cells,
)
from reproductions.paper3_async_mmi.experiments import rivals as asked_for
from reproductions.paper3_async_mmi.law import AWARE, BESIDE, COMPENSATED, rivals
from tests.stand_in import stand_in

SUBJECT = Subject("overnight", stand_in("voice-search-small"), 11, "cpu")
PLAIN = 4e-4


def searches(folder: Path, **rates: float) -> dict[str, list[Run]]:
    """A search for each setting, whose bracket has the rate of its kind in the middle."""
    store, found = Store(folder), dict[str, list[Run]]()
    for number, setting in enumerate(BESIDE.needs):
        kind = next((name for name in rates if setting.endswith(name)), "")
        rate = rates.get(kind, PLAIN)
        with store.begin({"number": number, "training": {"slots": 4}}) as writer:
            ends = {"stable": rate / 1.1, "diverged": rate * 1.1} if rate else {}
            writer.finish("done", {**ends, "outer_staleness_mean": 700.0})
        found[setting] = [store.load(writer.hash)]
    return found


def test_rivals_are_asked_in_cells_held_out_and_in_some_that_differ_in_replicas_alone():
    found, plain = asked_for(SUBJECT), cells(SUBJECT)
    assert set(BESIDE.needs) == set(found) | {cell.name for cell in ASKED}
    assert set(HELD_OUT) <= set(ASKED) <= set(HELD_OUT) | set(FITTED)
    assert len({(cell.slots, cell.cancel_below) for cell in ALIKE}) == 1
    for cell in ASKED:
        bare, aware = plain[cell.name], found[cell.rival(AWARE)]
        assert aware.training.algorithm == StalenessAware()
        assert found[cell.rival(COMPENSATED)].training.algorithm == DelayCompensated(STRENGTH, 256)
        most = bare.highest * (cell.replicas - 1)
        assert aware.lowest == pytest.approx(most / 256, rel=1e-3)
        assert aware.highest == pytest.approx(most, rel=1e-3)
        widths = [(c.highest / c.lowest) ** 0.5**c.halvings for c in (aware, bare)]
        assert widths[0] == pytest.approx(widths[1], rel=1e-3)
    assert STRENGTHENED not in HELD_OUT


def test_the_table_has_each_rate_and_what_it_is_of_plain_ones(tmp_path):
    given: dict[str, Any] = {AWARE: 24 * PLAIN, COMPENSATED: 1.5 * PLAIN, "λ 100": 3 * PLAIN}
    given |= {f"law 50 replicas, slots × 1, τ 0.002, {AWARE}": 72 * PLAIN}
    found = rivals(SUBJECT, searches(tmp_path, **dict(reversed(given.items()))))
    told = {(row.label.split(" (")[0], row.column): row.measured for row in found.rows}
    for cell in ASKED:
        label, alike = cell.name.removeprefix("law "), cell == STRENGTHENED
        assert told[label, "plain (10⁻⁴)"] == pytest.approx(4.0)
        assert told[label, f"{COMPENSATED}, over plain"] == pytest.approx(1.5)
        over = told[label, f"{AWARE}, over plain"]
        assert over == pytest.approx((72 if alike else 24) / (cell.replicas - 1))
    assert "with 50 replicas λ 1 4 · 10⁻⁴, λ 100 12 · 10⁻⁴, λ 10000 4 · 10⁻⁴." in found.note
    assert "rate varies by a factor of 1, that of staleness-aware rates by a factor of 3 " in (
        found.note
    )


def test_a_search_without_both_ends_leaves_a_gap_and_nothing_else(tmp_path):
    found = rivals(SUBJECT, searches(tmp_path, **{"λ 1": 0.0, AWARE: 0.0}))
    told = {(row.label, row.column): row.measured for row in found.rows}
    gaps = [column for (_, column), value in told.items() if value is None or math.isnan(value)]
    assert gaps.count(f"{AWARE} (10⁻⁴)") == len(ASKED)
    assert len(gaps) == 2 * len(ASKED)
    assert "λ 1 not between the ends, λ 100 4 · 10⁻⁴" in found.note
    assert "staleness-aware rates by an unknown factor" in found.note
