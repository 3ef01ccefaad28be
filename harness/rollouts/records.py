"""Records of rollouts, simulated and stored, and the questions that ask for their lengths.

The protocol `harness.rollouts.protocol.Rollouts` and an application that samples the rollouts agree
on numbers alone. Groups are numbered in the order in which they begin; rollout ``g · G + m`` is
member m of group g. Prompts are numbered in the order in which they are first handed out. If a
group is thrown away and its prompt is queued again, the next group of the prompt has a new number
and one more attempt.

A fold is a step of the trainer with a batch of B groups: fold i makes version i + 1. Its rows in
`Timeline.contributions`, and its rows in the table ``rollouts``, are the trained rollouts in the
order in which they are trained: group by group, and in each group by member. With staleness 0 this
is the order of the numbers, as in a synchronous loop.

An application calls `Rollouts.asking`. A question is then asked whenever a rollout begins to decode
and, with in-flight publication, whenever new weights reach a rollout in flight: continued from its
first ``kept`` tokens with the weights of version ``version``, how many tokens has the rollout in
all? A segment ends (`Simulation.advance` returns less than was asked for) before the first event
that needs an answer; all questions that are open by then are asked together. Every one must be
answered, with at least ``kept + 1`` tokens. A question replaces an earlier one of the same rollout,
even one that was not answered: tokens beyond ``kept`` are then forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from harness.simulator.timeline import Table, Timeline
from harness.store import Run

TRAINED, TOO_OLD = range(2)
"""Fates of rollouts: trained on, or thrown away because the group was too old."""


class LengthQueries(NamedTuple):
    """[U] rollouts with a number of tokens that is asked for, by number of the rollout.

    Attributes:
        rollout: number of the rollout, group · G + member.
        prompt: number of the prompt, in order of handing out.
        attempt: number of earlier groups of this prompt, which were thrown away.
        version: version of the weights that sample from here on.
        kept: number of tokens that stay as they are; 0 when a rollout begins.
    """

    rollout: NDArray[np.int64]
    prompt: NDArray[np.int64]
    attempt: NDArray[np.int64]
    version: NDArray[np.int64]
    kept: NDArray[np.int64]


def _ints() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _floats() -> NDArray[np.float64]:
    return np.zeros(0, np.float64)


@dataclass(frozen=True, eq=False)
class RolloutRows(Table):
    """[N] rollouts with a known fate, in the order of the instants of their fates.

    Trained rollouts are in the order of training (see above). Rollouts of one group have the same
    fate; members of a thrown-away group that had not begun have no row.

    Attributes:
        rollout, prompt, attempt: see `LengthQueries`.
        group: number of the group, in order of beginning.
        member: index in the group.
        generator: index of the generator, a worker of the cluster.
        slot: index of the generator's slot.
        start_s: instant at which decoding began.
        end_s: instant of the last token; nan if it was thrown away before.
        left_s: instant at which its slot was free again, after the environment; nan likewise.
        ready_s: instant at which the reward was known; nan likewise.
        taken_s: instant at which the trainer began the step with it, or at which it was thrown
            away.
        oldest_version: version that the first token was sampled with.
        mean_version: mean over the tokens of the version they were sampled with.
        last_version: version that the last token was sampled with.
        trained_version: version at the instant ``taken_s``, so that its staleness by rollout is
            ``trained_version - oldest_version``.
        tokens: number of tokens; if it was thrown away in flight, the length it would have had,
            or 0 if that was never told.
        decoded: number of tokens decoded.
        fate: `TRAINED` or `TOO_OLD`.
    """

    rollout: NDArray[np.int64] = field(default_factory=_ints)
    group: NDArray[np.int64] = field(default_factory=_ints)
    prompt: NDArray[np.int64] = field(default_factory=_ints)
    member: NDArray[np.int64] = field(default_factory=_ints)
    attempt: NDArray[np.int64] = field(default_factory=_ints)
    generator: NDArray[np.int64] = field(default_factory=_ints)
    slot: NDArray[np.int64] = field(default_factory=_ints)
    start_s: NDArray[np.float64] = field(default_factory=_floats)
    end_s: NDArray[np.float64] = field(default_factory=_floats)
    left_s: NDArray[np.float64] = field(default_factory=_floats)
    ready_s: NDArray[np.float64] = field(default_factory=_floats)
    taken_s: NDArray[np.float64] = field(default_factory=_floats)
    oldest_version: NDArray[np.int64] = field(default_factory=_ints)
    mean_version: NDArray[np.float64] = field(default_factory=_floats)
    last_version: NDArray[np.int64] = field(default_factory=_ints)
    trained_version: NDArray[np.int64] = field(default_factory=_ints)
    tokens: NDArray[np.int64] = field(default_factory=_ints)
    decoded: NDArray[np.int64] = field(default_factory=_ints)
    fate: NDArray[np.int64] = field(default_factory=_ints)


@dataclass(frozen=True, eq=False)
class TokenRows(Table):
    """[S] stretches of tokens of one version, in the order of their beginnings.

    A stretch ends where the next one of the same rollout begins, or with the rollout. One with the
    same first token as the next has no token.

    Attributes:
        rollout: number of the rollout.
        first: index of its first token in the rollout.
        version: version of the weights that sampled it.
        time_s: instant at which these weights began.
    """

    rollout: NDArray[np.int64] = field(default_factory=_ints)
    first: NDArray[np.int64] = field(default_factory=_ints)
    version: NDArray[np.int64] = field(default_factory=_ints)
    time_s: NDArray[np.float64] = field(default_factory=_floats)


def rollout_rows(timeline: Timeline) -> RolloutRows:
    """The rollouts with a known fate of a timeline, simulated or loaded."""
    table = timeline.own.get("rollouts")
    return RolloutRows() if table is None else RolloutRows(**table.columns())


ROLLOUTS = "rollouts.safetensors"
"""Attached file of a run: of each rollout with a known fate its prompt, difficulty, reward, tokens,
fate and the version at that instant."""
Record = Mapping[str, NDArray[Any]]
"""The columns of `ROLLOUTS`."""


def load_record(run: Run) -> Record:
    """Read the record of a run's rollouts.

    Raises:
        UserError: the run has no record, or a damaged one.
    """
    return load_file(run.path(ROLLOUTS))


def figures_of(run: Run) -> dict[str, Any]:
    """A run's summary, with ``thrown_away/D``: the share thrown away of difficulty D.

    Raises:
        UserError: see `load_record`.
    """
    shares = share_thrown_away(load_record(run))
    return run.summary | {f"thrown_away/{level}": share for level, share in shares.items()}


def share_thrown_away(record: Record) -> dict[int, float]:
    """Share of rollouts thrown away of each difficulty; 1 where none was trained on.

    Example:
        >>> rollouts = {"difficulty": np.array([1, 1, 2]), "fate": np.array([0, 1, 1])}
        >>> share_thrown_away(rollouts)
        {1: 0.5, 2: 1.0}
    """
    values, places = np.unique(record["difficulty"], return_inverse=True)
    gone = np.bincount(places, weights=record["fate"] != TRAINED)
    shares = gone / np.bincount(places)
    return dict(zip(values.tolist(), shares.tolist(), strict=True))
