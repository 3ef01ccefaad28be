"""The executor of a training by rollouts on a simulated cluster.

Time and training advance together: the length of a rollout depends on the weights that sample it.
The simulation stops where it needs lengths; the rollouts are then sampled with exactly the versions
that it names, and it goes on. At each fold the trainer learns from the rollouts that it names.

A version is kept until no later question can name it: questions name the version that is published
at their instant, so none is older than the newest that was named before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.saved import Arrays, Saved
from harness.base.errors import UserError
from harness.experiment.experiment import AnyExperiment
from harness.rollouts.learning import Learner, Rollout
from harness.rollouts.policy import Weights
from harness.rollouts.problems import Problems, check_reward
from harness.rollouts.records import TRAINED, LengthQueries, RolloutRows
from harness.rollouts.rollout_config import rollouts_of
from harness.rollouts.sampling import Completion, check_sampled, draw_uniforms
from harness.simulator.timeline import Timeline, concat

RECORD = ("rollout", "prompt", "difficulty", "tokens", "fate", "version")
"""Columns of whole numbers of the record of rollouts."""

REWARD = "reward"
"""Its column of float64; NaN where a rollout was thrown away before its length was known."""


class Update(NamedTuple):
    """A step of the trainer.

    Attributes:
        happened: the timeline since the step before.
        figures: what the step measured, by name.
    """

    happened: Timeline
    figures: dict[str, float]


class SampleRequest(NamedTuple):
    """A rollout to sample with the weights of a version, from its ``kept`` first tokens."""

    rollout: int
    prompt: int
    attempt: int
    version: int
    kept: int


_NOTHING = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32))


class RolloutExecutor(Saved):
    """Samples and trains in the order of a simulated cluster; see `Executor`.

    Args:
        config: configuration of the run.
        initial: the parameters ``[P]`` that it starts from.
    """

    SAVED = ("simulation", "server", "versions", "open", "fresh")

    def __init__(self, config: AnyExperiment, initial: Tensor) -> None:
        self.config = config
        self.task, self.group = config.task, rollouts_of(config).group
        self.problems: Problems = self.task.problems
        sizes = self.problems.vocabulary, self.problems.context
        policy = self.task.policy.make(*sizes, self.task.start.seed)
        self.weights = Weights(policy.to(config.device))
        self.learner = Learner(self.weights, config)
        self.server: Server = self.learner.start(initial.to(config.device))
        self.simulation = config.new_simulation(rollouts_of(config).asking())
        self.versions = {0: self.server.model.clone()}
        self.open: dict[int, Completion] = {}  # answers so far, by number of the rollout
        self.rows = self.task.policy.rows(self.weights.module)
        self.ahead: dict[SampleRequest, Completion] = {}
        self.fresh = 0  # the newest prompt that was handed out for the first time
        self.record: dict[str, list[Any]] = {name: [] for name in (*RECORD, REWARD)}
        self._problem = lru_cache(4096)(partial(self.problems.train, seed=config.seed))

    @property
    def now_s(self) -> float:
        """See `Executor`."""
        return self.simulation.now_s

    def advance(self) -> Update:
        """Simulate, sample and train up to the next fold.

        Raises:
            UserError: a sampler or reward of the user's that cannot be used, or no fold to come.
        """
        happened = list[Timeline]()
        while True:
            segment = self.simulation.advance(folds=1)
            happened.append(segment)
            rows = cast(RolloutRows, segment.own["rollouts"])
            figures = self.train(rows) if len(segment.folds) else {}
            self.forget(rows.where(rows.fate != TRAINED))
            if len(segment.folds):
                return Update(concat(happened), figures)
            queries = self.simulation.asked()
            if not len(queries.rollout):
                raise UserError("protocol: no group can begin any more; allowed: with a fold left")
            self._answer(queries)

    # -- sampling ------------------------------------------------------------------------

    def _answer(self, queries: LengthQueries) -> None:
        """Sample the rollouts that are asked for, and tell the simulation their lengths."""
        newest = int(queries.version.max())
        self.versions = {v: copy for v, copy in self.versions.items() if v >= queries.version.min()}
        for version in np.unique(queries.version).tolist():
            columns = (column[queries.version == version].tolist() for column in queries)
            self.sample([SampleRequest(*row) for row in zip(*columns, strict=True)])
        self.versions = {v: copy for v, copy in self.versions.items() if v >= newest}
        self.ahead = {key: answer for key, answer in self.ahead.items() if key.version >= newest}
        lengths = [len(self.open[rollout].tokens) for rollout in queries.rollout.tolist()]
        self.simulation.answer(queries.rollout, np.array(lengths, np.int64))

    def sample(self, rows: Sequence[SampleRequest]) -> None:
        """Sample rollouts, by number, with one version of the weights."""
        new = [row for row in rows if row not in self.ahead]
        if new:
            new += self._foresee(rows[-1], -len(new) % self.rows)
            self.ahead |= dict(zip(new, self._continue(new), strict=True))
        for row in rows:
            completion = self.ahead.pop(row)
            if row.kept:
                pairs = zip(self.open[row.rollout], completion, strict=True)
                completion = Completion(*(np.concatenate([a[: row.kept], b]) for a, b in pairs))
            self.open[row.rollout] = completion

    def _foresee(self, newest: SampleRequest, count: int) -> list[SampleRequest]:
        """The rollouts that probably begin next, to fill the rows of a step.

        A wrong guess costs a second sampling and changes nothing: a rollout is the same with
        whatever else it is sampled.
        """
        size = self.group
        if not newest.attempt:
            self.fresh = newest.prompt
        guesses = list[SampleRequest]()
        for rollout in range(newest.rollout + 1, newest.rollout + 1 + count):
            further = rollout // size - newest.rollout // size
            prompt = self.fresh + further if further else newest.prompt
            attempt = 0 if further else newest.attempt
            guesses.append(SampleRequest(rollout, prompt, attempt, newest.version, 0))
        return [row for row in guesses if row not in self.ahead]

    def _continue(self, rows: Sequence[SampleRequest]) -> list[Completion]:
        """Continue rollouts from their kept tokens, with one version."""
        prefixes = list[np.ndarray]()
        for row in rows:
            prompt = np.array(self._problem(row.prompt).prompt, np.int64)
            before = self.open[row.rollout].tokens[: row.kept] if row.kept else prompt[:0]
            prefixes.append(np.concatenate([prompt, before]))
        numbers = np.array([row.rollout for row in rows])
        attempts = np.array([row.attempt for row in rows])
        task = self.task
        draws = draw_uniforms(self.config.seed, numbers, attempts, self.problems.context)
        policy = self.weights.load(self.versions[rows[0].version])
        answers = task.policy.sample(policy, prefixes, draws, task.temperature)
        if task.policy.sampler is None:
            return list(answers)
        shape = self.problems.vocabulary, self.problems.context
        return check_sampled(policy, answers, prefixes, *shape)

    # -- training ------------------------------------------------------------------------

    def train(self, rows: RolloutRows) -> dict[str, float]:
        """Take the trainer's step on those rollouts that were trained on."""
        rows = rows.where(rows.fate == TRAINED)
        every = [self._close(rows, k) for k in range(len(rows))]
        size = self.group
        groups = [every[k : k + size] for k in range(0, len(every), size)]
        figures = self.learner.step(self.server, groups)
        self.versions[self.server.version] = self.server.model.clone()
        age = ((rows.trained_version - rows.mean_version) * rows.tokens).sum() / rows.tokens.sum()
        return {
            **figures,
            "reward": float(np.mean([rollout.reward for rollout in every])),
            "log_prob": float(np.concatenate([rollout.log_probs for rollout in every]).mean()),
            "tokens": float(rows.tokens.mean()),
            "staleness": float(age),
        }

    def forget(self, rows: RolloutRows) -> None:
        """Record rollouts that were thrown away."""
        for k in range(len(rows)):
            self._close(rows, k)

    def _close(self, rows: RolloutRows, k: int) -> Rollout:
        """Reward a rollout of known fate, record it, and give up its tokens."""
        rollout, prompt = int(rows.rollout[k]), int(rows.prompt[k])
        problem = self._problem(prompt)
        answer = self.open.pop(rollout, _NOTHING)
        count = int(rows.tokens[k])
        if rows.fate[k] == TRAINED and count != len(answer.tokens):
            raise ValueError(f"rollout {rollout} has {len(answer.tokens)} tokens, not {count}")
        reward = float("nan")
        if count:
            reward = check_reward(self.problems.reward(problem, answer.tokens.tolist()))
        facts = rollout, prompt, problem.difficulty, count, rows.fate[k], rows.trained_version[k]
        for name, fact in zip(RECORD, facts, strict=True):
            self.record[name].append(int(fact))
        self.record[REWARD].append(reward)
        prompted = np.array(problem.prompt, np.int64)
        return Rollout(prompted, answer.tokens, answer.log_probs, reward)

    # -- to go on later ------------------------------------------------------------------

    def collect_record(self) -> Arrays:
        """The record of all rollouts with a known fate, a column for each of `RECORD`."""
        columns = {name: np.array(self.record[name], np.int64) for name in RECORD}
        return {**columns, REWARD: np.array(self.record[REWARD], np.float64)}

    def state(self) -> dict[str, Any]:
        """See `Saved`; rollouts that are only foreseen are sampled again."""
        return {**super().state(), "record": self.collect_record()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Saved`."""
        record = {name: column.tolist() for name, column in state["record"].items()}
        super().restore({**state, "record": record})
