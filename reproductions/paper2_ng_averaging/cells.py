"""The cells that the law of averages is fitted to: shares of the data, few and many workers.

The same passes over less data are fewer averages. What the law is checked on is not among the
cells: the whole of a scale's data (``ng_8``, ``ng_16``, ``ng_32``, ``ng_64``, ``bmuf``, ``outer``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from harness.algorithms.averaging import BlockMomentum, Mean, ModelAveraging, OuterNesterov
from harness.speech.frames import RunConfig

SHARES = {"eighth": 0.125, "quarter": 0.25, "half": 0.5}
SIZES = ("few", "many")
"""The two numbers of workers of a preset's cells."""
STEPS = {"mean": Mean(), "bmuf": BlockMomentum(), "outer": OuterNesterov()}
SERIAL = "serial"
SEARCHED_ON = "quarter"


def cell(step: str, size: str, share: str) -> str:
    """What a cell is called."""
    return "_".join((step, size, share))


def serial(share: str) -> str:
    """What one worker on a share of the data is called."""
    return f"{SERIAL}_{share}"


def cells(one: RunConfig, workers: tuple[int, int]) -> dict[str, RunConfig]:
    """Every cell, and one worker on its data.

    Args:
        one: one worker on the whole data.
        workers: few, and many.
    """
    assert isinstance(one.algorithm, ModelAveraging)
    (stage,), found = one.stages, dict[str, RunConfig]()
    for share, part in SHARES.items():
        alone = replace(one, stages=(replace(stage, share=part * stage.share),))
        found[serial(share)] = alone
        for (step, outer), (size, n) in product(STEPS.items(), zip(SIZES, workers, strict=True)):
            averaged = replace(one.algorithm, outer=outer)
            found[cell(step, size, share)] = replace(alone, workers=n, algorithm=averaged)
    return found


def rate_of(name: str) -> str:
    """Whose rate a setting has: a cell's was searched for on a quarter of the data."""
    before, _, share = name.rpartition("_")
    return f"{before}_{SEARCHED_ON}" if share in SHARES else name


SEARCHED_CELLS = (
    serial(SEARCHED_ON),
    *(cell(step, size, SEARCHED_ON) for step in STEPS for size in SIZES),
)
"""The cells whose rates were searched for."""
