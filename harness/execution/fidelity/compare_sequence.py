"""A recorded sequence training beside what the simulator predicts, with all three stalenesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from data_synth.corpus import Utterances
from harness.errors import UserError
from harness.execution.evaluation.lags import push_lag
from harness.execution.fidelity.compare import Behaviour, Comparison, behaviour, shown
from harness.execution.fidelity.predict_sequence import WITHOUT_LIMIT, as_told, simulated
from harness.execution.processes.recorder import PAUSE
from harness.execution.processes.sequence_recorder import Told
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import Cluster, Timeline
from harness.simulator.protocols.sequence import outer_lag
from harness.simulator.timeline import Spans


@dataclass(frozen=True)
class Ages:
    """Of everything folded, how old it was.

    Attributes:
        inner: throughput, and staleness and lag since the trainer's read.
        outer: folds since the decoder's read, for every frame.
        outer_s: seconds since then.
        push: folds since the contribution was computed.
    """

    inner: Behaviour
    outer: np.ndarray
    outer_s: np.ndarray
    push: np.ndarray

    @classmethod
    def of(cls, timeline: Timeline, config: SequenceConfig) -> Ages:
        """Of a whole run without pauses."""
        slots = None if config.shuffling == "on the fly" else config.slots
        inner = behaviour(timeline, config.replicas)
        return cls(inner, *outer_lag(timeline, slots), push_lag(timeline)[0])


@dataclass(frozen=True)
class SequenceComparison:
    """A recorded run beside its prediction."""

    recorded: Ages
    predicted: Ages


def compare_sequence(
    config: SequenceConfig,
    train: Utterances,
    timeline: Timeline,
    told: Told,
    cluster: Cluster | None = None,
) -> SequenceComparison:
    """A recorded run beside a simulated one that keeps as many frames of every utterance.

    Args:
        config: of the run.
        train: the training utterances.
        timeline: its record.
        told: what its decoders said.
        cluster: predicts; None for the run's own.

    Raises:
        UserError: the record is too short, or somebody died in it.
    """
    if told.restarts or len(timeline.lost()):
        raise UserError("timeline: somebody died in this run; a simulated run has no deaths")
    kept_of = as_told((row.utterance, row.entering) for row in sorted(told.rows))
    predicted = simulated(config, train, kept_of, cluster, most=WITHOUT_LIMIT)
    return SequenceComparison(*(Ages.of(t, config) for t in (awake(timeline), predicted)))


def awake(timeline: Timeline) -> Timeline:
    """A timeline without the pauses of its server: what came after one comes so much earlier."""
    if PAUSE not in timeline.kinds:
        return timeline
    spans = timeline.spans
    rests = spans.kind == timeline.kinds.index(PAUSE)
    start_s, end_s = spans.start_s[rests], spans.end_s[rests]

    def moved(time_s: np.ndarray) -> np.ndarray:
        asleep = np.clip(time_s[:, None], start_s, end_s) - start_s
        return time_s - asleep.sum(1)

    kept: Spans = spans.where(~rests)
    rows, decodes = timeline.contributions, timeline.decodes
    return replace(
        timeline,
        folds=replace(timeline.folds, time_s=moved(timeline.folds.time_s)),
        contributions=replace(rows, read_time_s=moved(rows.read_time_s)),
        spans=replace(kept, start_s=moved(kept.start_s), end_s=moved(kept.end_s)),
        decodes=replace(decodes, decode_time_s=moved(decodes.decode_time_s)),
    )


def shown_sequence(found: SequenceComparison) -> Iterator[str]:
    """Lines of a table: recorded, predicted and how they differ."""
    there, ours = found.recorded, found.predicted
    yield from shown(Comparison(there.inner, ours.inner))
    for name, a, b in (("outer", there.outer, ours.outer), ("push", there.push, ours.push)):
        yield _row(f"mean {name} staleness", float(a.mean()), float(b.mean()))
    yield _row("mean outer lag, s", float(there.outer_s.mean()), float(ours.outer_s.mean()))
    for name, a, b in (("outer", there.outer, ours.outer), ("push", there.push, ours.push)):
        distance: Any = ks_2samp(a, b, method="asymp")
        yield f"{name + ', KS distance':24}{'':24}{float(distance.statistic):12.3f}"


def _row(name: str, recorded: float, predicted: float) -> str:
    difference = f"{predicted / recorded - 1.0:+.1%}" if recorded else "-"
    return f"{name:24}{recorded:12.4g}{predicted:12.4g}{difference:>12}"
