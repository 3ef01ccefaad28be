"""Generators that sample rollouts, a buffer with a rule, and a trainer that publishes weights.

The workers of the cluster are generators, each with slots for rollouts that decode together: a
step of all takes a + b·c seconds with c of them. A prompt has a group of G rollouts; complete
groups wait until the trainer takes B of them for a step. A rollout holds its slot while it decodes
and while its environment works, then its reward is computed. The rule of the buffer says when a
group may begin, which groups are trained on, and which are thrown away:

- ``admission``: group number n (from 0) may begin while floor(n / B) <= version + eta; trained on
  by number, whichever are complete. AReaL, arXiv 2505.24298;
- ``discard``: a group may begin whenever a slot is free; trained on in order of completion. A group
  with a token more than eta versions old is thrown away at once, even in flight, and its prompt is
  queued again;
- ``backpressure``: a group may begin while fewer than B (1 + eta) · interval groups were unfinished
  at the last publication or have begun since; in order of completion, none thrown away;
- ``window``: as ``discard``, but a group is thrown away only when it is complete, and its prompt
  is not queued again;
- ``one-step``: the groups of the next batch may begin when the trainer begins a step.

Weights are published after every ``interval`` steps: with ``drain`` when the generators have become
idle (no group begins meanwhile), with ``between`` for rollouts that begin later, and ``in-flight``
for all rollouts: at its next step boundary a generator pauses to read all tokens so far again.

The version of a group is that of its oldest token; ages are measured when the trainer begins a
step. A step counts as completed when its weights are published. Lengths are drawn from a law, or
an application supplies them (`Rollouts.asking`); see `harness.rollouts.records`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.rollouts import event_state as events
from harness.rollouts import measures
from harness.rollouts.event_loop import run, tell
from harness.rollouts.event_state import Law, Record, Rules, State
from harness.rollouts.records import LengthQueries, RolloutRows, TokenRows
from harness.simulator.cluster import JITTER_LAWS, Cluster
from harness.simulator.costs import Costs
from harness.simulator.events import new_tournament
from harness.simulator.protocols.contract import Limits, TimingProtocol
from harness.simulator.timeline import IN_FLIGHT, Contributions, Folds, Spans, Timeline

RULES = ("admission", "discard", "backpressure", "window", "one-step")
PUBLICATIONS = ("drain", "between", "in-flight")
LAWS = JITTER_LAWS[:-1]  # all but the empirical one
MOST_ROLLOUTS = 1 << 16
"""Largest number of rollouts of a batch."""
MOST_ROWS = 1 << 17
"""Trained rollouts that one call of the kernel records at most, or those of one step."""
MOST_S = 1e9


@dataclass(frozen=True)
class Rollouts(Spec, TimingProtocol):
    """Asynchronous reinforcement learning: the cluster's workers are generators.

    Attributes:
        slots: rollouts that a generator decodes together, at most.
        decode_s: seconds of a decode step for reading the weights (a); those of the first worker,
            longer for others by their seconds of a minibatch over the first one's.
        sequence_s: further seconds of a decode step for each rollout in it (b).
        prefill_s: seconds of a generator to read a token of a prompt, or one again after an
            exchange of weights.
        prompt_tokens: tokens of a prompt.
        length_scale: simulated tokens for each token of a rollout; all seconds a token count these.
        group: rollouts of a prompt (G), which are trained on together.
        batch: groups in a step of the trainer (B).
        rule: rule of the buffer: admission, discard, backpressure, window or one-step.
        eta: allowance of the rule, in versions: the largest age (discard), a mean age of at most
            half a version more (admission), or a threshold (backpressure). Without effect for
            one-step.
        room: largest number of groups in flight, waiting and in training, in batches; generators
            wait at it, whatever the rule.
        publish: exchange of weights: drain, between or in-flight.
        recompute: whether a generator reads all tokens again after an in-flight exchange.
        interval: steps of the trainer from one publication to the next.
        tokens: mean length of a rollout, if it is drawn.
        tokens_law: law of the length.
        tokens_cv: standard deviation of the length over its mean.
        most_tokens: length at which a drawn rollout is cut off.
        reward_s: mean seconds from a rollout's end until its reward is known; it holds no slot.
        reward_law: law of these seconds.
        reward_cv: their standard deviation over their mean.
        environment_s: mean seconds after a rollout's last token in which it still holds its slot.
        environment_law: law of these seconds.
        environment_cv: their standard deviation over their mean.
        steps: optimizer steps in a step of the trainer (M), with equal parts of the batch.
        train_s: seconds of an optimizer step, whatever its size.
        token_s: further seconds of the trainer for each token of the batch.
        sync_s: seconds to publish weights; without it a copy over ``[link]``.
    """

    name = "rollouts"
    can = frozenset({"questions"})
    unit = "rollouts"
    way = "generators"

    asks: ClassVar[bool] = False
    """Whether lengths are asked for; set by `asking` on one object, and no part of an identity."""

    slots: int = setting(64, at_least=1, at_most=4096)
    decode_s: float = setting(0.02, at_least=1e-6, at_most=1e6)
    sequence_s: float = setting(1e-4, at_least=0.0, at_most=1e6)
    prefill_s: float = setting(0.0, at_least=0.0, at_most=1e6)
    prompt_tokens: int = setting(0, at_least=0, at_most=10_000_000)
    length_scale: int = setting(1, at_least=1, at_most=1_000_000)
    group: int = setting(8, at_least=1, at_most=MOST_ROLLOUTS)
    batch: int = setting(16, at_least=1, at_most=MOST_ROLLOUTS)
    rule: str = setting("admission", one_of=RULES)
    eta: float = setting(1.0, at_least=0.0, at_most=1e9)
    room: int = setting(64, at_least=1, at_most=100_000)
    publish: str = setting("between", one_of=PUBLICATIONS)
    recompute: bool = True
    interval: int = setting(1, at_least=1, at_most=1_000_000)
    tokens: float = setting(1000.0, at_least=1.0, at_most=1e7)
    tokens_law: str = setting("lognormal", one_of=LAWS)
    tokens_cv: float = setting(1.0, at_least=0.0, at_most=100.0)
    most_tokens: int = setting(32_768, at_least=1, at_most=100_000_000)
    reward_s: float = setting(0.0, at_least=0.0, at_most=MOST_S)
    reward_law: str = setting("lognormal", one_of=LAWS)
    reward_cv: float = setting(1.0, at_least=0.0, at_most=100.0)
    environment_s: float = setting(0.0, at_least=0.0, at_most=MOST_S)
    environment_law: str = setting("lognormal", one_of=LAWS)
    environment_cv: float = setting(1.0, at_least=0.0, at_most=100.0)
    steps: int = setting(1, at_least=1, at_most=MOST_ROLLOUTS)
    train_s: float = setting(1.0, at_least=0.0, at_most=MOST_S)
    token_s: float = setting(1e-4, at_least=0.0, at_most=1e6)
    sync_s: float | None = setting(None, at_least=0.0, at_most=MOST_S)

    def trouble(self) -> tuple[str, str] | None:
        """Limits that depend on other settings."""
        most = MOST_ROLLOUTS // self.batch
        if self.group > most:
            allowed = f"at most {most}, since a batch has at most {MOST_ROLLOUTS} rollouts"
            value = f"{self.group} is not allowed with batch = {self.batch}"
            return "group", f"{value}; allowed: {allowed}"
        if self.steps > self.batch:
            allowed = f"at most {self.batch}, the groups of a batch"
            return "steps", f"{self.steps} is not allowed; allowed: {allowed}"
        if self.rule != "backpressure" and self.eta != int(self.eta):
            return "eta", f"{self.eta:g} is not allowed with {self.rule}; allowed: a whole number"
        if self.rule in ("discard", "window") and self.eta < self.interval - 1:
            allowed = f"at least {self.interval - 1}, since weights are published so late"
            return "eta", f"{self.eta:g} is not allowed with {self.rule}; allowed: {allowed}"
        for name in ("tokens", "reward", "environment"):
            law, cv = getattr(self, f"{name}_law"), getattr(self, f"{name}_cv")
            if law == "shifted-exponential" and cv > 1.0:
                return f"{name}_cv", f"{cv:g} is not allowed with {law}; allowed: at most 1"
            if 0.0 < cv < 1e-3:
                return f"{name}_cv", f"{cv:g} is not allowed; allowed: 0, or at least 0.001"
        return None

    def asking(self) -> Rollouts:
        """The same protocol with lengths that an application supplies (`asked`, `answer`)."""
        protocol = replace(self)
        object.__setattr__(protocol, "asks", True)
        return protocol

    def _law(self, name: str, mean: float) -> Law:
        law = getattr(self, f"{name}_law") if mean > 0.0 else "constant"
        cv = 0.0 if law == "constant" else getattr(self, f"{name}_cv")
        return Law(mean, JITTER_LAWS.index(law), cv)

    def _rules(self, costs: Costs) -> Rules:
        """The settings for the kernels."""
        alike = ("interval", "group", "batch", "decode_s", "sequence_s", "prefill_s", "token_s")
        return Rules(
            rule=RULES.index(self.rule),
            publish=PUBLICATIONS.index(self.publish),
            allowed=0.0 if self.rule == "one-step" else self.eta,
            prompt_tokens=self.prompt_tokens if self.prefill_s > 0.0 else 0,
            scale=self.length_scale,
            recompute=self.publish == "in-flight" and self.prefill_s > 0.0 and self.recompute,
            step_s=self.steps * self.train_s,
            sync_s=costs.copy_s + costs.latency_s if self.sync_s is None else self.sync_s,
            tokens=self._law("tokens", 0.0 if self.asks else self.tokens),
            most_tokens=0 if self.asks else self.most_tokens,
            reward=self._law("reward", self.reward_s),
            environment=self._law("environment", self.environment_s),
            asks=self.asks,
            **{name: getattr(self, name) for name in alike},
        )

    @property
    def most_groups(self) -> int:
        """Largest number of groups in flight, waiting and in training: of the room and the rule."""
        admitted = {
            "one-step": 2 * self.batch,
            "admission": (self.eta + 1) * self.batch,
            "backpressure": math.ceil(self.batch * (1 + self.eta) * self.interval),
        }
        return int(min(self.room * self.batch, admitted.get(self.rule, math.inf)))

    def start(self, cluster: Cluster, workers: int) -> State:
        """Initial state: generators and trainer idle, no group.

        Raises:
            UserError: so many rollouts cannot be simulated.
        """
        del cluster
        places = self.most_groups
        rollouts = places * self.group
        if rollouts + workers + 1 > events.LEAF:
            raise UserError(
                f"Rollouts.room: {rollouts} rollouts at once are not allowed; allowed: at most"
                f" {events.LEAF - workers - 1}"
            )
        clock, generators = np.zeros(1, events.CLOCK), np.zeros(workers, events.GENERATOR)
        clock["placing"] = -1
        clock["free_slots"] = workers * self.slots
        generators["free"] = self.slots
        generators["target"] = generators["wanted"] = events.NEVER
        return State(
            clock=clock,
            events=new_tournament(rollouts + workers + 1),
            trainer=np.zeros(1, events.TRAINER),
            generators=generators,
            slots=np.full((workers, self.slots), -1, np.int64),
            groups=np.zeros(places, events.GROUP),
            rollouts=np.zeros(rollouts, events.ROLLOUT),
            free=np.arange(places, dtype=np.int64)[::-1].copy(),
            waiting=np.zeros(places, np.int64),
            batch=np.zeros(self.batch, np.int64),
            retries=np.zeros(places + 1, events.RETRY),
            restless=np.zeros(workers, np.int64),
        )

    def wake(self, state: State) -> None:
        """Let the trainer and the generators look for work."""
        state.clock[0]["busy"] = state.clock[0]["unsettled"] = 1

    def advance(
        self, state: State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run to a limit or until ``room`` folds are recorded: reason of the stop, timeline."""
        size, workers = self.batch * self.group, len(state.generators)
        room = max(1, min(room, MOST_ROWS // size, MOST_ROWS // workers))
        version = int(state.clock[0]["version"])
        record = Record(
            rows=np.empty(room * size + 2 * len(state.rollouts), events.ROLLOUT),
            folds=np.empty(room),
            stretches=np.empty(room * size + 2 * state.slots.size, events.STRETCH),
            spans=np.empty(room * (workers + 2) + 4 * workers + 8, events.SPAN),
            counts=np.zeros(4, np.int64),
        )
        reason = run(state, costs, self._rules(costs), limits, record)
        rows, folds, stretches, busy = record.counts
        fates = record.rows[:rows]
        trained = fates[fates["fate"] == 0]
        numbers = np.arange(version, version + folds, dtype=np.int64)
        records = record.spans[: busy if spans else 0]
        return reason, Timeline(
            unit=self.unit,
            folds=Folds(numbers, record.folds[:folds].copy()),
            contributions=_contributions(np.repeat(numbers, size), trained, self.group),
            spans=Spans(
                records["worker"].astype(np.int32),
                records["kind"].astype(np.int32),
                records["start_s"].copy(),
                records["end_s"].copy(),
            ),
            own={
                "rollouts": _rollout_rows(fates, self.group),
                "tokens": _token_rows(record.stretches[:stretches]),
            },
        )

    def in_flight(self, state: State) -> Contributions:
        """Rollouts that have begun and are not yet trained on, by number."""
        ordered = self._sort(state.rollouts[state.rollouts["phase"] >= events.DECODING])
        return _contributions(np.full(len(ordered), IN_FLIGHT, np.int64), ordered, self.group)

    def _sort(self, rows: np.ndarray) -> np.ndarray:
        """Rollouts by number."""
        return rows[np.argsort(_numbers(rows, self.group))]

    def promised(self, state: State) -> int:
        """Number of folds once every group that has begun is trained on."""
        clock = state.clock[0]
        return int(clock["version"] + -(-clock["alive"] // self.batch))

    def asked(self, state: State) -> LengthQueries:
        """Rollouts with a length that the simulation needs, by number."""
        rows = self._sort(state.rollouts[_is_untold(state)])
        columns = (rows[name].copy() for name in ("prompt", "attempt", "version", "first"))
        return LengthQueries(_numbers(rows, self.group), *columns)

    def answer(self, state: State, who: np.ndarray, values: np.ndarray) -> None:
        """Set the lengths of rollouts, counted with their kept tokens.

        Args:
            state: changed in place.
            who: [U] numbers of rollouts that were asked for.
            values: [U] tokens of each in all, more than those that are kept.

        Raises:
            ValueError: there is no such question, or a length is too short.
        """
        indices = np.flatnonzero(_is_untold(state))
        numbers = _numbers(state.rollouts[indices], self.group)
        order = np.argsort(numbers)
        places = np.searchsorted(numbers, who, sorter=order)
        if len(np.unique(who)) < len(who) or not np.isin(who, numbers).all():
            raise ValueError("a rollout's length is set once, and only if it was asked for")
        chosen = indices[order[places]]
        lengths = np.ascontiguousarray(values, np.int64)
        if np.any(lengths <= state.rollouts["first"][chosen]):
            raise ValueError("a rollout has at least one token more than it keeps")
        tell(state, self.length_scale, chosen, lengths)

    def measure(self, timeline: Timeline, workers: int) -> dict[str, float]:
        """Staleness by token and rollout, work of the parts, and what is thrown away."""
        return measures.measure(timeline, workers * self.slots, self.length_scale)


def _is_untold(state: State) -> np.ndarray:
    """[P · G] whether the length of a rollout is asked for."""
    rows = state.rollouts
    return (rows["phase"] == events.DECODING) & (rows["tokens"] == events.UNTOLD)


def _numbers(rows: np.ndarray, group: int) -> np.ndarray:
    """Numbers of rollouts."""
    return rows["group"] * group + rows["member"]


def _contributions(folds: np.ndarray, rows: np.ndarray, group: int) -> Contributions:
    return Contributions(
        fold=folds,
        worker=rows["generator"].astype(np.int32),
        read_version=rows["oldest"].copy(),
        read_time_s=rows["start_s"].copy(),
        first_step=_numbers(rows, group),
        steps=np.ones(len(rows), np.int32),
    )


def _rollout_rows(rows: np.ndarray, group: int) -> RolloutRows:
    """The table of rollouts with a known fate."""
    same = ("group", "prompt", "attempt", "member", "generator", "slot", "start_s", "end_s")
    same += ("left_s", "ready_s", "taken_s", "trained_version", "tokens", "decoded", "fate")
    decoded = rows["decoded"]
    return RolloutRows(
        rollout=_numbers(rows, group),
        oldest_version=rows["oldest"].copy(),
        mean_version=np.where(
            decoded > 0, rows["weighted"] / np.maximum(decoded, 1), rows["oldest"]
        ),
        last_version=rows["version"].copy(),
        **{name: rows[name].copy() for name in same},
    )


def _token_rows(rows: np.ndarray) -> TokenRows:
    return TokenRows(**{name: rows[name].copy() for name in rows.dtype.names or ()})
