"""Whether a training by rollouts collapses, and after how many updates.

A training has collapsed at the first probe at which the policy's sampled answers earn at most a
given share of the reward before training. Every probe asks the same prompts with the same random
numbers, so that what differs is the policy alone, at a known version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.experiment.contract import Configuration, Progress, Watch
from harness.experiment.experiment import AnyExperiment, plain
from harness.experiment.task import one_thread
from harness.rollouts.executor import RolloutExecutor
from harness.rollouts.rollout_config import start_of
from harness.rollouts.sampling import score_samples
from harness.rollouts.starting import initial
from harness.rollouts.training import DECIDING
from harness.store import Run, RunWriter, Store

APART = 5 << 40
"""Number of the first prompt of a probe; training has those before, from 0."""


@dataclass(frozen=True)
class StabilityConfig(Configuration):
    """A training that ends when it collapses.

    Args:
        training: the training; it ends after its updates if it has not collapsed.
        share: of the reward before training; one that is not larger is a collapse.
        every: updates from one probe to the next.
        probe: prompts of a probe, with one sampled answer each.
    """

    training: AnyExperiment
    share: float = 0.5
    every: int = 4
    probe: int = 256

    @property
    def seed(self) -> int:
        """Seed of training and probes."""
        return self.training.seed

    @property
    def effort(self) -> float:
        """See `Configuration`."""
        return self.training.effort

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        return plain(self) | {"seed": self.seed}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`.

        ``reward`` is logged at each probe. The summary has ``reward_before`` and the last
        ``reward``, the ``updates`` done, ``stable``, 1 or 0, ``collapse`` if it is not, which is
        then the same number as ``updates``, and ``clipped``, the mean over updates of the share of
        tokens without a gradient because of the loss's clip: of those with positive and of those
        with negative advantages.
        """

        def execute(writer: RunWriter) -> None:
            with one_thread():
                executor = RolloutExecutor(
                    self.training, initial(start_of(self.training), store, watch)
                )
                writer.finish("done", _train(self, executor, writer, watch))

        return store.obtain(self.to_dict(), execute)


def _train(
    config: StabilityConfig, executor: RolloutExecutor, writer: RunWriter, watch: Watch
) -> dict[str, float]:
    """Train to the collapse or the end; a figure that is not finite is a collapse, too."""
    problems, updates = executor.problems, config.training.task.updates
    prompts = [problems.train(APART + k, config.seed) for k in range(config.probe)]

    def probe(count: int) -> float:
        policy = executor.weights.load(executor.server.model)
        reward = score_samples(policy, problems, prompts, config.seed)
        share = count / max(1, updates)
        writer.log("reward", reward, fold=count, time_s=executor.now_s, epoch=share)
        return reward

    before = reward = probe(0)
    figures, done, has_collapsed = list[dict[str, float]](), 0, False
    while done < updates and not has_collapsed:
        figures.append(executor.advance().figures)
        done += 1
        is_finite = all(np.isfinite(figures[-1].get(name, 0.0)) for name in DECIDING)
        if done % config.every == 0 or done == updates or not is_finite:
            reward = probe(done)
            has_collapsed = reward <= config.share * before or not is_finite
            watch(Progress(writer.hash, done / updates, 1.0, f"reward {reward:.3f}"))
    clipped = (_mean(figures, "clipped_positive") + _mean(figures, "clipped_negative")) / 2.0
    summary = {"reward_before": before, "reward": reward, "updates": done, "clipped": clipped}
    return summary | ({"stable": 0, "collapse": done} if has_collapsed else {"stable": 1})


def _mean(figures: list[dict[str, float]], name: str) -> float:
    """Mean of a figure over the updates that have it: one without a gradient has fewer."""
    values = [update[name] for update in figures if name in update]
    return float(np.mean(values)) if values else 0.0
