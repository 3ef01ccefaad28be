"""The machines that a paper's printed timings allow, and what they say of a claim on timing.

Of the machines of a scan (`reproductions.machine_scan`), those within the band of every printed
timing are allowed. A claim on timing is judged over them: its interval is their range, so that it
holds where all of them say so, fails where none does, and is unclear where the figures that the
paper does not print decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from harness.judge.claims import Rule
from harness.judge.interval import Interval
from harness.judge.parts import Quantity
from harness.judge.results import Row
from harness.store import Run


def is_allowed(run: Run, *without: str) -> NDArray[np.bool_]:
    """[M] whether each machine of a scan agrees with every printed timing, but for some of them."""
    bands = [(band, run.curve(band["name"])[1]) for band in run.config["plan"]["printed"]]
    agreed = [(b["name"] in without) | ((b["low"] <= x) & (x <= b["high"])) for b, x in bands]
    every: NDArray[np.bool_] = np.logical_and.reduce(agreed)
    return every


def judge_machines(
    run: Run, name: str, paper: float | str, rule: Rule, *without: str, measure: str = ""
) -> Iterator[Quantity | str]:
    """A claim's quantity over the allowed machines, median and range, and the share in its band.

    Args:
        run: the scan.
        name: of the machines' figure.
        paper: the paper's figure.
        rule: the claim's band.
        without: printed timings that a machine need not agree with, the judged one among them.
        measure: see `Quantity`.
    """
    values = run.curve(name)[1][is_allowed(run, *without)]
    if not len(values):
        yield Quantity(name, paper, Interval(np.nan), rule, measure=measure)
        yield f"No machine of {run.config['count']:,} agrees with the other printed timings."
        return
    over = Interval(float(np.median(values)), float(values.min()), float(values.max()))
    yield Quantity(name, paper, over, rule, measure=measure)
    inside = int(sum(rule.holds(value) for value in values.tolist()))
    yield f"{name}: in the band on {inside:,} of {len(values):,} allowed machines."


def machine_rows(
    run: Run, x: str, y: str, label: Callable[[Mapping[str, float]], str], *without: str
) -> Iterator[Row]:
    """A row for each allowed machine, one figure over another; none where its label is empty."""
    names = dict.fromkeys([x, y, *_names(run, "unprinted", "key"), *_names(run, "printed", "name")])
    columns = [run.curve(name)[1][is_allowed(run, *without)].tolist() for name in names]
    machines = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    for machine in sorted(machines, key=label):
        if text := label(machine):
            yield Row(text, machine[x], None, machine[y], None, (run.hash,))


def _names(run: Run, table: str, key: str) -> list[str]:
    return [entry[key] for entry in run.config["plan"][table]]


def describe_allowed(run: Run, *without: str) -> str:
    """Sentence: how many machines are allowed, and the middle nine tenths of each figure."""
    allowed = is_allowed(run, *without)
    asked = ", ".join(name for name in _names(run, "printed", "name") if name not in without)
    count = f"{int(allowed.sum()):,} of {len(allowed):,} machines agree with {asked}"
    ranges: list[str] = []
    for key in _names(run, "unprinted", "key") if allowed.any() else ():
        low, high = np.quantile(run.curve(key)[1][allowed], [0.05, 0.95]).tolist()
        ranges.append(f"{key.partition('.')[2]} {low:.3g} to {high:.3g}")
    return f"{count}; nine in ten of them have {', '.join(ranges)}." if ranges else f"{count}."
