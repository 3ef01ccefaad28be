"""What two algorithms for stale gradients bear in the cells the law is held against.

Beyond the paper. Staleness-scaled SGD (Zhang et al., arXiv 1511.05950) divides a gradient's rate by
its staleness, and delay compensation (Zheng et al., arXiv 1609.08326) corrects it to first order.
Both know how stale an inner gradient is, that is what the model has missed since its replica read
it, and not the age of the outer gradient in it. All of it is development data.
"""

from __future__ import annotations

import math

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.law import LARGE, Measured
from reproductions.paper3_async_mmi.presets import (
    HELD_OUT,
    RIVALS,
    STRENGTH,
    STRENGTHENED,
    STRENGTHS,
)
from reproductions.readings import hashes

SCALED, COMPENSATED = RIVALS


def rivals(subject: Subject, runs: Runs) -> Exhibit:
    """Largest stable rates of plain asynchronous SGD and of both, cell by cell."""
    del subject
    rows: list[Row] = []
    largest: dict[str, list[float]] = {"": [], **{name: [] for name in RIVALS}}
    for cell in HELD_OUT:
        label, plain = cell.name.removeprefix("law "), Measured.of(runs[cell.name]).rate
        largest[""].append(plain)
        rows.append(_row(label, "plain (10⁻⁴)", LARGE * plain, runs, cell.name))
        for name in RIVALS:
            setting = cell.rival(name)
            found = Measured.of(runs[setting]).rate
            largest[name].append(found)
            over = found / plain / (cell.replicas - 1 if name == SCALED else 1)
            rows.append(_row(label, f"{name} (10⁻⁴)", LARGE * found, runs, setting))
            rows.append(_row(label, f"{name}, against plain", over, runs, setting, cell.name))
    within = STRENGTHENED.name.removeprefix("law ")
    for strength in STRENGTHS:
        setting = STRENGTHENED.rival(f"λ {strength:g}")
        found = LARGE * Measured.of(runs[setting]).rate
        label = f"{within}, λ {strength:g}"
        rows.append(_row(label, f"{COMPENSATED} (10⁻⁴)", found, runs, setting))
    one, other = (_spread(largest[name]) for name in ("", SCALED))
    return Exhibit(
        "p3.law-rivals", "table", "Largest stable rates with algorithms for stale gradients",
        tuple(rows), paper_label="Beyond the paper",
        note=f"Middles of brackets. From cell to cell plain SGD's rate varies by {one}, "
        f"that of staleness-scaled SGD by {other}: it divides by the staleness of "
        "the inner gradient. Against plain: after that division, by the number of other replicas. "
        f"λ = {STRENGTH:g} of the delay compensation was chosen in a cell of the fit, shown below "
        "the others. One development seed.",
    )  # fmt: skip


def _spread(rates: list[float]) -> str:
    """The largest over the smallest, in words."""
    over = max(rates) / min(rates) if all(map(math.isfinite, rates)) else math.nan
    return f"a factor of {over:.2g}" if math.isfinite(over) else "an unknown factor"


def _row(label: str, column: str, value: float, runs: Runs, *settings: str) -> Row:
    """A number, and the searches behind it."""
    behind = tuple(hash_ for setting in settings for hash_ in hashes(runs[setting]))
    return Row(label, column, None, value, None, behind)


HELD = tuple(cell.name for cell in HELD_OUT)
ASKED = tuple(cell.rival(name) for cell in HELD_OUT for name in RIVALS)
STRONG = tuple(STRENGTHENED.rival(f"λ {strength:g}") for strength in STRENGTHS)
RIVALLED = Maker("p3.law-rivals", (*HELD, *ASKED, *STRONG), rivals, smoke=False)
