"""What executes a run's contributions and folds, and says when they happened.

Training decides at boundaries and leaves the way between them to an executor: a simulated
cluster whose timeline is replayed on one device, a recorded timeline, or real workers.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Server
from harness.execution.data.minibatches import Minibatches
from harness.execution.replay import state as resume
from harness.execution.replay.sharded import ShardedReplay
from harness.execution.replay.stale import StaleReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.config import RunConfig
from harness.simulator import Timeline


class Executor(Protocol):
    """The workers and the server of one run."""

    server: Server

    @property
    def now_s(self) -> float:
        """Seconds on the run's clock."""
        ...

    @property
    def loss(self) -> float:
        """Loss of everything computed so far, summed over frames, in nats."""
        ...

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """Execute so many further folds at one rate.

        Args:
            folds: how many.
            drain: whether nothing is to be in flight afterwards.
            handing_out: contributions that may be handed out, counted from the first of these
                folds; None for as many as there are folds.
            rate: of folds and local steps.
        """
        ...

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Let everybody wait, idle, while something else takes so long on the cluster."""
        ...

    def begin_stage(self) -> None:
        """The minibatches have begun their next stage, and nothing is in flight."""
        ...

    def capture(self) -> tuple[Arrays, Facts]:
        """Everything a resume needs."""
        ...

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        ...


class Simulated:
    """A simulated cluster, whose every segment is replayed at once.

    Args:
        config: what is run.
        corpus: what it is trained on.
        model: initial parameters ``[P]``.
        minibatches: the data.
    """

    def __init__(
        self, config: RunConfig, corpus: Corpus, model: Tensor, minibatches: Minibatches
    ) -> None:
        self._config, self._minibatches = config, minibatches
        self.simulation = config.simulation(corpus.split("train"))
        algorithm = config.algorithm
        parts = algorithm, config.network(corpus), algorithm.start(model), minibatches.of
        self.replay = (
            ShardedReplay(*parts, config.shards)
            if config.shards > 1
            # Who comes back to rounds remembers what it knew: each worker by itself.
            else StaleReplay(*parts, slots=config.under_way, alone=config.missed_rounds)
        )
        self.server = self.replay.server

    @property
    def now_s(self) -> float:
        """Simulated seconds."""
        return self.simulation.now_s

    @property
    def loss(self) -> float:
        """See `Executor`."""
        return self.replay.loss.item()

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`."""
        segment = self.simulation.advance(folds=folds, drain=drain, handing_out=handing_out)
        self.replay.run(segment, rate)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """See `Executor`."""
        return self.simulation.pause(seconds, kind)

    def begin_stage(self) -> None:
        """See `Executor`."""
        self.replay.begin_pass()
        self.simulation.change(workload=self._config.workload(self._minibatches.stage))

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        arrays, facts = self.replay.capture()
        simulation = resume.prefixed(self.simulation.state(), "simulation/")
        return {**resume.prefixed(arrays, "replay/"), **simulation}, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.replay.reinstate(resume.part(arrays, "replay/"), facts)
        self.simulation = self.simulation.restored(resume.part(arrays, "simulation/"))
