"""Output of comparisons: tables, CSV and learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from harness.base.settings import format_count, format_seconds
from harness.judge.bounds import geometric_ci
from harness.judge.comparison import Row, Table, describe_impossible
from harness.store import Cell
from reports.answers import Answer, charge_line, interval_columns
from reports.learning_curves import draw_curves
from reports.sentences import (
    EDGE,
    UNEVEN,
    answer,
    format_error,
    format_rate,
    format_ratio,
    format_target,
    rank_rows,
)


def answer_of(table: Table, model: str = "") -> Answer:
    """The answer of a comparison.

    Args:
        table: at least one row.
        model: what was trained, in words.
    """
    methods = [*table.methods]
    sentences, charged = answer(table), charge_line([row.cell for row in table.rows])
    data: dict[str, Any] = {"answer": " ".join(sentences), "judged": table.judged}
    data |= {"target": table.target, "target_is": table.reason, "charged": charged}
    if table.impossible:
        data["impossible"] = [asdict(cell) for cell in table.impossible]
    return Answer(
        title=f"Comparison of {', '.join(methods)}" if len(methods) > 1 else methods[0],
        sentences=sentences,
        table=[*cells(table)],
        notes=[*feet(table)],
        details=[charged, _describe_shares(table)],
        data=data,
        name="rows",
        records=[record(table, row) for row in table.rows],
        runs=hashes_of(row.cell for row in table.rows),
        pictures=lambda: draw_curves(table, CAPTION),
        setting=describe_setting(table, model),
    )


def hashes_of(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Hashes of the runs of each cell, by its algorithm and number of workers."""
    return {f"{cell.method}, {cell.workers}": [run.hash for run in cell.runs] for cell in cells}


def feet(table: Table) -> Iterator[str]:
    """The lines below the table: what a reader of its figures has to know."""
    if table.impossible:
        yield describe_impossible(table.impossible)
    yield f"{table.metric}: on development data, held out; times are simulated; {_seeds(table)}"
    if table.target is not None:
        yield f"target: {table.target:.4g} ({table.reason})"
    cell = table.rows[0].cell
    if cell.example_weight and _is_coarse(table):
        count = round(1.0 / cell.example_weight)
        weight = f"one of them is {cell.example_weight:.2g} of {table.metric}"
        yield f"only {count} development examples: {weight}"
    if any(row.cell.edge for row in table.rows):
        yield EDGE
    shares = [row.trained for row in table.rows if row.seconds and not math.isnan(row.trained)]
    if any(abs(share - 1.0) > UNEVEN for share in shares):
        yield _describe_shares(table)
    if rare := [_label(row) for row in table.rows if row.cell.workers > 1 and _folds(row) == 1]:
        yield f"averaged once, at the end of the training: {'; '.join(rare)}"
    if calm := [_label(row) for row in table.rows if row.faults == 0.0]:
        yield f"no fault happened, so its cost is not seen: {'; '.join(calm)}"
    if skews := [each for each in dict.fromkeys(map(_skew, table.rows)) if each]:
        yield f"workers' data differ: {'; '.join(skews)}"


def _folds(row: Row) -> float:
    """Most folds of a run of the row; 0 without runs."""
    return max((run.summary.get("folds", 0) for run in row.cell.runs), default=0)


def _describe_shares(table: Table) -> str:
    """The trained share of the requested examples by row; empty if every row trained all."""
    trained = [row for row in table.rows if row.seconds and not math.isnan(row.trained)]
    shares: dict[str, list[str]] = {}
    for row in sorted(trained, key=lambda row: row.trained):
        shares.setdefault(f"{row.trained:.1%}", []).append(_label(row))
    if not shares.keys() - {"100.0%"}:
        return ""
    listed = [f"{share} ({'; '.join(labels)})" for share, labels in shares.items()]
    listed = list(shares) if len(shares) == 1 else listed
    return f"share of the requested examples trained: {', '.join(listed)}"


def _skew(row: Row) -> str:
    """Difference of the data of several workers; empty if there is none."""
    skew, workers = row.skew, row.cell.workers
    if not skew or workers == 1:
        return ""
    sizes = f"{skew['smallest_share']:g} to {skew['largest_share']:g} examples each of {workers}"
    if "label_skew" not in skew:
        return sizes
    return f"{sizes}, classes {skew['label_skew']:.2f} from those of all (total variation)"


COARSE = 0.1
"""Share of the best error that one development example may be before it is told."""


def _is_coarse(table: Table) -> bool:
    """Whether one development example is much of the smallest share of wrong ones."""
    ends = [row.error.estimate for row in table.rows if row.error is not None]
    wrong = [min(end, 1.0 - end) for end in ends]
    return bool(wrong) and table.rows[0].cell.example_weight > COARSE * min(wrong)


def _seeds(table: Table) -> str:
    seeds = max(len(row.cell.runs) for row in table.rows)
    if seeds == 1:
        return "one seed has no intervals"
    others = len(table.rows) - 1
    chosen = f"; that of the fastest allows for its choice among {others}" if others > 1 else ""
    return f"95% intervals over {seeds} seeds{chosen if table.reference else ''}"


def _label(row: Row) -> str:
    return f"{row.cell.method}, {format_count(row.cell.workers, 'worker')}"


def cells(table: Table) -> Iterator[list[str]]:
    """The table's head and rows, from the best, as text."""
    test = any(row.test for row in table.rows)
    faults = any(row.faults is not None for row in table.rows)
    compared = [row.speedup for row in table.rows if row.speedup] if len(table.rows) > 1 else []
    yield [
        *("algorithm", "workers", "rate", table.metric, *(["test"] if test else []), "time"),
        *([] if table.target is None else ["to target"]),
        *(["speed-up"] if compared else []),
        "staleness",
        *(["faults"] if faults else []),
    ]
    for row in rank_rows(table):
        yield [
            *(row.cell.method, str(row.cell.workers), format_rate(row.cell), _error(row)),
            *([format_error(row.test) if row.test else "-"] if test else []),
            "-" if row.seconds is None else format_seconds(row.seconds.estimate),
            *([] if table.target is None else [_target(row)]),
            *([_speedup(table, row)] if compared else []),
            f"{row.staleness:.1f}",
            *(["-" if row.faults is None else f"{row.faults:.3g}"] if faults else []),
        ]


def _error(row: Row) -> str:
    counts = {"diverged": row.diverged, "not finite": row.infinite}
    lost = "".join(f", {n} of {len(row.cell.runs)} {what}" for what, n in counts.items() if n)
    if row.error is None:
        return lost.removeprefix(", ")
    learned = "" if row.has_learned else ", no better than at the start"
    return f"{format_error(row.error)}{lost}{learned}"


def _target(row: Row) -> str:
    return "-" if row.error is None else format_target(row)


def _speedup(table: Table, row: Row) -> str:
    if row.speedup is None:
        return "-"
    if table.reference is not None and row.cell is table.reference.cell:
        return "1"
    return format_ratio(row.speedup.time)


def record(table: Table, row: Row) -> dict[str, Any]:
    """A row as plain values by column; NaN where there is none."""
    cell, faster = row.cell, row.speedup
    passes = [reach.passes for reach in row.reaches if reach.is_earned]
    columns: dict[str, Any] = {
        **{"algorithm": cell.method, "workers": cell.workers, "rate": cell.rate},
        "before": math.nan if row.start is None else row.start,
        **interval_columns("error", row.error),
        **interval_columns("test", row.test),
        "seconds": row.seconds.estimate if row.seconds else math.nan,
        **interval_columns("target_s", row.target_s),
        "target_passes": geometric_ci(passes).estimate if passes else math.nan,
        **interval_columns("speedup", faster.time if faster else None),
        "steps_ratio": faster.steps.estimate if faster else math.nan,
        "passes_ratio": faster.passes.estimate if faster else math.nan,
        **{"reached": row.reached, "diverged": row.diverged, "seeds": len(cell.runs)},
        **{"staleness": row.staleness, "trained": row.trained, "ahead": row.ahead},
        "faults": math.nan if row.faults is None else row.faults,
        "runs": " ".join(run.hash[:12] for run in cell.runs),
    }
    if table.target is None:  # no column of a target without one
        return {name: value for name, value in columns.items() if name not in OF_TARGETS}
    return columns


OF_TARGETS = frozenset(
    (
        *("target_s", "target_s_low", "target_s_high", "target_passes", "reached"),
        *("speedup", "speedup_low", "speedup_high", "steps_ratio", "passes_ratio"),
    )
)
"""Columns that only a table with a target has."""


CAPTION = (
    "Mean over the reported seeds on development data. Bands reach from the lowest to the highest"
    " of these seeds; they are no intervals. A dotted line is the target."
)


def describe_setting(table: Table, model: str = "") -> str:
    """Cluster, model, passes and minibatches of a comparison in a line.

    Args:
        table: the rows.
        model: what was trained, in words; empty if it is not known.
    """
    config = table.rows[0].cell.runs[0].config
    cluster = config.get("cluster", {}).get("name")
    passes, stages = config.get("passes"), config.get("stages")
    words = [f"cluster {cluster!r}" if cluster else "", model]
    words.append("" if passes is None else format_count(passes, "pass"))
    words.append(f"minibatches of {stages[0]['minibatch']} a worker" if stages else "")
    return "; ".join(word for word in words if word)
