"""Training by rollouts as an application: its run files, timing and prediction."""

from __future__ import annotations

from collections.abc import Iterator

from harness.base.settings import build
from harness.rollouts.problems import Problems
from harness.rollouts.rollout_config import RolloutConfig
from harness.rollouts.training import train_rollouts
from harness.simulator import Simulation, Timeline
from harness.simulator.full_run import Whole, steady_rate
from harness.store import Run, Store
from harness.tasks.contract import Application, RunRequest, Say, Watch

__all__ = ["ROLLOUTS"]


class RolloutApplication(Application[RolloutConfig, Problems]):
    """Training by rollouts: see `Application`."""

    config = RolloutConfig
    worker = "generator"
    usual = {"seed": 0}  # noqa: RUF012 (never written to)
    follows = ("format", "device")

    def read(self, asked: RunRequest) -> tuple[RolloutConfig, Problems]:
        """See `Application`."""
        asked.check_keys(self)
        table = {**self.usual, **asked.table, "cluster": asked.cluster(), "device": asked.device}
        config = build(RolloutConfig, table, str(asked.path))
        return config, config.problems

    def load(self, config: RolloutConfig, say: Say) -> Problems:
        """See `Application`."""
        del say
        return config.problems

    def execute(self, config: RolloutConfig, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return train_rollouts(config, store, watch)

    def replay(
        self, config: RolloutConfig, data: Problems, run: Run, store: Store, watch: Watch
    ) -> Run:
        """See `Application`."""
        raise NotImplementedError

    def pieces(self, config: RolloutConfig, data: Problems) -> None:
        """None: problems are made by number."""

    def time(self, config: RolloutConfig, pieces: None, share: float, most: int) -> Whole:
        """See `Application`; lengths are drawn by the protocol's law."""
        del pieces, share
        simulation = Simulation(
            config.cluster, config.protocol, config.workload(), config.workers, config.seed
        )
        timeline = simulation.advance(folds=min(config.updates, most))
        return Whole.from_timeline(timeline, steady_rate(timeline), [config.updates])

    def time_again(
        self, config: RolloutConfig, pieces: None, run: Run, timeline: Timeline
    ) -> Timeline:
        """See `Application`; rollouts have the lengths of the record."""
        raise NotImplementedError

    def describe(self, config: RolloutConfig, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        del share
        protocol = config.protocol
        law = f"{protocol.tokens:g} tokens, {protocol.tokens_law}"
        yield "  lengths of rollouts", law


ROLLOUTS = RolloutApplication()
