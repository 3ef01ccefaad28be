"""Advice as text, a page and plain values: which candidate, how sure, and at which cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from harness.base.settings import format_count
from harness.judge.comparison import Row, Table, build_table, describe_impossible
from harness.search.advice import AdviceOutcome, Trial
from reports.answers import Answer
from reports.comparison import hashes_of
from reports.learning_curves import draw_curves
from reports.sentences import (
    compare_chosen,
    describe_ahead,
    describe_gain,
    describe_gaps,
    describe_need,
    describe_sureness,
    format_range,
    format_short,
    format_target,
    format_times,
    is_decided,
    rank_rows,
    within,
)

HEAD = ("algorithm", "workers", "rate", "passes", "per minibatch", "to target", "")

CURVES = (
    "One worker and the candidates that were trained in full: mean over seeds on development data;"
    " bands reach from the lowest to the highest seed. The dotted line is the target."
)


def build_advice_table(outcome: AdviceOutcome) -> Table:
    """One worker and the candidates that were trained in full, as rows of a comparison."""
    return build_table(outcome.cells, outcome.target, outcome.plan.impossible)


def describe_advice(outcome: AdviceOutcome) -> Iterator[str]:
    """The advice and how sure it is, a sentence each."""
    table = build_advice_table(outcome)
    best, *others = rank_rows(table)
    target = f"{table.metric} {outcome.target:.3g}"
    if best.is_earned:
        gain = _gain(outcome, table, best)
        yield f"Run {_name(best)}: {target} in {format_target(best)}; {gain}."
        yield from describe_sureness(table, best)
        earned = [row for row in others if row.is_earned and row is not table.reference]
        yield from _doubts(table, best, earned)
        yield from describe_ahead(table)
    else:
        yield f"No candidate reaches {target} with every seed; nearest: {_name(best)}."
    yield from describe_gaps((row.cell.name, row.cell) for row in table.rows)


def _name(row: Row) -> str:
    return f"{row.cell.name}, rate {row.cell.rate:.3g}"


def _gain(outcome: AdviceOutcome, table: Table, best: Row) -> str:
    reference, plan = table.reference, outcome.plan
    labels = {team.method.label for team in (plan.reference, *plan.candidates)}
    alone = f"one worker{f' ({plan.reference.method.label})' if len(labels) > 1 else ''}"
    if reference is None:
        return f"{alone} does not reach it with every seed"
    if best.cell is reference.cell:
        comparisons = [compare_chosen(table, best, row) for row in table.rows if row is not best]
        sure = all(pair is not None and is_decided(pair.time) for pair in comparisons)
        return f"more workers {'gain nothing' if sure else f'are not faster {within(best)}'}"
    assert best.speedup is not None
    return describe_gain(alone, best.speedup)


def _doubts(table: Table, best: Row, others: Sequence[Row]) -> Iterator[str]:
    """The next candidate, and those that cannot be told apart from the best."""
    for place, row in enumerate(others):
        comparison = compare_chosen(table, best, row)
        assert comparison is not None
        ratio = comparison.time
        text = f"{describe_gain(_name(row), comparison)}{format_range(ratio, format_times)}"
        if math.isfinite(ratio.width) and not is_decided(ratio):
            yield f"{text}; {describe_need(table, best, row)}."
        elif place == 0:
            yield f"Next: {text}."


def _describe_search(outcome: AdviceOutcome) -> str:
    untrained = sum(trial.passes == 0 for trial in outcome.trials)
    full = len(outcome.cells) - 1
    stopped = len(outcome.trials) - untrained - full
    candidates = format_count(len(outcome.trials), "candidate")
    text = f"{candidates}: {full} trained in full, {stopped} left"
    text += f" after shorter trainings, {untrained} passed over by their simulated time"
    cost = f"{outcome.trainings} trainings, {outcome.cost:.0f} of full length"
    return f"{text}; {cost}"


def _feet(outcome: AdviceOutcome) -> Iterator[str]:
    """The lines below the table: what cannot be trained, and what the search has cost."""
    if outcome.plan.impossible:
        yield describe_impossible(outcome.plan.impossible)
    yield _describe_search(outcome)


def _cells(outcome: AdviceOutcome) -> Iterator[tuple[str, ...]]:
    """Rows of the table: those trained in full by time, then the others as they were left."""
    table = build_advice_table(outcome)
    step_s = {
        (candidate.method.label, candidate.workers): candidate.step_s
        for candidate in (outcome.plan.reference, *outcome.plan.candidates)
    }
    passes = str(outcome.plan.passes[-1])
    for place, row in enumerate(rank_rows(table)):
        name = row.cell.method, row.cell.workers
        fate = "advised" if place == 0 and row.is_earned else "trained in full"
        span = "" if row.target_s is None else format_range(row.target_s, format_short)
        yield (
            *(row.cell.method, str(row.cell.workers), f"{row.cell.rate:.3g}", passes),
            *(format_short(step_s[name]), f"{format_target(row)}{span}", fate),
        )
    full = {(cell.method, cell.workers) for cell in outcome.cells}
    for trial in sorted(outcome.trials, key=lambda trial: (-trial.passes, trial.seconds)):
        candidate = trial.candidate
        if (candidate.method.label, candidate.workers) in full:
            continue
        rate = f"{trial.rate:.3g}" if trial.passes else "-"
        yield (
            *(candidate.method.label, str(candidate.workers), rate, str(trial.passes)),
            *(format_short(candidate.step_s), "-", trial.fate),
        )


def answer_of(outcome: AdviceOutcome) -> Answer:
    """The advice, with all candidates and the curves of what was trained in full."""
    table = build_advice_table(outcome)
    best, sentences = rank_rows(table)[0], [*describe_advice(outcome)]
    return Answer(
        title="Advice",
        sentences=sentences,
        table=[HEAD, *_cells(outcome)],
        notes=[*_feet(outcome)],
        data={
            **{"advice": " ".join(sentences), "algorithm": best.cell.method},
            **{"workers": best.cell.workers, "rate": best.cell.rate, "target": outcome.target},
            **{"target_is": outcome.reason, "reached": best.is_earned},
            "target_s": None if best.target_s is None else best.target_s.estimate,
            **{"trainings": outcome.trainings, "full_length_trainings": outcome.cost},
        },
        name="candidates",
        records=[_record(trial) for trial in outcome.trials],
        runs=hashes_of(outcome.cells),
        pictures=lambda: draw_curves(table, CURVES),
    )


def _record(trial: Trial) -> dict[str, Any]:
    return {
        **{"algorithm": trial.candidate.method.label, "workers": trial.candidate.workers},
        **{"rate": trial.rate if trial.passes else None, "passes": trial.passes},
        **{"fate": trial.fate, "seconds": trial.seconds, "minibatch_s": trial.candidate.step_s},
    }
