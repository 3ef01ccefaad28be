"""A run that did not end takes along what rests on it, and nothing else.

What rests on a setting is found out by giving that setting's runs other readings: what changes
then must be missing when they diverge, and what does not change must stay as it was. All are made
while no run can be executed: judging reads finished runs and computes nothing that a run could.
"""

from functools import cache
from typing import Any

import pytest

from harness.judge import statistics
from harness.judge.builders import Maker
from harness.judge.claims import all_of
from harness.judge.results import Claim
from harness.judge.statistics import Array
from harness.networks.feedforward import Dnn
from harness.simulator.collectives import AllReduce
from harness.simulator.simulation import Simulation
from harness.store import Store
from reproductions.paper import Paper
from reproductions.paper3_async_mmi.quantities import Sweep
from tests.reproductions.book import SEEDS, Book, made, makers

interval_of = cache(statistics.interval_of)
MISFITS: dict[tuple[bytes, bytes, int], Array] = {}
misfit_of: Any = Sweep.misfit
WORK = ((Store, "begin"), (Simulation, "advance"), (AllReduce, "messages"), (Dnn, "logits"))
"""What no run can do without: a place in the store, simulated time, messages, a network."""


def refused(*arguments: object, **choices: object) -> None:
    raise AssertionError("a run was executed while judging")


@pytest.fixture(autouse=True)
def fits_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits and intervals of the same readings are found once: one setting's alone are others."""

    def misfit(sweep: Sweep) -> Array:
        key = sweep.intervals.tobytes(), sweep.gains.tobytes(), len(sweep.gains)
        if key not in MISFITS:
            MISFITS[key] = misfit_of.fget(sweep)
        return MISFITS[key]

    monkeypatch.setattr(statistics, "interval_of", interval_of)
    monkeypatch.setattr(Sweep, "misfit", property(misfit))
    for owner, name in WORK:
        monkeypatch.setattr(owner, name, refused)


def known(result: Any) -> dict[tuple[str, Any], tuple[Any, Any]]:
    """What was measured, but for a setting over itself, which is 1 whatever its runs say."""
    itself = (1.0, (1.0, 1.0))
    return {k: cell for k, cell in cells(result).items() if cell[0] is not None and cell != itself}


def cells(result: Any) -> dict[tuple[str, Any], tuple[Any, Any]]:
    """Values and intervals, by label and column."""
    if hasattr(result, "rows"):
        return {(r.label, r.column): (r.measured, r.ci95) for r in result.rows}
    if not result.parts:
        return {("", ""): (result.measured, result.ci95)}
    return {(p.label, ""): (p.measured, p.ci95) for p in result.parts}


def check_no_verdict_on_missing_parts(found: Claim) -> None:
    judged = [part for part in found.parts if part.here is not None] or [found]
    joint = all_of(part.here for part in judged)
    assert found.here == joint or (joint, found.here) == ("fails", "unclear"), "only Holm's loss"
    assert found.here != "holds" or all(part.measured is not None for part in judged)
    assert all(part.here == "unclear" for part in judged if part.measured is None)
    assert all(part.label in found.note for part in found.parts if part.measured is None)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("paper", "maker"), [pytest.param(*each, id=each[1].id) for each in makers()]
)
def test_what_rests_on_a_run_that_did_not_end_is_missing_and_all_else_stays(
    paper: Paper, maker: Maker[Any, Any], book: Book
) -> None:
    runs = {name: book.group(name) for name in maker.needs}
    result = made(maker, paper, runs)
    assert result.id == maker.id
    whole = known(result)
    for setting in maker.needs:
        lost = book.lost(setting, maker)
        found = made(maker, paper, {**runs, setting: lost})
        assert lost[-1].ending(f"{setting}, seed {SEEDS - 1}") in found.note
        if maker in paper.claims:
            check_no_verdict_on_missing_parts(found)
        measured = known(found)
        if len(maker.needs) == 1:
            assert not measured
            continue
        # worse, better and other ones: a rank among others may stay for any of them
        others = [
            known(made(maker, paper, {**runs, setting: book.others(setting, maker, how)}))
            for how in ("changed", "changed-again", "redrawn")
        ]
        assert measured == {
            key: cell
            for key, cell in whole.items()
            if all(other.get(key) == cell for other in others)
        }
