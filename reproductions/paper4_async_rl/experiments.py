"""Every run of paper 4 as a complete configuration, and the presets of each scale.

A cell is a loss and an allowance eta. It is trained at the rate that is kept for all cells, and at
its own rate, which was searched on development seeds (``rates.toml``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from harness.algorithms.descent import Momentum
from harness.algorithms.schedules import Constant
from harness.algorithms.stale import ServerDescent
from harness.base.settings import load_toml
from harness.experiment.contract import Configuration
from harness.experiment.experiment import Experiment
from harness.experiment.timing import TimingConfig
from harness.rollouts.losses import Decoupled, Loss, Naive
from harness.rollouts.problems import Addition
from harness.rollouts.protocol import Rollouts
from harness.rollouts.rollout_config import WarmStart, rollouts_of
from harness.rollouts.sources import SmallTransformer
from harness.rollouts.stability import StabilityConfig
from harness.rollouts.stale_gradients import StaleGradientConfig
from harness.rollouts.task import Policy
from harness.simulator.cluster import Cluster
from reproductions.paper import Differences, Subject
from reproductions.predictions.allowances import AllowanceConfig
from reproductions.staleness_laws import BiasGrid, CollapseGrid

FOLDER = Path(__file__).parent
REPORTED = load_toml(FOLDER / "reported.toml")
RATES: Mapping[str, Mapping[str, float]] = load_toml(FOLDER / "rates.toml")
"""Searched rates by loss and allowance."""

KEPT = 3e-4
"""The kept rate: the best one of eta = 0 on development seeds."""
ETAS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf)
UNLIMITED = 1e9
"""Allowance of the protocol without one; ``room`` limits the groups all the same."""
LOSSES: dict[str, Loss] = {"naive": Naive(), "decoupled": Decoupled()}
PLANS = {"1.5 B, 16 nodes": "hours-1.5b.toml", "7 B, 24 nodes": "hours-7b.toml"}
PUBLICATIONS = ("drain", "between", "in-flight")
# Laws of staleness and rate.
BIAS = BiasGrid((7e-5, 1.4e-4), (2, 4, 8))
COLLAPSE = CollapseGrid((2, 8, 24), (1.5e-3, 3e-3), (6e-3, 1.2e-2, 2.4e-2))


@dataclass(frozen=True)
class Preset:
    """Settings of one scale.

    Args:
        seeds: default number.
        policy: the policy.
        updates: steps of the trainer.
        batch: groups of a step, and rollouts of a group.
        held_out: held-out problems.
        folds: steps of a run that is timed only.
        draws: of a plan of hours.
        laws: groups of a block of gradients, and largest number of updates until a collapse.
    """

    seeds: int
    policy: SmallTransformer
    updates: int
    batch: tuple[int, int]
    held_out: int
    folds: int
    draws: int
    laws: tuple[int, int]


SMALL = SmallTransformer(32, 2, 4)
PRESETS = {
    "smoke": Preset(2, SMALL, 12, (8, 8), 200, 30, 9, (2, 8)),
    "laptop": Preset(9, SMALL, 120, (16, 16), 1000, 40, 41, (20, 150)),
    "overnight": Preset(8, SMALL, 600, (16, 16), 2000, 200, 201, (160, 300)),
}


def format_eta(eta: float) -> str:
    """An allowance as tables write it."""
    return f"{eta:g}"


def cell(loss: str, eta: float, searched: bool = False) -> str:
    """The setting of a training. Without an allowance the losses are one, which is naive's name."""
    name = "naive" if eta == 0.0 else loss
    return f"{name}, η = {format_eta(eta)}{', own rate' if searched else ''}"


def timing_name(eta: float) -> str:
    """The setting of a simulation without training."""
    return f"time, η = {format_eta(eta)}"


def publication_name(publish: str) -> str:
    """The setting of a simulation with one kind of publication, at an allowance of four."""
    return f"time, {publish}"


def hours(plan: str) -> str:
    """The setting of a plan of hours."""
    return f"hours, {plan}"


def rate_of(loss: str, eta: float, searched: bool) -> float:
    """The learning rate of a cell."""
    name = "naive" if eta == 0.0 else loss
    return RATES[name].get(format_eta(eta), KEPT) if searched else KEPT


def experiments(subject: Subject, seed: int) -> dict[str, Configuration]:
    """The configurations of one seed; a cell whose own rate is the kept one is the same run."""
    runs: dict[str, Configuration] = {}
    for loss, eta, searched in product(LOSSES, ETAS, (False, True)):
        rate = rate_of(loss, eta, searched)
        runs[cell(loss, eta, searched)] = training(subject, seed, loss, eta, rate)
    runs |= {timing_name(eta): _timing(subject, seed, eta, "in-flight") for eta in ETAS}
    runs |= {publication_name(name): _timing(subject, seed, 4.0, name) for name in PUBLICATIONS}
    runs |= dict(_law_trainings(subject, seed))
    draws = PRESETS[subject.scale].draws
    # one set of draws for all seeds: the draws are what scatters
    return runs | {
        hours(name): AllowanceConfig(FOLDER / path, draws, 0) for name, path in PLANS.items()
    }


def training(subject: Subject, seed: int, loss: str, eta: float, rate: float) -> Experiment[Policy]:
    """One training."""
    preset = PRESETS[subject.scale]
    batch, group = preset.batch
    # Generation of a batch takes about half as long as a step of the trainer, so that staleness
    # grows with what is allowed.
    protocol = Rollouts(
        slots=batch * group // 4, decode_s=0.02, sequence_s=1e-4, length_scale=200, group=group,
        batch=batch, rule="admission", eta=min(eta, UNLIMITED), room=33, publish="in-flight",
        train_s=100.0, token_s=0.0, sync_s=1.0,
    )  # fmt: skip
    task = Policy(
        policy=preset.policy,
        problems=Addition(2, 0.0, least=1),
        loss=LOSSES["naive" if eta == 0.0 else loss],
        updates=preset.updates,
        held_out=preset.held_out,
        start=WarmStart(least=0.1, most=0.6),
    )
    return Experiment(
        task=task,
        algorithm=ServerDescent(),
        schedule=Constant(rate),
        protocol=protocol,
        evaluations=4,
        cluster=Cluster.of(4, step_s=1.0),
        workers=4,
        seed=seed,
        device=subject.device,
    )


def _law_trainings(subject: Subject, seed: int) -> Iterator[tuple[str, Configuration]]:
    """The settings of the grids, by name."""
    groups, updates = PRESETS[subject.scale].laws
    for rate in BIAS.rates:
        base = training(subject, seed, "naive", 0.0, rate)
        protocol = rollouts_of(base)
        rollouts = protocol.batch * protocol.group
        # A group's weight is a product over its rollouts: those of small groups scatter less.
        base = base.vary(protocol=replace(protocol, group=4, batch=rollouts // 4))
        yield BIAS.name(rate), StaleGradientConfig(base, BIAS.ages, (16, 20, 24, 28), 16, groups)
    for eta, rate in product(COLLAPSE.etas, COLLAPSE.rates):
        base = training(subject, seed, "naive", eta, rate)
        protocol = replace(
            rollouts_of(base), group=8, batch=8, slots=64 // base.workers, room=eta + 2
        )
        plain = ServerDescent(Momentum(momentum=0.0))
        base = base.vary(protocol=protocol, algorithm=plain, updates=updates)
        yield COLLAPSE.name(eta, rate), StabilityConfig(base, every=2)


def _timing(subject: Subject, seed: int, eta: float, publish: str) -> TimingConfig:
    """A simulation of the paper's batch with answers of heavy-tailed lengths."""
    group = REPORTED["paper"]["group"]
    protocol = Rollouts(
        slots=512, decode_s=0.015, sequence_s=6e-5, group=group,
        batch=REPORTED["paper"]["rollouts"] // group, eta=min(eta, UNLIMITED), room=24,
        publish=publish, tokens=3000.0, tokens_cv=1.0, most_tokens=27_000, train_s=60.0,
        token_s=0.0, sync_s=3.0,
    )  # fmt: skip
    cluster, folds = Cluster.of(12, step_s=1.0), PRESETS[subject.scale].folds
    return TimingConfig(cluster, 12, (1, 1), 1, folds, seed, protocol)


def count_parameters(policy: SmallTransformer) -> int:
    """Parameters of a policy over the tokens of additions."""
    return sum(p.numel() for p in policy.make(19, 21, 0).parameters())


def differences(subject: Subject) -> Differences:
    """Differences from the paper, as rows of ``what``, ``paper`` and ``here``."""
    preset = PRESETS[subject.scale]
    count = count_parameters(preset.policy)
    batch = preset.batch[0] * preset.batch[1]
    return [
        ("policy", "1.5 B and 7 B parameters", f"a transformer of {count:,} parameters"),
        ("problems", "mathematics; AIME24 and AIME25 are the score",
         "column addition of one or two digits; greedy answers to "
         f"{preset.held_out:,} held-out problems"),
        ("start", "a distilled model: 29.3% of AIME24",
         "supervised until a tenth of sampled answers is right"),
        ("batch", "2,048 trajectories, 16 a prompt", f"{batch}, {preset.batch[1]} a prompt"),
        ("updates", "1,000", f"{preset.updates}"),
        ("rate", "2e-5 for all", f"AdamW; {KEPT:g} for all, and one searched for each cell"),
        ("seeds", "not stated", f"{preset.seeds}"),
        ("no allowance (infinite η)", "all that is generated waits",
         "33 batches in flight and waiting at most"),
        ("clusters", "H800 nodes", "simulated; hours from a plan with the synchronous hours alone"),
    ]  # fmt: skip
