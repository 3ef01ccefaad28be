"""Training by rollouts as an application: its run files, timing and prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from harness.base.errors import UserError
from harness.base.registry import find_object
from harness.base.settings import build, setting
from harness.experiment.contract import (
    TASK,
    Application,
    RunRequest,
    Say,
    Table,
    TaskConfig,
    Watch,
    key_in_file,
    name_keys,
)
from harness.rollouts.own import NO_START, OwnProblems, policy_of, problems_of
from harness.rollouts.problems import Addition, Problems
from harness.rollouts.recorded_rollouts import RecordedRollouts, time_record
from harness.rollouts.rollout_config import RolloutConfig
from harness.rollouts.sources import SmallTransformer
from harness.rollouts.training import ROLLOUTS as RECORDED
from harness.rollouts.training import train_rollouts
from harness.simulator import Simulation, Timeline
from harness.simulator.full_run import Whole, steady_rate
from harness.simulator.timeline_file import load_timeline
from harness.store import Run, Store
from harness.store.schema import TIMELINE

__all__ = ["ROLLOUTS"]


@dataclass(frozen=True)
class OwnTable:
    """Keys of ``[task]`` for a policy of the user's; ``policy`` and ``problems`` may be names too.

    Names have the form ``my_module:name``; the module is beside the run file or installed.

    Args:
        sampler: function of the policy, prefixes and numbers in (0, 1) that answers prompts, in
            place of ours.
        reward: function of a prompt and an answer, both lists of tokens.
        test: prompts of the evaluation; without it a fifth of them, drawn at random.
        context: largest number of tokens of prompt and answer of a user's problems; 64 without it.
    """

    sampler: str | None = None
    reward: str | None = None
    test: str | None = None
    context: int | None = setting(None, at_least=2, at_most=100_000)


class RolloutApplication(Application[RolloutConfig]):
    """Training by rollouts: see `Application`."""

    config = RolloutConfig
    worker = "generator"
    tables = (OwnTable,)
    follows = ("device",)

    def read(self, asked: RunRequest) -> RolloutConfig:
        """See `Application`."""
        table = {"seed": 0, **asked.table}
        # Taken out of the table here, since no field of the configuration has their names.
        own_names = {entry.name for entry in fields(OwnTable)} & table.keys()
        own_keys = {name: table.pop(name) for name in own_names}
        table |= {"cluster": asked.cluster(), "device": asked.device}
        if own_keys or any(isinstance(table.get(name), str) for name in ("policy", "problems")):
            with name_keys(asked.task):
                table |= _find_own(asked, own_keys, table)
        return build(RolloutConfig, table, str(asked.path), named=key_in_file)

    def restore(
        self, run: Run, table: Table, where: str, named: TaskConfig | None = None
    ) -> RolloutConfig:
        """See `Application`.

        Raises:
            UserError: its policy or its problems were a user's own.
        """
        for name in ("policy", "problems"):
            if str(table.get(name, {}).get("is", "")).startswith("Own"):
                raise UserError(f"{run.dir}: {name}: a user's own; allowed: one of lagbench")
        return super().restore(run, table, where, named)

    def execute(self, config: RolloutConfig, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return train_rollouts(config, store, watch)

    def replay(self, config: RolloutConfig, recorded: Run, store: Store, watch: Watch) -> Run:
        """See `Application`."""
        timeline = load_timeline(recorded.path(TIMELINE))
        executor = partial(RecordedRollouts, timeline=timeline)
        return train_rollouts(config, store, watch, executor, {"by": "a record"})

    def pieces(self, config: RolloutConfig, say: Say) -> None:
        """None: problems are made by number."""

    def time(self, config: RolloutConfig, pieces: None, share: float, most: int) -> Whole:
        """See `Application`; lengths are drawn by the protocol's law."""
        simulation = Simulation(
            config.cluster, config.protocol, config.workload(), config.workers, config.seed
        )
        timeline = simulation.advance(folds=min(config.updates, most))
        return Whole.from_timeline(timeline, steady_rate(timeline), [config.updates])

    def time_again(
        self, config: RolloutConfig, pieces: None, run: Run, timeline: Timeline
    ) -> Timeline:
        """See `Application`; rollouts have the lengths of the record."""
        return time_record(config, timeline, run.path(RECORDED))

    def describe(self, config: RolloutConfig, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        protocol = config.protocol
        law = f"{protocol.tokens:g} tokens, {protocol.tokens_law}"
        yield "  lengths of rollouts", law


def _find_own(request: RunRequest, names: Table, table: Table) -> Table:
    """The user's policy and problems, and their start.

    Raises:
        UserError: a name is not found, or prompts without answers have a supervised start.
    """
    texts = build(OwnTable, names, str(request.path), TASK)

    def find(key: str, name: object) -> Any:
        if not isinstance(name, str) or (key == "problems" and ":" not in name):
            return name
        return find_object(name, request.task + key, request.path.parent)

    policy: Any = table.get("policy", SmallTransformer())
    if isinstance(policy, str) or texts.sampler:
        policy = policy_of(find("policy", policy), find("sampler", texts.sampler))
    source: Any = table.get("problems", Addition())
    if not isinstance(source, str):
        return {"policy": policy}
    problems = find("problems", source)
    problems = problems() if callable(problems) and not isinstance(problems, Problems) else problems
    parts = find("reward", texts.reward), find("test", texts.test)
    problems = problems_of(problems, policy, *parts, texts.context)
    if not isinstance(problems, OwnProblems):
        return {"policy": policy, "problems": problems}
    if "start" in table:
        raise UserError(NO_START)
    return {"start": {"steps": 0}, "policy": policy, "problems": problems}


ROLLOUTS = RolloutApplication()
