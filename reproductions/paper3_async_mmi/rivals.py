"""What two algorithms for stale gradients bear, beside the law of stability.

Beyond the paper. Staleness-aware rates (Zhang et al., arXiv 1511.05950) divide a gradient's rate by
its staleness, and delay compensation (Zheng et al., arXiv 1609.08326) corrects it to first order.
Both know how stale an inner gradient is, that is how many updates the model has had since its
replica read it, and not the age of the outer gradient in it. All of it is development data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.law import LARGE, Measured
from reproductions.paper3_async_mmi.presets import (
    ALIKE,
    ASKED,
    HELD_OUT,
    RIVALS,
    STRENGTH,
    STRENGTHENED,
    STRENGTHENED_BY,
)
from reproductions.readings import hashes

AWARE, COMPENSATED = RIVALS
PLAIN = "plain (10⁻⁴)"


def rivals(subject: Subject, runs: Runs) -> Exhibit:
    """Largest stable rates of plain asynchronous SGD and of both, cell by cell."""
    del subject
    rows: list[Row] = []
    for cell in ASKED:
        kind = "held out" if cell in HELD_OUT else "fitted"
        label = f"{cell.name.removeprefix('law ')} ({kind})"
        plain = Measured.of(runs[cell.name]).rate
        rows.append(_row(label, PLAIN, LARGE * plain, runs, cell.name))
        for name in RIVALS:
            setting = cell.rival(name)
            found = Measured.of(runs[setting]).rate
            alike = found / (cell.replicas - 1) if name == AWARE else found
            rows.append(_row(label, f"{name} (10⁻⁴)", LARGE * found, runs, setting))
            column = f"{name}, over plain"
            rows.append(_row(label, column, alike / plain, runs, setting, cell.name))
    plainly = _spread(runs, [cell.name for cell in ALIKE])
    aware, compensated = (_spread(runs, [cell.rival(n) for cell in ALIKE]) for n in RIVALS)
    counts = ", ".join(str(cell.replicas) for cell in ALIKE)
    return Exhibit(
        "p3.law-rivals", "table", "Largest stable rates with algorithms for stale gradients",
        tuple(rows), paper_label="Beyond the paper",
        note=f"Middles of brackets. From one to another of {counts} replicas, all else alike, "
        f"plain SGD's largest rate varies by {plainly}, that of staleness-aware rates by {aware} "
        f"(by 1 if the division made up for replicas), of delay compensation by {compensated}. "
        "Over plain, staleness-aware rates are divided by the number of other replicas. When a "
        "pass ends, replicas run out of utterances: fresh gradients have undivided rates. Delay "
        f"compensation has λ = {STRENGTH:g}; {_strengths(runs)}. One development seed.",
    )  # fmt: skip


def _strengths(runs: Runs) -> str:
    """What each λ bears in the cell where they are compared."""
    found: list[str] = []
    for strength, setting in STRENGTHENED_BY.items():
        rate = LARGE * Measured.of(runs[setting]).rate
        told = f"{rate:.3g} · 10⁻⁴" if math.isfinite(rate) else "not between the ends"
        found.append(f"λ {strength:g} {told}")
    return f"with {STRENGTHENED.replicas} replicas {', '.join(found)}"


def _spread(runs: Runs, settings: Sequence[str]) -> str:
    """The largest of some rates over the smallest, in words."""
    rates = [Measured.of(runs[setting]).rate for setting in settings]
    over = max(rates) / min(rates) if all(map(math.isfinite, rates)) else math.nan
    return f"a factor of {over:.2g}" if math.isfinite(over) else "an unknown factor"


def _row(label: str, column: str, value: float, runs: Runs, *settings: str) -> Row:
    """A number, and the searches behind it."""
    behind = tuple(hash_ for setting in settings for hash_ in hashes(runs[setting]))
    return Row(label, column, None, value, None, behind)


BARE = tuple(cell.name for cell in ASKED)
RIVALLED = tuple(cell.rival(name) for cell in ASKED for name in RIVALS)
NEEDS = (*BARE, *RIVALLED, *STRENGTHENED_BY.values())
BESIDE = Maker("p3.law-rivals", NEEDS, rivals, smoke=False)
