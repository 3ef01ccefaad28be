"""Sequence training on real processes: training as it is, on another executor.

The start, the measurements, the rate's fall, checkpoints and the end are those of every sequence
training; when something happens is up to real processes, or to their record.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from data_synth.corpus import Corpus
from harness.errors import UserError
from harness.execution.processes.replica import kept_waiting, pace_of, send_home
from harness.execution.processes.replicas import Replicas
from harness.execution.processes.sequence_executor import SequenceExecutor
from harness.execution.processes.sequence_recorder import TOLD
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.executed import Watch
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.sequence_loop import SequenceTraining
from harness.execution.training.sequence_run import Way, train_sequence
from harness.execution.training.setup import Setup
from harness.simulator import Timeline
from harness.store import Run, RunWriter, Store

MadeBy = Callable[[SequenceConfig, Setup, Tensor], SequenceExecutor]
"""Makes an executor from a configuration, its parts and the parameters ``[P]`` it starts from."""


@dataclass
class Executed(SequenceTraining[SequenceExecutor]):
    """Shuffling none or on the fly, executed elsewhere.

    Args:
        made_by: makes the executor.
    """

    made_by: MadeBy = field(kw_only=True)

    def _simulation(self) -> SequenceExecutor:
        return self.made_by(self.config, self.setup, self.initial)

    def _restore(self, state: Arrays) -> None:
        del state

    def _prepare(self) -> None:
        """Nothing: the executor is all there is."""

    @property
    def model(self) -> Tensor:
        """The server's parameters [P'] of the trained half."""
        return self.simulation.model

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, as the server was told."""
        return self.position.decoded / len(self.train)

    def _advance(self) -> bool:
        segment, seen, ended = self.simulation.advance(self.rate, self._next_due())
        self.segments.append(segment)
        self._count(seen)
        self._evaluate_when_due()
        return not ended

    def _next_due(self) -> int:
        """How many utterances are told of when the next evaluation is due."""
        return -(-len(self.position.measured) * len(self.train) // self.config.evaluations)

    def _capture(self) -> tuple[Arrays, Facts]:
        return self.simulation.capture()

    def _reinstate(self, arrays: Arrays, facts: Facts) -> None:
        self.simulation.reinstate(arrays, facts)

    def summary(self) -> dict[str, Any]:
        """As of every sequence training, and the kept frames that were lost in deaths."""
        return {**super().summary(), "lost_frames": self.simulation.told.lost_frames}

    def lags(self, timeline: Timeline) -> dict[str, float]:
        """See `SequenceTraining`; after a server's death nobody knows whose frames were lost."""
        known = super().lags(timeline)
        if not self.simulation.told.restarts:
            return known
        return {name: value for name, value in known.items() if not name.startswith("outer")}

    def attachments(self) -> dict[str, Arrays]:
        """What a replay needs besides the timeline."""
        start = self.initial.cpu().contiguous().numpy()
        return {TOLD: {**self.simulation.told.arrays(), "start": start}}


def check(config: SequenceConfig) -> None:
    """Whether a configuration can be trained on real processes.

    Raises:
        UserError: it cannot.
    """
    if config.shuffling == "full":
        raise UserError(
            "shuffling: 'full' is not allowed on real processes; allowed: none, on the fly"
        )
    if config.shards != 1:
        raise UserError(f"shards: {config.shards} is not allowed on real processes; allowed: 1")


def train_on_processes(
    config: SequenceConfig,
    corpus: Corpus,
    store: Store,
    watch: Watch,
    say: Callable[[str], None],
    paced: bool,
) -> Run:
    """The finished run of a configuration, with this process as its server.

    Raises:
        NoWorkersLeft: every replica is dead.
    """
    servers: list[Replicas] = []

    def made_by(config: SequenceConfig, setup: Setup, initial: Tensor) -> Replicas:
        waiting.close()
        server = Replicas(config, setup, initial, pace_of(config) if paced else None, say)
        servers.append(server)
        return server

    executed = {"by": "processes", "paced": paced}
    with ExitStack() as waiting:
        waiting.enter_context(kept_waiting(config.replicas))
        run = train_sequence(config, corpus, store, watch, executed_by(made_by), executed)
    for server in servers:
        server.close()
    if not servers:
        send_home(config.replicas)
    return run


def executed_by(made_by: MadeBy) -> Way:
    """The way of training on an executor."""

    def way(
        config: SequenceConfig, corpus: Corpus, initial: Tensor, writer: RunWriter, watch: Watch
    ) -> Executed:
        return Executed(config, corpus, initial, writer, watch, made_by=made_by)

    return way
