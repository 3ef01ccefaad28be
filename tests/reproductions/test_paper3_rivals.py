"""Staleness-scaled and delay-compensated SGD beside the law, on searches made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.algorithms.delay_compensation import DelayCompensated
from harness.algorithms.staleness_aware import StalenessAware
from harness.store import Run, Store
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import cells
from reproductions.paper3_async_mmi.experiments import rivals as asked_for
from reproductions.paper3_async_mmi.presets import HELD_OUT, STRENGTH, STRENGTHENED, STRENGTHS
from reproductions.paper3_async_mmi.rivals import COMPENSATED, RIVALLED, SCALED, rivals
from tests.golden.record import stand_in

SUBJECT = Subject("overnight", stand_in("voice-search-small"), 11, "cpu")
PLAIN = 4e-4


def searches(folder: Path, **rates: float) -> dict[str, list[Run]]:
    """A search for each setting, whose bracket has the rate of its kind in the middle."""
    store, found = Store(folder), dict[str, list[Run]]()
    for number, setting in enumerate(RIVALLED.needs):
        kind = next((name for name in rates if setting.endswith(name)), "")
        rate = rates.get(kind, PLAIN)
        with store.begin({"number": number, "training": {"slots": 4}}) as writer:
            ends = {"stable": rate / 1.1, "diverged": rate * 1.1} if rate else {}
            writer.finish("done", {**ends, "outer_staleness_mean": 700.0})
        found[setting] = [store.load(writer.hash)]
    return found


def test_rivals_are_asked_in_the_cells_that_are_held_out_and_strengths_in_one_of_the_fit():
    found, plain = asked_for(SUBJECT), cells(SUBJECT)
    assert set(RIVALLED.needs) == set(found) | {cell.name for cell in HELD_OUT}
    for cell in HELD_OUT:
        bare, scaled = plain[cell.name], found[cell.rival(SCALED)]
        assert scaled.training.algorithm == StalenessAware()
        assert found[cell.rival(COMPENSATED)].training.algorithm == DelayCompensated(STRENGTH, 256)
        assert scaled.lowest == pytest.approx(bare.lowest * (cell.replicas - 1), rel=1e-3)
        assert scaled.highest / scaled.lowest == pytest.approx(16.0, rel=1e-3)
    assert STRENGTHENED not in HELD_OUT
    assert STRENGTH in STRENGTHS


def test_the_table_has_each_rate_and_what_it_is_of_plain_ones(tmp_path):
    given: dict[str, Any] = {SCALED: 24 * PLAIN, COMPENSATED: 1.5 * PLAIN, "λ 100": 3 * PLAIN}
    found = rivals(SUBJECT, searches(tmp_path, **given))
    assert "SGD's rate varies by a factor of 1, that" in found.note
    told = {(row.label, row.column): row.measured for row in found.rows}
    for cell in HELD_OUT:
        label = cell.name.removeprefix("law ")
        assert told[label, "plain (10⁻⁴)"] == pytest.approx(4.0)
        assert told[label, f"{COMPENSATED}, against plain"] == pytest.approx(1.5)
        over = told[label, f"{SCALED}, against plain"]
        assert over == pytest.approx(24 / (cell.replicas - 1))
    assert told["50 replicas, slots × 1, τ 0.002, λ 100", f"{COMPENSATED} (10⁻⁴)"] == (
        pytest.approx(12.0)
    )


def test_a_search_without_both_ends_leaves_a_gap_and_nothing_else(tmp_path):
    found = rivals(SUBJECT, searches(tmp_path, **{"λ 1": 0.0, SCALED: 0.0}))
    told = {(row.label, row.column): row.measured for row in found.rows}
    gaps = [column for (_, column), value in told.items() if value is None or math.isnan(value)]
    assert gaps.count(f"{SCALED} (10⁻⁴)") == len(HELD_OUT)
    assert gaps.count(f"{COMPENSATED} (10⁻⁴)") == 1
    assert len(gaps) == 2 * len(HELD_OUT) + 1
    assert "staleness-scaled SGD by an unknown factor" in found.note
