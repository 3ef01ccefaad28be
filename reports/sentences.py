"""The answer of a comparison in sentences: what is fastest, by how much, and how sure that is.

A row is faster than another if the interval of their paired ratio of seconds to the target lies
above 1. Where the interval holds 1, the rows cannot be told apart. A row is the fastest by its own
time, so the intervals of its ratios are corrected for the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.base.settings import format_count, format_seconds, round_to
from harness.judge.bounds import find_seeds
from harness.judge.comparison import (
    Row,
    Speedup,
    Table,
    last,
    pair_times,
    speedup,
)
from harness.judge.direction import as_error
from harness.judge.interval import Interval
from harness.judge.statistics import paired_difference_ci
from harness.store import Cell

MOST_NAMED = 3
"""Number of rows that are named as equal to the fastest; of more, the rest is counted."""

MOST_SEEDS = 200
"""Largest number of seeds that is named as what would tell two rows apart."""

LEAST_TIMES, MOST_TIMES = 0.01, 10_000.0
"""Ratios beyond these are not told in digits: two seeds can have ends of ten digits."""

NEAR_END = 0.9
"""Share of training after which a target is touched rather than passed."""

UNEVEN = 0.05
"""Difference of the trained from the requested examples that is told."""

EDGE = "*: a rate at an end of those that were tried is as good or better"

ALONE = "One seed has no interval, so how much of this is chance is not known."


def answer(table: Table) -> list[str]:
    """The answer in a few sentences, the first of which has the numbers.

    Args:
        table: a table of at least one row.
    """
    gaps = [*describe_gaps((label(table, row), row.cell) for row in table.rows)]
    if all(row.error is None for row in table.rows):
        if not any(row.infinite for row in table.rows):
            return ["Every run diverged: a smaller rate is needed."]
        return [f"No run ends with a finite {table.metric}.", *gaps]
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
    """A warning where a headline's row touches the target near its end, or leaves it again."""
    for row in find_headline(table) if len(table.rows) > 1 else ():
        shares = [
            found.passes / run.curve(run.deployed(table.judged))[0][-1]
            for found, run in zip(row.reaches, row.cell.runs, strict=False)
            if found.is_earned
        ]
        if row.is_earned and max(shares) > NEAR_END:
            name, share = label(table, row), f"{max(shares):.0%}"
            verb = "reach" if name == f"{row.cell.workers} workers" else "reaches"
            text = f"{name} {verb} it only after {share} of the training, with one seed at least"
            yield f"{text}: more passes would show whether its time holds."
        elif row.is_earned and row.error and _is_left(table, row):
            name, end = label(table, row), f"{row.error.estimate:.3g}"
            verb = "end" if name == f"{row.cell.workers} workers" else "ends"
            text = f"{name} {verb} at {table.metric} {end}, with every seed worse than the target"
            yield f"{text}: its time is that of a dip, and a smaller rate may hold it."


def _is_left(table: Table, row: Row) -> bool:
    """Whether every seed of a row is worse than the target again at its end."""
    return table.target is not None and all(
        as_error(run, last(run, table.judged)) > as_error(run, table.target)
        for run in row.cell.runs
    )


def describe_ahead(table: Table) -> Iterator[str]:
    """The rows that are ahead of the reference where their passes end, short of the target."""
    ahead = [label(table, row) for row in table.rows if row.ahead]
    if ahead and table.reference is not None:
        behind = f"ahead of {label(table, table.reference)} after the same time"
        yield f"Not there {within(table.rows[0])}, but {behind}: {', '.join(ahead)}; train longer."


def within(row: Row) -> str:
    """The length of training, as the limit of what a row that is short of the target shows."""
    passes = float(row.cell.runs[0].config.get("passes", math.nan))
    if row.trained < 1.0 - UNEVEN:
        return f"within the {row.trained * passes:.2g} passes that are trained"
    if passes == 1.0:
        return "within this pass"
    return f"within these {format_count(passes, 'pass')}" if passes > 0 else "within its passes"


def rank_rows(table: Table) -> list[Row]:
    """Rows from the best: by seconds to the target if every seed reached it, then by error."""

    def place(row: Row) -> tuple[bool, float, bool, float]:
        return not row.is_earned, _seconds(row) if row.is_earned else -row.reached, *row.end

    return sorted(table.rows, key=place)


def label(table: Table, row: Row) -> str:
    """A row's name: its algorithm and number of workers, without what all rows share."""
    count = format_count(row.cell.workers, "worker")
    if len({each.cell.method for each in table.rows}) == 1:
        return count
    if len({each.cell.workers for each in table.rows}) == 1:
        return row.cell.method
    alone = [each.cell for each in table.rows if each.cell.workers == row.cell.workers == 1]
    is_clear = len(alone) < 2 or (table.reference and row.cell is table.reference.cell)
    return row.cell.name if is_clear else f"{row.cell.name} ({row.cell.method})"


def format_times(ratio: float, width: float = math.inf) -> str:
    """A ratio with the digits that a reader uses, more if its interval has a small width.

    Example:
        >>> [format_times(ratio) for ratio in (1e-9, 0.946, 1.0, 5.713, 10.42, 1234.5, 1e9)]
        ['<0.01', '0.95', '1', '5.7', '10.4', '1,234', '>10,000']
    """
    if ratio < LEAST_TIMES:
        return f"<{LEAST_TIMES:g}"
    if ratio >= 1000.0:
        return f"{ratio:,.0f}" if ratio <= MOST_TIMES else f">{MOST_TIMES:,.0f}"
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


def format_ratio(ratio: Interval) -> str:
    """A ratio with its interval, e.g. ``1.5 (1.2 to 1.8)``."""
    return f"{format_times(ratio.estimate, ratio.width)}{format_range(ratio, format_times)}"


def format_rate(cell: Cell) -> str:
    """The learning rate of a cell, with the mark of `EDGE` where it is at an end."""
    return f"{cell.rate:.3g}{'*' if cell.edge else ''}"


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
    text = format_seconds(float(f"{seconds:.3g}"))
    return text if row.reached == seeds else f"{row.reached} of {seeds} seeds, in {text}"


def _single(table: Table) -> Iterator[str]:
    """A table of one row has nothing to compare: what was reached, and from where."""
    (row,) = table.rows
    assert row.error is not None
    assert row.seconds is not None
    name, metric = row.cell.name, table.metric
    began = "" if row.start is None else f"; before training it was {row.start:.3g}"
    if not row.has_learned:
        outcome = "ends no better than at its start" if row.reached else "did not learn"
        yield f"{name} {outcome}: {metric} {format_error(row.error)} at the end{began}."
        return
    passes = float(row.cell.runs[0].config.get("passes", math.nan))
    length = format_count(passes, "pass")
    if row.trained < 1.0 - UNEVEN:
        config = row.cell.runs[0].config
        is_undone = config["cluster"]["checkpoints"]
        why = "restarts undid the rest" if is_undone else "the rest was lost or filled no minibatch"
        length = f"only {row.trained * passes:.3g} of {length} ({why})"
    after = f"after {length}, " if math.isfinite(passes) else ""
    took = f"{after}{format_seconds(row.seconds.estimate)} of simulated time"
    value = f"{round_to(row.error.estimate, 3, row.error.width):g}"
    yield f"{name}: {metric} {value} {took}{began}."
    if math.isfinite(row.error.width):
        low, high = (round_to(end, 2, row.error.width) for end in (row.error.low, row.error.high))
        yield f"Sure (95%, {format_count(len(row.cell.runs), 'seed')}): {low:g} to {high:g}."
    if table.target is not None:
        span = "" if row.target_s is None else format_range(row.target_s, format_short)
        yield f"Target {table.target:.4g}: {format_target(row)}{span}."


def _several(table: Table) -> Iterator[str]:
    if table.target is None:
        yield from _best_end(table, f"There is no target to compare times by ({table.reason})")
        return
    best, *others = rank_rows(table)
    to = f"{table.metric} {table.target:.3g}"
    if not best.is_earned:
        yield from _none_reached(table, best, to)
        return
    fastest = f"Fastest to {to}: {label(table, best)}, in {format_target(best)}"
    enough = _enough(table, best)
    if table.reference is None:
        fewest = format_count(min(row.cell.workers for row in table.rows), "worker")
        yield f"{fastest}; with {fewest} no algorithm reaches it with every seed {within(best)}."
    elif best.cell is table.reference.cell:
        yield f"{fastest}{enough}."
        rest = [row for row in others if row.is_earned]
        if rest:
            yield _next(table, best, rest[0])
        elif not enough:
            every = " with every seed" if any(row.reached for row in others) else ""
            yield f"No other row reaches it{every} {within(best)}."
    else:
        assert best.speedup is not None
        yield f"{fastest}; {describe_gain(label(table, table.reference), best.speedup)}{enough}."
        yield from describe_sureness(table, best)
        yield _factors(best.speedup)
        yield _ends(table, best, table.reference)
    if equal := _equal(table, best, others):
        yield equal


def describe_gain(reference: str, ratio: Speedup) -> str:
    """How many times as long the reference takes as the fastest row."""
    times = format_times(ratio.time.estimate, ratio.time.width)
    longer = "as long" if times == "1" else f"{times} times as long"
    return f"{reference} takes {longer}{'' if is_decided(ratio.time) else ', perhaps by chance'}"


def describe_sureness(table: Table, best: Row) -> Iterator[str]:
    """The interval of the fastest row's speed-up in a sentence; none with one seed."""
    reference = table.reference
    if reference is None or best.cell is reference.cell or best.speedup is None:
        return
    ratio = best.speedup.time
    if math.isfinite(ratio.width):
        low, high = (format_times(end, ratio.width) for end in (ratio.low, ratio.high))
        sure, need = "Sure", ""
        if not is_decided(ratio):
            sure, need = "Not sure", f"; {describe_need(table, best, reference)}"
        yield f"{sure} (95%, {len(best.cell.runs)} seeds): {low} to {high} times as long{need}."


def describe_need(table: Table, best: Row, row: Row) -> str:
    """Seeds and trainings that would tell two rows apart, if their scatter stayed as it is."""
    seeds = find_seeds(*pair_times(row, best), _count_pairs(table))
    if not seeds <= MOST_SEEDS:
        return "more seeds would hardly tell, but more evaluations (or folds) a pass might"
    trainings = 2 * (math.ceil(seeds) - len(best.reaches))
    return f"about {seeds:.0f} seeds would tell, {max(trainings, 2)} trainings more"


def _factors(ratio: Speedup) -> str:
    """What a speed-up is made of: steps a second, and passes to the target."""
    steps, passes = (format_times(part.estimate) for part in (ratio.steps, ratio.passes))
    pace = f"It goes through the data{'' if steps == '1' else f' {steps} times'} as fast"
    if passes == "1":
        return f"{pace}, and needs as many passes."
    joint = "but" if ratio.passes.estimate > 1.0 else "and"
    return f"{pace}, {joint} needs {passes} times the passes."


def compare_chosen(table: Table, row: Row, other: Row) -> Speedup | None:
    """The speed-up of a row over another of a table, of which either was chosen for its time."""
    return speedup(row, other, _count_pairs(table))


def _count_pairs(table: Table) -> int:
    """Number of pairs that a row chosen by its time may be of; two rows leave no choice."""
    return len(table.rows) if len(table.rows) > 2 else 1


def _next(table: Table, best: Row, second: Row) -> str:
    ratio = compare_chosen(table, best, second)
    assert ratio is not None
    span = format_range(ratio.time, format_times)
    return f"Next: {describe_gain(label(table, second), ratio)}{span}."


def _ends(table: Table, best: Row, reference: Row) -> str:
    """The errors at the end of the fastest row and of the reference, paired by seed."""
    assert best.error is not None
    assert reference.error is not None
    errors = [
        [as_error(run, last(run, table.judged)) for run in row.cell.runs]
        for row in (best, reference)
    ]
    difference = paired_difference_ci(*errors)
    ends = f"{best.error.estimate:.3g} against {reference.error.estimate:.3g}"
    sentence = f"At the end of training its {table.metric} is {ends}"
    if abs(difference.estimate) < best.cell.example_weight:
        return f"{sentence}, less than one development example apart."
    if math.isfinite(difference.low) and difference.low <= 0.0 <= difference.high:
        return f"{sentence}, which may be chance with {len(best.cell.runs)} seeds."
    if not math.isfinite(difference.low):  # one seed
        return f"{sentence}."
    return f"{sentence}, which is {'worse' if difference.estimate > 0 else 'better'}."


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
    return f"Not told apart by these seeds: {', '.join(equal[:MOST_NAMED])}{more}."


def _enough(table: Table, best: Row) -> str:
    """The number of workers above which none is faster by the fastest row's method, if any is.

    Empty if the fastest row has the most workers.
    """
    rows = sorted(
        (row for row in table.rows if row.cell.method == best.cell.method),
        key=lambda row: row.cell.workers,
    )
    if best is rows[-1]:
        return ""
    is_alone = len({row.cell.method for row in table.rows}) == 1
    of = "" if is_alone else f" of {best.cell.method}"
    for place, row in enumerate(rows[:-1]):
        more, count = rows[place + 1 :], format_count(row.cell.workers, "worker")
        name = f"more{f' than {count}' if place else ' workers'}{of}"
        gains = [g.time for each in more if (g := compare_chosen(table, each, row)) is not None]
        if row.is_earned and not any(gain.estimate > 1.0 and is_decided(gain) for gain in gains):
            if not gains:
                every = " with every seed" if any(each.reached for each in more) else ""
                return f"; {name} do not reach it{every} {within(best)}"
            gains_something = any(gain.estimate > 1.0 for gain in gains)
            return f"; {name} gain nothing{' that these seeds show' if gains_something else ''}"
    return ""


def is_decided(ratio: Interval) -> bool:
    """Whether a ratio's interval lies on one side of 1; one without an interval counts as it is."""
    return not math.isfinite(ratio.width) or not ratio.low <= 1.0 <= ratio.high


def _none_reached(table: Table, best: Row, to: str) -> Iterator[str]:
    if best.reached:
        told = f"No row reaches {to} with every seed {within(best)}"
        yield f"{told}; {label(table, best)}: {format_target(best)}."
    else:
        yield from _best_end(table, f"No row reaches {to} {within(best)}")


def _best_end(table: Table, told: str) -> Iterator[str]:
    best = min(table.rows, key=lambda row: row.end)
    assert best.error is not None
    learned = "" if best.has_learned else ", no better than before training"
    end = f"{format_error(best.error)}{learned}"
    yield f"{told}; {label(table, best)} has the best {table.metric} at the end: {end}."


def _seconds(row: Row) -> float:
    return math.inf if row.target_s is None else row.target_s.estimate


def format_short(seconds: float, width: float = math.inf) -> str:
    """A duration with three digits, or those that its interval's width leaves."""
    return format_seconds(round_to(seconds, 3, width))
