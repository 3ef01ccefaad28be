"""Replay of a recorded training by rollouts: the versions, lengths and batches on record.

All tokens of a version are sampled together, since no simulation waits for their number; they are
the same bits as one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from harness.experiment.experiment import AnyExperiment
from harness.rollouts.executor import RolloutExecutor, SampleRequest, Update
from harness.rollouts.records import TRAINED, rollout_rows, token_rows
from harness.rollouts.rollout_config import simulation_of
from harness.rollouts.training import UNDER_WAY, UNDER_WAY_TOKENS
from harness.simulator import Timeline, concat


class RecordedRollouts(RolloutExecutor):
    """Executor that samples and trains as a timeline says; see `RolloutExecutor`.

    Args:
        config: configuration of the run.
        initial: the parameters ``[P]`` that it starts from.
        timeline: the recorded timeline.
    """

    def __init__(self, config: AnyExperiment, initial: Tensor, timeline: Timeline) -> None:
        super().__init__(config, initial)
        self._timeline, self._cut = timeline, 0
        self._known, self._stretches = rollout_rows(timeline), token_rows(timeline)
        pairs = zip(self._known.prompt.tolist(), self._known.attempt.tolist(), strict=True)
        self._prompts = dict(zip(self._known.rollout.tolist(), pairs, strict=True))

    @property
    def now_s(self) -> float:
        """The recorded time of the last fold."""
        version = self.server.version
        return float(self._timeline.folds.time_s[version - 1]) if version else 0.0

    def advance(self) -> Update:
        """See `RolloutExecutor`; the whole timeline comes with the last fold."""
        version, rows = self.server.version, self._known
        stretches = self._stretches.where(self._stretches.version == version)
        pairs = zip(stretches.rollout.tolist(), stretches.first.tolist(), strict=True)
        requests = [(rollout, start) for rollout, start in pairs if rollout in self._prompts]
        self.sample([SampleRequest(r, *self._prompts[r], version, start) for r, start in requests])
        is_now = (rows.fate == TRAINED) & (rows.trained_version == version)
        end = int(np.flatnonzero(is_now)[-1]) + 1
        is_last = version + 1 == len(self._timeline.folds)
        between = np.arange(len(rows)) >= self._cut
        before = between & (np.arange(len(rows)) < end)
        self.forget(rows.where(before & (rows.fate != TRAINED)))
        figures = self.train(rows.where(is_now))
        self._cut = end
        if is_last:
            self.forget(rows.where(np.arange(len(rows)) >= end))
        self.versions = {self.server.version: self.server.model}
        return Update(self._timeline if is_last else Timeline(), figures)

    def state(self) -> dict[str, Any]:
        """No state: an interrupted replay starts again from the beginning."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `state`."""
        raise ValueError("a replay cannot be resumed")


def time_record(config: AnyExperiment, timeline: Timeline, recorded: Any) -> Timeline:
    """Simulate the cluster again, with rollouts of the lengths on record.

    The length that a rollout had at last is longer than what it had at any exchange of weights, so
    it may be told at once.

    Args:
        config: configuration of the run, on the cluster to simulate.
        timeline: its recorded timeline.
        recorded: path of the record of its rollouts.
    """
    rows, columns = rollout_rows(timeline), load_file(recorded)
    lengths = dict(zip(rows.rollout.tolist(), rows.tokens.tolist(), strict=True))
    pairs = (columns[name].tolist() for name in (UNDER_WAY, UNDER_WAY_TOKENS))
    lengths |= dict(zip(*pairs, strict=True))
    simulation, segments = simulation_of(config), list[Timeline]()
    while simulation.version < len(timeline.folds):
        before = simulation.version
        segments.append(simulation.advance(folds=1))
        queries = simulation.asked()
        if simulation.version == before and len(queries.rollout):
            answers = [
                max(lengths.get(r, 0), k + 1)
                for r, k in zip(queries.rollout.tolist(), queries.kept.tolist(), strict=True)
            ]
            simulation.answer(queries.rollout, np.array(answers, np.int64))
    return concat(segments)
