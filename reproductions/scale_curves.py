"""A claim's ratio over scale: what a paper declares of it, and the exhibit from its finished runs.

Sizes, seeds, laws and band stand in the paper's ``registered.toml`` (see
`reproductions.registered`); a paper declares the runs of one seed at one size, and how their
errors are read. ``curve_runs`` executes what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from harness.judge.curve import Curve, Trend
from harness.judge.results import Exhibit, Row
from harness.judge.scaling import LEAST_SEEDS, Size, follow
from harness.judge.statistics import ratio_ci
from reports.numbers import with_unit
from reproductions.paper import Finished, Scaling
from reproductions.run_metrics import hashes


def estimate_core_hours(scaling: Scaling, finished: Finished) -> float:
    """Hours of one core for what is missing, as registered."""
    minutes = sum(
        size.core_minutes
        for size in scaling.sizes
        for seed in size.seeds
        if (size.at, seed) not in finished
    )
    return minutes / 60.0


def missing_seeds(scaling: Scaling, finished: Finished) -> dict[str, int]:
    """Number of registered seeds that were not run or of which a run diverged, by size."""
    counts = {
        f"{size.at:g}": sum(not _has_ended(finished, size.at, seed) for seed in size.seeds)
        for size in scaling.sizes
    }
    return {size: count for size, count in counts.items() if count}


def _has_ended(finished: Finished, at: float, seed: int) -> bool:
    arms = finished.get((at, seed))
    return arms is not None and all(run.status == "done" for run in arms.values())


def build_curve(scaling: Scaling, finished: Finished) -> Exhibit:
    """The exhibit of a curve: its runs, both laws, and the value at the paper's size.

    A size counts once three of its seeds are finished; until all registered seeds are, the answer
    is ``unclear``.
    """
    entries, missing = scaling.entries, missing_seeds(scaling, finished)
    rows, trends = list[Row](), list[Trend]()
    for label, (over, under, paper) in scaling.ratios.items():
        sizes = list(_sizes(scaling, finished, label, over, under))
        for size in sizes:
            arms = [finished[size.at, seed] for seed in size.seeds]
            ratio = ratio_ci(*np.array(size.pairs).T)
            behind = hashes([group[over] for group in arms], [group[under] for group in arms])
            rows.append(Row.from_interval(label, size.at, None, ratio, behind))
        rows.append(Row(label, float(entries["paper"]), paper))
        trends.append(
            follow(label, sizes, (float(entries["paper"]), paper), scaling.band, not missing)
        )
    low, high = scaling.band.low, scaling.band.high
    curve = Curve(
        entries["claim"],
        entries["statistic"],
        entries["grows"],
        entries.get("unit", ""),
        float(entries["paper"]),
        (low if math.isfinite(low) else None, high if math.isfinite(high) else None),
        tuple(trends),
        missing,
        scaling.registration.digest,
    )
    return Exhibit(
        scaling.id,
        "figure",
        scaling.title,
        tuple(rows),
        axes={
            "x": f"{curve.grows} ({curve.unit})" if curve.unit else curve.grows,
            "y": curve.ratio,
        },
        draw={"as": "scaling"},
        paper_label="Beyond the paper",
        note=describe_progress(scaling, finished),
        curve=curve,
    )


def build_exhibits(scaling: Scaling, finished: Finished) -> list[Exhibit]:
    """The exhibit of a curve, and the further ones that its runs make; without laws, only these."""
    further = [make(finished) for make in scaling.further.values()]
    return [build_curve(scaling, finished), *further] if scaling.entries["laws"] else further


def exhibit_ids(scaling: Scaling) -> set[str]:
    """Ids of the exhibits that a curve's runs make."""
    return {scaling.id, *scaling.further}


def describe_progress(scaling: Scaling, finished: Finished) -> str:
    """Sentence on the registered seeds that are missing, by size; empty if none is."""
    missing = [
        f"{with_unit(size, scaling.entries.get('unit', ''))} ({count})"
        for size, count in missing_seeds(scaling, finished).items()
    ]
    text = f"Seeds that are not run, or diverged: {', '.join(missing)}. "
    return f"{text}Until all are, the value at the paper's size is unclear." if missing else ""


def _sizes(
    scaling: Scaling, finished: Finished, label: str, over: str, under: str
) -> Iterator[Size]:
    """The sizes with enough finished seeds, if all their runs ended."""
    for size in scaling.sizes:
        seeds = [seed for seed in size.seeds if (size.at, seed) in finished]
        groups = [finished[size.at, seed] for seed in seeds]
        if len(seeds) >= LEAST_SEEDS and all(_has_ended(finished, size.at, seed) for seed in seeds):
            pairs = tuple(
                (scaling.rate(arms[over], over, label), scaling.rate(arms[under], under, label))
                for arms in groups
            )
            yield Size(size.at, tuple(seeds), pairs)
