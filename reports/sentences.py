"""The answer of a comparison in sentences: what is fastest, by how much, and how sure that is.

A row is faster than another if the interval of their paired ratio of seconds to the target lies
above 1. Where the interval holds 1, the rows cannot be told apart. A row is the fastest by its own
time, so the intervals of its ratios are corrected for the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.base.settings import format_count, format_seconds, round_to
from harness.judge.comparison import Row, Speedup, Table, last, speedup, value_before_training
from harness.judge.direction import as_error, is_maximised
from harness.judge.interval import Interval
from harness.judge.statistics import paired_difference_ci
from harness.store import Cell

MOST_NAMED = 3
"""Number of rows that are named as equal to the fastest; of more, the rest is counted."""

NEAR_END = 0.9
"""Share of training after which a target is touched rather than passed."""

ALONE = "One seed has no interval, so how much of this is chance is not known."


def answer(table: Table) -> list[str]:
    """The answer in a few sentences, the first of which has the numbers.

    Args:
        table: a table of at least one row.
    """
    gaps = [*describe_gaps((row.cell.name, row.cell) for row in table.rows)]
    if all(row.error is None for row in table.rows):
        if not any(row.infinite for row in table.rows):
            return ["Every run diverged: a smaller rate is needed."]
        return [f"No run ends with a finite {_metric(table)}.", *gaps]
    answer = _single(table) if len(table.rows) == 1 else _several(table)
    seeds = max(len(row.cell.runs) for row in table.rows)
    lines = [*answer, *describe_ahead(table), *_warn_of_the_end(table), *gaps]
    return [*lines, *([ALONE] if seeds == 1 else [])]


def describe_gaps(cells: Iterable[tuple[str, Cell]]) -> Iterator[str]:
    """The runs with evaluations at which a metric is not finite, which count for nothing.

    Args:
        cells: cells by name.
    """
    for name, cell in cells:
        test, counts = cell.judged.replace("dev_", "test_", 1), dict[str, list[str]]()
        for run in (run for run in cell.runs if run.status == "done"):
            tested = run.summary.get(run.deployed(test), 0.0)
            curves = {cell.judged: run.curve(run.deployed(cell.judged))[1], test: [tested]}
            for metric, values in curves.items():
                if count := sum(not math.isfinite(value) for value in values):
                    seed = f"{count} of {len(values)} with seed {run.config['seed']}"
                    counts.setdefault(metric, []).append(seed)
        for metric, seeds in counts.items():
            words = metric.removeprefix("dev_").replace("_", " ")
            gaps = f"{name}: {words} is not finite at evaluations: {', '.join(seeds)}"
            excluded = "; a run that ends so is in no mean and reaches no target"
            yield f"{gaps}{excluded if metric == cell.judged else ''}."


def find_headline(table: Table) -> list[Row]:
    """The rows of the first sentence: the best, and if there is one that which it is held against.

    Args:
        table: a table of at least one row.
    """
    best, *others = rank_rows(table)
    if table.reference is not None and best.cell is not table.reference.cell:
        return [best, table.reference]
    return [best, *(row for row in others[:1] if best.is_earned and row.is_earned)]


def _warn_of_the_end(table: Table) -> Iterator[str]:
    """A warning where the headline's time to the target is taken near the end of training."""
    for row in find_headline(table) if len(table.rows) > 1 else ():
        shares = [
            found.passes / run.curve(run.deployed(table.judged))[0][-1]
            for found, run in zip(row.reaches, row.cell.runs, strict=False)
            if found.is_earned
        ]
        if row.is_earned and max(shares) > NEAR_END:
            name, share = label(table, row), f"{max(shares):.0%}"
            told = f"{name} reaches it only after {share} of the training, with one seed at least"
            yield f"{told}: more passes would show whether its time holds."


def describe_ahead(table: Table) -> Iterator[str]:
    """The rows that are ahead of the reference where their passes end, short of the target."""
    ahead = [label(table, row) for row in table.rows if row.ahead]
    if ahead and table.reference is not None:
        told = f"Not {within(table.rows[0])}, but ahead there of {label(table, table.reference)}"
        told = f"{told} with every seed, after the same time: {', '.join(ahead)}"
        yield f"{told}; more passes would tell."


def within(row: Row) -> str:
    """The length of training, as the limit of what a row that is short of the target shows."""
    passes = float(row.cell.runs[0].config.get("passes", math.nan))
    return f"within these {format_count(passes, 'pass')}" if passes > 0 else "within its passes"


def rank_rows(table: Table) -> list[Row]:
    """Rows from the best: by seconds to the target if every seed reached it, then by error."""

    def place(row: Row) -> tuple[bool, float, bool, float]:
        return not row.is_earned, _seconds(row) if row.is_earned else -row.reached, *row.end

    return sorted(table.rows, key=place)


def label(table: Table, row: Row) -> str:
    """A row's name: its algorithm and number of workers, without what all rows share."""
    count = format_workers(row.cell.workers)
    if len({each.cell.method for each in table.rows}) == 1:
        return count
    one_count = len({each.cell.workers for each in table.rows}) == 1
    return row.cell.method if one_count else row.cell.name


def format_workers(count: int) -> str:
    """A number of workers in words.

    Example:
        >>> format_workers(1), format_workers(4)
        ('1 worker', '4 workers')
    """
    return format_count(count, "worker")


def format_times(ratio: float, width: float = math.inf) -> str:
    """A ratio with the digits that a reader uses, more if its interval has a small width.

    Example:
        >>> [format_times(ratio) for ratio in (0.946, 1.0, 5.713, 10.42, 1234.5)]
        ['0.95', '1', '5.7', '10.4', '1,234']
    """
    if ratio >= 1000.0 and math.isfinite(ratio):
        return f"{ratio:,.0f}"
    return f"{round_to(ratio, 3 if ratio >= 10.0 else 2, width):g}"


def format_range(found: Interval, shown: Callable[[float, float], str]) -> str:
    """The ends of an interval in brackets; empty if it has none.

    Args:
        found: the interval.
        shown: formats an end, given the interval's width.
    """
    if not math.isfinite(found.width):
        return ""
    return f" ({shown(found.low, found.width)} to {shown(found.high, found.width)})"


def format_error(found: Interval) -> str:
    """A metric with its interval, e.g. ``0.117 (0.03 to 0.32)``."""
    ends = format_range(found, lambda end, width: f"{round_to(end, 2, width):g}")
    return f"{round_to(found.estimate, 3, found.width):g}{ends}"


def format_target(row: Row) -> str:
    """Time at which a row reached the target, with the number of seeds unless all did."""
    seeds = len(row.reaches)
    if any(reach.passes == 0.0 for reach in row.reaches):
        return "met before training"
    if not row.reached:
        return f"not {within(row)}{', ahead there' if row.ahead else ''}"
    seconds = row.target_s.estimate if row.target_s else 0.0
    told = format_seconds(float(f"{seconds:.3g}"))
    return told if row.reached == seeds else f"{row.reached} of {seeds} seeds, in {told}"


def _single(table: Table) -> Iterator[str]:
    """A table of one row has nothing to compare: what was reached, and from where."""
    (row,) = table.rows
    assert row.error is not None
    assert row.seconds is not None
    name, metric = row.cell.name, _metric(table)
    began = "" if row.start is None else f", from {row.start:.3g} before training"
    if not row.has_learned:
        yield f"{name} did not learn: {metric} {format_error(row.error)} at the end{began}."
        return
    passes = float(row.cell.runs[0].config.get("passes", math.nan))
    after = f"after {format_count(passes, 'pass')}, " if math.isfinite(passes) else ""
    took = f"{after}{format_seconds(row.seconds.estimate)} of simulated time"
    yield f"{name}: {metric} {format_error(row.error)} {took}{began}."
    if table.target is not None:
        span = "" if row.target_s is None else format_range(row.target_s, _short_seconds)
        yield f"Target {table.target:.4g}: {format_target(row)}{span}."


def _several(table: Table) -> Iterator[str]:
    if table.target is None:
        yield from _best_end(table, f"There is no target to compare times by ({table.reason})")
        return
    best, *others = rank_rows(table)
    to = f"{_metric(table)} {table.target:.3g}"
    if not best.is_earned:
        yield from _none_reached(table, best, to)
        return
    if table.reference is None:
        fewest = format_workers(min(row.cell.workers for row in table.rows))
        least = f"with {fewest} no algorithm reaches it with every seed {within(best)}"
        yield f"{label(table, best)}: fastest to {to}, in {format_target(best)}; {least}."
    elif best.cell is table.reference.cell:
        rest = [row for row in others if row.is_earned]
        fastest = f"{label(table, best)}: fastest to {to}, in {format_target(best)}"
        yield f"{fastest}{(enough := _enough(table, best))}."
        if rest:
            yield _next(table, best, rest[0])
        elif not enough:
            every = " with every seed" if any(row.reached for row in others) else ""
            yield f"No other row reaches it{every} {within(best)}."
    else:
        yield f"{_gain(table, best)}{_enough(table, best)}."
        yield _ends(table, best, table.reference)
    if equal := _equal(table, best, others):
        yield equal


def _gain(table: Table, best: Row) -> str:
    """The fastest row against the reference, with the two factors of its speed-up."""
    assert table.reference is not None
    found = best.speedup
    assert found is not None
    steps = f"{format_times(found.steps.estimate)} times the steps a second"
    passes = format_times(found.passes.estimate)
    passes = " in as many passes" if passes == "1" else f", divided by {passes} times the passes"
    than = f"than {label(table, table.reference)} to {_metric(table)} {table.target:.3g}"
    apart = "" if is_decided(found.time) else ", which cannot be told apart"
    return f"{label(table, best)}: {format_gain(table, found)} {than}{apart}: {steps}{passes}"


def format_gain(table: Table, found: Speedup) -> str:
    """How many times faster the fastest row is than the reference, with its interval."""
    others = len(table.rows) - 1
    chosen = "95%: " if others == 1 else f"95%, as the best of {others}: "
    span = format_range(found.time, format_times).replace("(", f"({chosen}")
    return f"{format_times(found.time.estimate, found.time.width)} times faster{span}"


def compare_chosen(table: Table, row: Row, other: Row) -> Speedup | None:
    """The speed-up of a row over another of a table, of which either was chosen for its time."""
    return speedup(row, other, len(table.rows))


def _next(table: Table, best: Row, second: Row) -> str:
    found = compare_chosen(table, best, second)
    assert found is not None
    span = format_range(found.time, format_times)
    name = f"Next is {label(table, second)}"
    if not is_decided(found.time):
        return f"{name}, which cannot be told apart from it{span}."
    times = format_times(found.time.estimate, found.time.width)
    return f"{name}, {'as fast' if times == '1' else f'{times} times slower'}{span}."


def _ends(table: Table, best: Row, reference: Row) -> str:
    """The errors at the end of the fastest row and of the reference, paired by seed."""
    assert best.error is not None
    assert reference.error is not None
    errors = [
        [as_error(run, last(run, table.judged)) for run in row.cell.runs]
        for row in (best, reference)
    ]
    found = paired_difference_ci(*errors)
    first, again = best.cell.runs[0], ""
    if table.target is not None and as_error(first, best.error.estimate - table.target) > 0.0:
        again = " (worse again than the target)"
    told = f"{best.error.estimate:.3g}{again} against {reference.error.estimate:.3g}"
    told = f"At the end of training, not at the target, its {_metric(table)} is {told}"
    if abs(found.estimate) < best.cell.example_weight:
        return f"{told}, less than one development example apart."
    if math.isfinite(found.low) and found.low <= 0.0 <= found.high:
        return f"{told}, which may be chance with {len(best.cell.runs)} seeds."
    if not math.isfinite(found.low):  # one seed
        return f"{told}."
    return f"{told}, {'worse' if found.estimate > 0 else 'better'} than that."


def _equal(table: Table, best: Row, others: Sequence[Row]) -> str:
    """The rows that cannot be told apart from the fastest, without those named before."""
    told = best if table.reference is None else table.reference
    equal = [
        label(table, row)
        for row in others
        if row.cell is not told.cell
        and (found := compare_chosen(table, best, row)) is not None
        and not is_decided(found.time)
    ]
    if best.cell is told.cell:  # the next row has a sentence of its own
        equal = [name for name in equal if name != label(table, others[0])]
    if not equal:
        return ""
    more = f" and {len(equal) - MOST_NAMED} more" if len(equal) > MOST_NAMED else ""
    return f"Cannot be told apart from the fastest: {', '.join(equal[:MOST_NAMED])}{more}."


def _enough(table: Table, best: Row) -> str:
    """The number of workers above which none is faster by the fastest row's method."""
    rows = sorted(
        (row for row in table.rows if row.cell.method == best.cell.method),
        key=lambda row: row.cell.workers,
    )
    most = rows[-1].cell.workers
    if len(rows) == 1:
        return ""
    is_alone = len({row.cell.method for row in table.rows}) == 1
    of = "" if is_alone else f" of {best.cell.method}"
    for place, row in enumerate(rows):
        more = rows[place + 1 :]
        gains = [found for each in more if (found := compare_chosen(table, each, row)) is not None]
        if row.is_earned and not any(_is_faster(found) for found in gains):
            if row.cell.workers == most:
                return f"; more than {most}{of} were not tried"
            if not gains:
                some = any(each.reached for each in more)
                ends = "not every seed reaches it" if some else "it is not reached"
                return f"; with more than {row.cell.workers}{of} {ends} {within(best)}"
            some = any(found.time.estimate > 1.0 for found in gains)
            seen = " that these seeds show" if some else ""
            return f"; more than {row.cell.workers}{of} pay nothing{seen}"
    return ""


def _is_faster(found: Speedup) -> bool:
    return found.time.estimate > 1.0 and is_decided(found.time)


def is_decided(ratio: Interval) -> bool:
    """Whether a ratio's interval lies on one side of 1; one without an interval counts as it is."""
    return not math.isfinite(ratio.width) or not ratio.low <= 1.0 <= ratio.high


def _none_reached(table: Table, best: Row, to: str) -> Iterator[str]:
    before = [row for row in table.rows if any(r.passes == 0.0 for r in row.reaches)]
    if before:
        first = best.cell.runs[0]
        direction = "above" if is_maximised(first) else "below"
        runs = [(run, row.cell.judged) for row in before for run in row.cell.runs]
        known = [value_before_training(run, judged) for run, judged in runs if run.status == "done"]
        starts = [start for start in known if start is not None]
        start = min(starts, key=lambda value: as_error(first, value))
        seeds = "" if all(r.passes == 0.0 for r in before[0].reaches) else " by some seeds"
        told = f"The target, {to}, is met before training{seeds}"
        yield from _best_end(table, f"{told}: give one {direction} {start:.3g}")
    elif best.reached:
        told = f"No row reaches {to} with every seed {within(best)}"
        yield f"{told}; {label(table, best)}: {format_target(best)}."
    else:
        yield from _best_end(table, f"No row reaches {to} {within(best)}")


def _best_end(table: Table, told: str) -> Iterator[str]:
    best = min(table.rows, key=lambda row: row.end)
    assert best.error is not None
    learned = "" if best.has_learned else ", no better than before training"
    end = f"{format_error(best.error)}{learned}"
    yield f"{told}; {label(table, best)} has the best {_metric(table)} at the end: {end}."


def _metric(table: Table) -> str:
    return table.judged.removeprefix("dev_").replace("_", " ")


def _seconds(row: Row) -> float:
    return math.inf if row.target_s is None else row.target_s.estimate


def _short_seconds(seconds: float, width: float) -> str:
    return format_seconds(round_to(seconds, 2, width))
