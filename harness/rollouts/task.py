"""Training by rollouts as a task: its settings, run files, calls, timing and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, cast

from harness.algorithms.descent import AdamW
from harness.algorithms.schedules import Constant
from harness.algorithms.stale import ServerDescent
from harness.base.errors import UserError, name_error
from harness.base.registry import find_object
from harness.base.settings import build, name_keys, setting
from harness.experiment.contract import TASK, RunRequest, Table, Watch, ignore
from harness.experiment.experiment import AnyExperiment, Experiment
from harness.experiment.task import Judged, Opened, OwnLoop, one_thread
from harness.rollouts.losses import Decoupled, Loss
from harness.rollouts.own import NO_START, OwnProblems, loss_of, policy_of, problems_of
from harness.rollouts.problems import Addition, Problems
from harness.rollouts.protocol import Rollouts
from harness.rollouts.rollout_config import WarmStart, start_of
from harness.rollouts.sources import PolicySource, SmallTransformer
from harness.rollouts.starting import initial
from harness.rollouts.training import RolloutTraining
from harness.simulator.cluster import Cluster, Workload
from harness.simulator.protocols.contract import TimingProtocol
from harness.store import Run, RunWriter, Store


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


COUNTS = {"workers": 1, "evaluations": 4}
"""Defaults of fields of an experiment, where a run file or call has none."""


@dataclass(frozen=True, kw_only=True)
class Policy(OwnLoop):
    """A policy that learns from rewarded rollouts, as a task.

    Of its experiment, workers are generators of the cluster. The protocol is `Rollouts`:
    generators, buffer and trainer, with groups, batch and optimizer steps. The algorithm is
    `ServerDescent`, whose optimizer is the trainer's, at a constant rate. There is one pass;
    progress is a share of the updates.

    Args:
        policy: the policy that is trained.
        problems: the problems, which reward its answers.
        loss: the policy-gradient loss.
        updates: steps of the trainer.
        temperature: of sampling, and of the probabilities that are learnt.
        even: whether groups that are all right or all wrong are trained on; their advantages are
            zero, but their tokens count in the mean.
        clip: largest norm of a gradient; a larger one is scaled to it. Without it none is.
        held_out: number of held-out problems.
        start: the supervised training that it starts from.

    Raises:
        UserError: settings that do not go together.
    """

    kind: ClassVar[str] = "rollouts"
    worker: ClassVar[str] = "generator"
    protocol: ClassVar[type[TimingProtocol] | None] = Rollouts
    tables: ClassVar[Sequence[type[Any]]] = (OwnTable,)
    usual: ClassVar[Mapping[str, Any]] = {
        "algorithm": {"is": "ServerDescent"},
        "schedule": {"is": "Constant", "rate": 2e-4},
        "protocol": {},
        **COUNTS,
    }

    policy: PolicySource = field(default_factory=SmallTransformer)
    problems: Problems = field(default_factory=Addition)
    loss: Loss = field(default_factory=Decoupled)
    updates: int = setting(100, at_least=0, at_most=10_000_000)
    temperature: float = setting(1.0, at_least=1e-3, at_most=1e3)
    even: bool = False
    clip: float | None = setting(None, above=0.0)
    held_out: int = setting(500, at_least=1, at_most=1_000_000)
    start: WarmStart = field(default_factory=WarmStart)

    @classmethod
    def read(cls, request: RunRequest, keys: Table) -> tuple[Self, Table]:
        """See `Task`."""
        # Taken out here, since no field of the task has their names.
        own_names = {entry.name for entry in fields(OwnTable)} & keys.keys()
        own_keys = {name: keys.pop(name) for name in own_names}
        if own_keys or any(isinstance(keys.get(name), str) for name in ("policy", "problems")):
            with name_keys(request.place):
                keys |= _find_own(request, own_keys, keys)
        return build(cls, keys, str(request.path), TASK), {}

    @classmethod
    def restore(cls, run: Run, settings: Table, where: str, named: AnyExperiment | None) -> Self:
        """See `Task`.

        Raises:
            UserError: its policy or its problems were a user's own.
        """
        for name in ("policy", "problems"):
            if str(settings.get(name, {}).get("is", "")).startswith("Own"):
                raise UserError(f"{run.dir}: {name}: a user's own; allowed: one of lagbench")
        return super().restore(run, settings, where, named)

    def check(self, experiment: AnyExperiment) -> None:
        """See `Task`."""
        protocol = experiment.protocol
        parts = {"protocol": Rollouts, "algorithm": ServerDescent, "schedule": Constant}
        for name, kind in parts.items():
            value = getattr(experiment, name)
            if not isinstance(value, kind):
                mistake = f"{type(value).__name__} is not allowed with rollouts"
                raise UserError(f"{name}: {mistake}; allowed: {kind.__name__}")
        if experiment.passes != 1:
            raise UserError(f"passes: {experiment.passes}; allowed with rollouts: 1, see updates")
        if isinstance(protocol, Rollouts) and protocol.group < 2:
            allowed = "at least 2, since a rollout is compared with others of its group"
            raise UserError(f"protocol.group: {protocol.group} is not allowed; allowed: {allowed}")

    @property
    def size(self) -> int:
        """See `Task`: updates, of which the length of a run follows."""
        return self.updates

    @property
    def judged(self) -> Judged:
        """The share of held-out problems that are answered wrongly."""
        return Judged("error", is_share=True)

    def example_weight(self, experiment: AnyExperiment) -> float:
        """See `Task`."""
        return 1.0 / self.held_out

    def workload(self, experiment: AnyExperiment, stage: int = 0) -> Workload:
        """See `Task`: the cluster's, or that of nothing: the protocol charges all but copies."""
        return experiment.cluster.workload or Workload(1, 0.0, 0.0)

    def open(
        self, experiment: AnyExperiment, store: Store | None = None, watch: Watch = ignore
    ) -> PolicyData:
        """See `Task`; problems are made by number."""
        return PolicyData(store)

    def train(
        self,
        writer: RunWriter,
        experiment: AnyExperiment,
        problem: PolicyData,
        watch: Watch,
    ) -> None:
        """See `OwnLoop`."""
        assert problem.store is not None  # it is opened for training
        start = initial(start_of(experiment), problem.store, watch)
        RolloutTraining(writer, experiment, start, watch).run()


class PolicyData(Opened):
    """What a training by rollouts needs from elsewhere: the store of its start.

    Args:
        store: the store; None if nothing is trained.
    """

    def __init__(self, store: Store | None) -> None:
        self.store = store

    def computing(self, *, alone: bool) -> AbstractContextManager[object]:
        """See `Opened`."""
        del alone
        return one_thread()


def configure(
    policy: object,
    sampler: object,
    problems: object,
    reward: object,
    test: object,
    context: int | None,
    cluster: Cluster,
    protocol: object,
    settings: Mapping[str, Any],
) -> Experiment[Policy]:
    """The experiment of a user's call; its seed is 0.

    Args:
        policy: see `policy_of`.
        sampler: see `policy_of`.
        problems: see `problems_of`.
        reward: see `problems_of`.
        test: see `problems_of`.
        context: see `problems_of`.
        cluster: the simulated cluster.
        protocol: a `Rollouts`, or None for its defaults.
        settings: further fields of the task, and ``rate``, ``optimizer``, ``workers`` and
            ``evaluations``.

    Raises:
        UserError: a mistake in one of them.
    """
    if protocol is not None and not isinstance(protocol, Rollouts):
        text = f"a {type(protocol).__name__}; allowed: a harness.rollouts.protocol.Rollouts"
        raise UserError(f"protocol: {text}")
    allowed = {entry.name for entry in fields(Policy)} - {"policy", "problems"}
    for name in settings:
        if name not in (every := allowed | COUNTS.keys() | {"rate", "optimizer"}):
            raise name_error("rollouts", name, every)
    chosen = policy_of(policy, sampler)
    source = problems_of(problems, chosen, reward, test, context)
    table = {name: value for name, value in settings.items() if name in allowed}
    table["loss"] = loss_of(settings.get("loss", "decoupled"))
    if isinstance(source, OwnProblems):
        if "start" in settings:
            raise UserError(f"rollouts: {NO_START}")
        table["start"] = WarmStart(steps=0)
    task = build(Policy, {**table, "policy": chosen, "problems": source}, "rollouts")
    optimizer = settings.get("optimizer", AdamW())
    top = {name: settings.get(name, usual) for name, usual in COUNTS.items()}
    parts = {
        "schedule": build(Constant, {"rate": settings.get("rate", 2e-4)}, "rollouts"),
        "algorithm": build(ServerDescent, {"optimizer": optimizer}, "rollouts"),
        "protocol": protocol or Rollouts(),
    }
    table = {**top, **parts, "task": task, "cluster": cluster}
    return build(cast(Any, Experiment), table, "rollouts")


def _find_own(request: RunRequest, names: Table, table: Table) -> Table:
    """The user's policy and problems, and their start.

    Raises:
        UserError: a name is not found, or prompts without answers have a supervised start.
    """
    texts = build(OwnTable, names, str(request.path), TASK)

    def find(key: str, name: object) -> Any:
        if not isinstance(name, str) or (key == "problems" and ":" not in name):
            return name
        return find_object(name, request.place + key, request.path.parent)

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
