"""Figures of a simulated timeline of rollouts, closed forms beside them, and a trace.

All figures are of the rollouts with a known fate. Closed forms are taken over a window that leaves
out the beginning and the end, and count the rollouts that are trained on.

Little's law holds for any measure of time. Counted in steps of the trainer, with the share of the
present one that has passed, a rollout's time in the system is its staleness less the share that had
passed when it began. Its mean is the number of rollouts in the system over that of a batch, if the
number is averaged over the steps of the trainer, not over the time in which the trainer waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.rollouts.event_state import (
    ADMISSION,
    DISCARD,
    DRAIN,
    IN_FLIGHT_EXCHANGE,
    ONE_STEP,
    Rules,
)
from harness.rollouts.records import TRAINED, RolloutRows, TokenRows, rollout_rows, token_rows
from harness.simulator.timeline import SERVER, Timeline

__all__ = ["compare_with_theory", "measure", "token_staleness", "trace"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Comparison = tuple[str, float, float | tuple[float, float]]

BEGIN, END = 0.2, 0.9
"""Bounds of the window of closed forms, as shares of the steps."""
NEVER_IDLE = 0.99
"""Busy share from which on a part counts as the limit of throughput."""
QUICK = 1.0
"""Time in the queue, in steps, up to which nothing grows too old in it."""


def token_staleness(timeline: Timeline) -> tuple[Ints, Ints]:
    """Staleness of trained tokens: values, and the number of tokens with each.

    Rollouts that began before the timeline are left out: versions of their first tokens are not in
    it.
    """
    rows, stretches = rollout_rows(timeline), token_rows(timeline)
    begun_s = stretches.time_s.min() if len(stretches) else np.inf
    rows = rows.where((rows.fate == TRAINED) & (rows.start_s >= begun_s))
    order = np.argsort(stretches.rollout, kind="stable")
    ordered = {name: column[order] for name, column in stretches.columns().items()}
    stretches = TokenRows(**ordered)
    chosen = np.argsort(rows.rollout)
    place: Ints = np.searchsorted(rows.rollout, stretches.rollout, sorter=chosen)
    known: NDArray[np.bool_] = place < len(rows)
    known[known] = rows.rollout[chosen[place[known]]] == stretches.rollout[known]
    stretches, owner = stretches.where(known), chosen[place[known]]
    ends = rows.decoded[owner]
    goes_on = owner[1:] == owner[:-1]
    ends[:-1][goes_on] = stretches.first[1:][goes_on]
    ages = rows.trained_version[owner] - stretches.version
    values, where = np.unique(ages, return_inverse=True)
    counts = np.bincount(where, weights=ends - stretches.first, minlength=len(values))
    return values, counts.astype(np.int64)


def measure(timeline: Timeline, slots: int, scale: int) -> dict[str, float]:
    """Figures of a timeline by title; an empty dict if nothing was trained on.

    Args:
        timeline: of a simulation with spans, or a part of one.
        slots: slots of all generators.
        scale: simulated tokens for each token of a rollout.
    """
    rows, folds = rollout_rows(timeline), timeline.folds
    begin_s = 0.0
    if len(folds) and folds.fold[0] > 0:  # a part: from its first fold on
        begin_s = float(folds.time_s[0])
        rows = rows.where((rows.taken_s > begin_s) & (rows.trained_version > folds.fold[0]))
    trained = rows.fate == TRAINED
    if not trained.any():
        return {}
    kept, gone = rows.where(trained), rows.where(~trained)
    seconds = float(folds.time_s[-1]) - begin_s
    ages, counts = token_staleness(timeline)
    stale = kept.trained_version - kept.oldest_version
    left_s = _slot_ends_s(rows)
    spans = timeline.spans
    lengths = np.maximum(spans.end_s - np.maximum(spans.start_s, begin_s), 0.0)
    generators = 1 + int(timeline.contributions.worker.max())
    found = {
        "tokens/s, trained": scale * float(kept.decoded.sum()) / seconds,
        "tokens/s, decoded": scale * float(rows.decoded.sum()) / seconds,
        "trainer works, %": 100.0 * float(lengths[spans.worker == SERVER].sum()) / seconds,
        "generators decode, %": (
            100.0 * float(lengths[spans.worker >= 0].sum()) / (seconds * generators)
        ),
        "slots in use, %": 100.0 * float((left_s - rows.start_s).sum()) / (seconds * slots),
        "staleness of a token, mean": _mean(ages, counts),
        "staleness of a token, p95": _percentile(ages, counts, 0.95),
        "staleness of a rollout, mean": float(stale.mean()),
        "staleness of a rollout, p95": float(np.percentile(stale, 95)),
        "staleness of a rollout, max": float(stale.max()),
        "in flight, mean s": float((kept.left_s - kept.start_s).mean()),
        "in the queue, mean s": float((kept.taken_s - kept.ready_s).mean()),
        "tokens of a trained rollout": float(kept.tokens.mean()),
        "thrown away, %": 100.0 * len(gone) / len(rows),
    }
    if len(gone):
        told = gone.tokens[gone.tokens > 0]
        found["tokens of one thrown away"] = float(told.mean()) if len(told) else 0.0
        found["of which were decoded"] = float(gone.decoded.mean())
    return found


def _slot_ends_s(rows: RolloutRows) -> Floats:
    """Instants at which slots were free again, also after rollouts that were thrown away."""
    return np.where(np.isnan(rows.left_s), rows.taken_s, rows.left_s)


def _mean(values: Ints, counts: Ints) -> float:
    return float((values * counts).sum() / counts.sum()) if counts.sum() else 0.0


def _percentile(values: Ints, counts: Ints, share: float) -> float:
    """The smallest value that at least a share of the items does not exceed."""
    if not counts.sum():
        return 0.0
    return float(values[np.searchsorted(np.cumsum(counts), share * counts.sum())])


def compare_with_theory(
    rules: Rules, timeline: Timeline, slots: int, generators: int, pace: float
) -> Iterator[Comparison]:
    """Closed forms beside the figures of a long simulation: name, measured, theory or its bounds.

    Args:
        rules: the protocol's settings.
        timeline: of at least some 100 steps.
        slots: slots of a generator.
        generators: number of generators.
        pace: seconds of their decode steps over those of the settings.
    """
    times, first = timeline.folds.time_s, int(timeline.folds.fold[0])
    begin, end = int(BEGIN * len(times)), int(END * len(times)) - 1
    window = (float(times[begin]), float(times[end]))
    seconds, folds = window[1] - window[0], end - begin
    rows = rollout_rows(timeline)
    kept = rows.where(rows.fate == TRAINED)
    size = rules.batch * rules.group
    inside = (kept.taken_s >= window[0]) & (kept.taken_s < window[1])
    taken = kept.where(inside)
    cycle_s = seconds / folds

    passed = _Progress(timeline, kept)
    begun_at, ended_at = passed.count_steps(kept.start_s), passed.count_steps(kept.end_s)
    taken_at, edges = kept.trained_version, (float(first + begin + 1), float(first + end + 1))
    begun = (begun_at >= edges[0]) & (begun_at < edges[1])
    phase = float((begun_at - kept.oldest_version)[begun].mean())
    stale = taken.trained_version - taken.oldest_version
    present = _overlap(begun_at, taken_at, edges) / (edges[1] - edges[0]) / size
    yield "staleness = (C + R + Q) / B + f", float(stale.mean()), present + phase
    tokens = rules.scale * float(taken.decoded.sum()) / len(taken)
    train_s = rules.step_s + rules.token_s * tokens * size
    train_s += rules.sync_s / rules.interval
    held = rows.where((rows.start_s >= window[0]) & (rows.start_s < window[1]))
    left_s = _slot_ends_s(held)
    outside_s = float(np.nansum(left_s - held.end_s)) / len(held)
    steps = pace * rules.scale * float(held.decoded.mean())
    duration_s = steps * _step_s(rules, slots, steps, outside_s) + outside_s
    total = generators * slots
    rate = total / duration_s / size * float((held.fate == TRAINED).mean())
    trainer = min(train_s / cycle_s, 1.0)
    if rules.publish == IN_FLIGHT_EXCHANGE and trainer >= NEVER_IDLE:
        # the trainer's progress is even in time only if it never waits
        behind = float((taken_at - ended_at)[inside].mean())
        lives = float((ended_at - begun_at)[inside].mean())
        shares = passed.integrate(taken.end_s) - passed.integrate(taken.start_s)
        phase = float((shares / (taken.end_s - taken.start_s)).mean())
        age = float((taken.trained_version - taken.mean_version).mean())
        yield "age of a token = Q / B + d / 2 + f", age, behind + 0.5 * lives + phase
    in_use = float((left_s - held.start_s).sum()) / (seconds * total)
    limit = min(1.0 / train_s if train_s > 0.0 else np.inf, rate)
    is_limit = max(trainer, in_use) >= NEVER_IDLE
    expected = limit if is_limit else (0.0, limit)
    yield "batches/s, min(1/train, C/(E[D] B))", 1.0 / cycle_s, expected
    yield from _compare_rule(rules, taken, held, times, stale, cycle_s)


def _step_s(rules: Rules, slots: int, steps: float, outside_s: float) -> float:
    """Seconds of a decode step with all slots in use, some of them by environments.

    Args:
        rules: the protocol's settings.
        slots: of a generator.
        steps: of a rollout, at the generators' pace.
        outside_s: seconds of its environment.
    """
    # c = slots · D / (D + outside) with D = steps (a + b c), which is quadratic in a + b c
    a, b = rules.decode_s, rules.sequence_s * slots
    half = 0.5 * (a + b - outside_s / steps)
    return half + math.sqrt(half * half + a * outside_s / steps)


def _compare_rule(
    rules: Rules,
    taken: RolloutRows,
    held: RolloutRows,
    times: Floats,
    stale: Ints,
    cycle_s: float,
) -> Iterator[Comparison]:
    """Closed forms of one rule of the buffer."""
    if rules.rule == ADMISSION and rules.interval == 1:
        most = rules.allowed + 0.5 if rules.allowed else 0.0
        yield "staleness, admission: eta + 1/2", float(stale.mean()), (0.0, most)
    if rules.rule == ONE_STEP or (rules.rule == ADMISSION and rules.allowed == 0):
        generate_s, train_s = _stages_s(rules, taken)
        train_s = train_s + (0.0 if rules.publish == DRAIN else rules.sync_s)
        both = np.maximum(generate_s[1:], train_s[:-1])
        name = "s a step = max(generate, train)"
        if rules.rule == ADMISSION:
            both, name = generate_s + train_s, "s a step = generate + train"
        more = rules.sync_s if rules.publish == DRAIN else 0.0
        yield name, cycle_s, float(both.mean()) + more
    if rules.rule == DISCARD and rules.interval == 1:
        step_s = rules.scale * (rules.decode_s + rules.sequence_s)
        longest = (rules.allowed + 1) * float(np.diff(times).max()) / step_s
        yield "longest trained, tokens", float(taken.tokens.max()), (0.0, longest)
        gone = held.fate != TRAINED
        # a queue that grows too old is not foreseen, nor are seconds that were never drawn
        simple = rules.group == 1 and rules.environment.mean == rules.reward.mean == 0.0
        if simple and (taken.taken_s - taken.ready_s).mean() < QUICK * cycle_s:
            ended = ~np.isnan(held.end_s)
            pace_s = float((held.end_s - held.start_s)[ended].sum() / held.tokens[ended].sum())
            # it has to be complete when the last step begins that it is young enough for
            train_s = float(_stages_s(rules, taken)[1].mean()) + rules.sync_s
            limits_s = rules.allowed * cycle_s - train_s
            before = np.searchsorted(times, held.start_s, side="right")
            limits_s += times[np.minimum(before, len(times) - 1)] - held.start_s
            durations_s = np.sort(held.tokens * pace_s)
            share = 1.0 - np.searchsorted(durations_s, limits_s, side="right") / len(held)
            yield "thrown away = P(age > eta)", float(gone.mean()), float(share.mean())


def _stages_s(rules: Rules, rows: RolloutRows) -> tuple[Floats, Floats]:
    """Seconds in which each whole batch was generated, and in which it was trained on."""
    version = rows.trained_version - rows.trained_version.min()
    size = rules.batch * rules.group
    whole = np.flatnonzero(np.bincount(version) == size)
    order = np.argsort(version, kind="stable")
    order = order[np.isin(version[order], whole)].reshape(-1, size)
    generate_s = rows.ready_s[order].max(axis=1) - rows.start_s[order].min(axis=1)
    tokens = rules.scale * rows.tokens[order].sum(axis=1)
    return generate_s, rules.step_s + rules.token_s * tokens


def _overlap(start: Floats, end: NDArray[Any], window: tuple[float, float]) -> float:
    """Length of intervals inside a window, added up."""
    inside = np.minimum(end, window[1]) - np.maximum(start, window[0])
    return float(np.maximum(inside, 0.0).sum())


class _Progress:
    """Steps of the trainer by an instant, with the share of the present one that has passed.

    Args:
        timeline: of whole steps.
        kept: the rollouts that are trained on in it.
    """

    def __init__(self, timeline: Timeline, kept: RolloutRows) -> None:
        folds = timeline.folds
        self.first, self.ends_s = int(folds.fold[0]), folds.time_s
        self.begins_s = np.full(len(folds), np.nan)
        self.begins_s[kept.trained_version - self.first] = kept.taken_s

    def count_steps(self, instants: Floats) -> Floats:
        """Steps by each of these instants."""
        done, share, _ = self._split(instants)
        return self.first + done + share

    def integrate(self, instants: Floats) -> Floats:
        """Integral, over the time until each of these instants, of the share that has passed."""
        done, share, length_s = self._split(instants)
        whole_s = np.concatenate([[0.0], np.cumsum(self.ends_s - self.begins_s)])
        return 0.5 * (whole_s[done] + share * share * length_s)

    def _split(self, instants: Floats) -> tuple[Ints, Floats, Floats]:
        """Whole steps by each of these instants, the share of the present one, and its seconds."""
        done = np.searchsorted(self.ends_s, instants, side="right")
        present = np.minimum(done, len(self.ends_s) - 1)
        begin_s, end_s = self.begins_s[present], self.ends_s[present]
        under_way = (instants > begin_s) & (instants < end_s)
        length_s = np.where(under_way, end_s - begin_s, 1.0)
        return done, np.where(under_way, (instants - begin_s) / length_s, 0.0), length_s


MICROSECONDS = 1e6
TRAINER_LANE, QUEUE = 0, "groups that wait"


def trace(timeline: Timeline, slots: int) -> Iterator[dict[str, Any]]:
    """Events for ui.perfetto.dev: the trainer, every generator's slots, and the waiting groups.

    Args:
        timeline: of a simulation with spans.
        slots: slots of a generator.
    """
    rows = rollout_rows(timeline)
    lanes = {TRAINER_LANE: "trainer"}
    for generator, slot in sorted({*zip(rows.generator.tolist(), rows.slot.tolist(), strict=True)}):
        lanes[1 + generator * slots + slot] = f"generator {generator}, slot {slot}"
    for lane, name in lanes.items():
        place = {"ph": "M", "pid": 0, "tid": lane}
        yield {**place, "name": "thread_name", "args": {"name": name}}
        yield {**place, "name": "thread_sort_index", "args": {"sort_index": lane}}
    spans = timeline.spans.where(timeline.spans.worker == SERVER)
    for kind, start_s, end_s in zip(
        spans.kind.tolist(), spans.start_s.tolist(), spans.end_s.tolist(), strict=True
    ):
        name = "publish" if timeline.kinds[kind] == "push" else "train"
        yield _slice(name, TRAINER_LANE, start_s, end_s)
    yield from _rollout_slices(rows, slots)
    yield from _queue_counts(rows)


def _slice(name: str, lane: int, start_s: float, end_s: float, **told: Any) -> dict[str, Any]:
    times = {"ts": start_s * MICROSECONDS, "dur": (end_s - start_s) * MICROSECONDS}
    return {"ph": "X", "name": name, "pid": 0, "tid": lane, **times, "args": told}


def _rollout_slices(rows: RolloutRows, slots: int) -> Iterator[dict[str, Any]]:
    """A slice of each rollout in its slot, and one of its environment."""
    names, columns = zip(*rows.columns().items(), strict=True)
    for found in zip(*(column.tolist() for column in columns), strict=True):
        row = dict(zip(names, found, strict=True))
        lane = 1 + row["generator"] * slots + row["slot"]
        is_trained = row["fate"] == TRAINED
        ended = row["end_s"] == row["end_s"]
        end_s = row["end_s"] if ended else row["taken_s"]
        told = {name: row[name] for name in ("group", "prompt", "member", "tokens")}
        told |= {"versions": [row["oldest_version"], row["last_version"]]}
        told |= {"trained at version": row["trained_version"]} if is_trained else {}
        name = f"rollout {row['rollout']}" + ("" if is_trained else ", thrown away")
        yield _slice(name, lane, row["start_s"], end_s, **told)
        left_s = row["left_s"] if row["left_s"] == row["left_s"] else row["taken_s"]
        if ended and left_s > end_s:
            yield _slice("environment", lane, end_s, left_s)


def _queue_counts(rows: RolloutRows) -> Iterator[dict[str, Any]]:
    """The number of complete groups that wait, whenever it changes."""
    groups, first = np.unique(rows.group, return_index=True)
    ready_s = np.full(len(groups), -np.inf)
    known_s = np.where(np.isnan(rows.ready_s), np.inf, rows.ready_s)
    np.maximum.at(ready_s, np.searchsorted(groups, rows.group), known_s)
    whole = np.isfinite(ready_s)
    instants = np.concatenate([ready_s[whole], rows.taken_s[first][whole]])
    changes = np.repeat([1, -1], int(whole.sum()))
    times, where = np.unique(instants, return_inverse=True)
    waiting = np.cumsum(np.bincount(where, weights=changes, minlength=len(times)))
    for time_s, count in zip(times.tolist(), waiting.tolist(), strict=True):
        place = {"ph": "C", "name": QUEUE, "pid": 0, "ts": time_s * MICROSECONDS}
        yield {**place, "args": {"groups": int(count)}}
