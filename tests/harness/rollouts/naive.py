"""A walk of generators, buffer and trainer, step by step with lists: the oracle of the protocol.

Every decode step of every generator is an event of its own, and every instant asks each part what
it does then. Instants are fractions.
"""

from fractions import Fraction
from typing import Any


class Rollout:
    """One rollout; ``stretches`` are (first token, version, instant)."""

    def __init__(self, group: Any, member: int) -> None:
        self.group, self.member = group, member
        self.place: tuple[int, int] | None = None
        self.progress = 0
        self.phase = "absent"
        self.stretches: list[tuple[int, int, Fraction]] = []
        self.start = self.end = self.left = self.ready = self.taken = self.due = None
        self.trained_version = self.tokens = 0

    def oldest(self) -> int:
        """The version of the first token."""
        return max(version for first, version, _ in self.stretches if first == 0)

    def versions(self, decoded: int) -> list[int]:
        """The version of each decoded token."""
        return [
            [version for first, version, _ in self.stretches if first <= token][-1]
            for token in range(decoded)
        ]


class Group:
    """A group of one prompt."""

    def __init__(self, number: int, prompt: int, attempt: int, size: int) -> None:
        self.number, self.prompt, self.attempt = number, prompt, attempt
        self.members = [Rollout(self, member) for member in range(size)]
        self.complete: Fraction | None = None


class Generator:
    """An engine; ``since`` and ``until`` bound its present step, or its reading."""

    def __init__(self, slots: int, pace: int) -> None:
        self.pace = pace
        self.slots: list[Rollout | None] = [None] * slots
        self.until: Fraction | None = None
        self.since = Fraction(-1)
        self.decodes = False
        self.stepping: list[Rollout] = []
        self.version = 0


class Walk:
    """The walk; ``length(prompt, member, attempt, version)`` gives the tokens of a rollout.

    ``paces`` are the generators' seconds over those of the protocol.
    """

    def __init__(self, protocol: Any, paces: list[int], sync: float, length: Any) -> None:
        self.rules, self.length, self.sync = protocol, length, Fraction(sync)
        self.generators = [Generator(protocol.slots, pace) for pace in paces]
        self.now = Fraction(0)
        self.groups: list[Group] = []  # in flight, under reward or waiting
        self.placing: list[Rollout] = []
        self.again: list[tuple[int, int]] = []
        self.begun = self.prompts = self.version = self.published = self.steps_begun = 0
        self.stale = 0
        self.batch: list[Group] = []
        self.stage, self.stage_end = "idle", None
        self.folds: list[Fraction] = []
        self.rows: list[tuple[Rollout, str, int]] = []

    def walk(self, folds: int) -> None:
        """Go on until so many folds are complete."""
        while True:
            self.start()
            self.now = min(time for time in self.instants() if time is not None)
            if self.happen(folds):
                return
            while self.now in self.instants():
                if self.happen(folds):
                    return

    def instants(self) -> list[Fraction | None]:
        """The instants at which something is due."""
        due = [self.stage_end, *(each.until for each in self.generators)]
        for group in self.groups:
            due += [row.due for row in group.members if row.phase in ("outside", "judged")]
        return due

    def happen(self, folds: int) -> bool:
        """What is due now; returns whether the last fold is complete."""
        if self.stage_end == self.now:
            self.end_stage()
            if len(self.folds) == folds:
                return True
        for row in self.rows_in("judged"):
            if row.due == self.now:
                self.be_ready(row)
        for row in self.rows_in("outside"):
            if row.due == self.now:
                self.leave(row)
        for generator in self.generators:
            if generator.until == self.now:
                self.end_step(generator)
        return False

    def rows_in(self, phase: str) -> list[Rollout]:
        """Rollouts in a phase, by number."""
        found = [row for group in self.groups for row in group.members if row.phase == phase]
        return sorted(found, key=lambda row: (row.group.number, row.member))

    def end_step(self, generator: Generator) -> None:
        """One token more for all that took part, and are still there."""
        generator.until = None
        if not generator.decodes:
            return
        for row in generator.stepping:
            if row.phase == "decoding":
                row.progress += 1
                if row.progress == row.tokens * self.rules.length_scale:
                    row.end = self.now
                    row.due = self.now + Fraction(self.rules.environment_s)
                    row.phase = "outside"
                    if row.due == self.now:
                        self.leave(row)

    def leave(self, row: Rollout) -> None:
        """Leave the slot, and be judged."""
        generator, slot = row.place
        self.generators[generator].slots[slot] = None
        row.phase, row.left = "judged", self.now
        row.due = self.now + Fraction(self.rules.reward_s)
        if row.due == self.now:
            self.be_ready(row)

    def be_ready(self, row: Rollout) -> None:
        """The reward is known."""
        row.phase, row.ready = "ready", self.now
        if all(other.phase == "ready" for other in row.group.members):
            row.group.complete = self.now
            if self.rules.rule in ("discard", "window") and self.age(row.group) > self.rules.eta:
                self.throw_away(row.group)

    def age(self, group: Group) -> int:
        """The age of the oldest token, in versions."""
        begun = [row.oldest() for row in group.members if row.stretches]
        return self.version - min([self.published, *begun])

    def throw_away(self, group: Group) -> None:
        """End a group; its prompt may come back."""
        for row in group.members:
            if row.phase in ("placed", "decoding", "outside"):
                self.generators[row.place[0]].slots[row.place[1]] = None
            if row.stretches:
                row.taken, row.trained_version = self.now, self.version
                self.rows.append((row, "thrown away", row.progress // self.rules.length_scale))
            row.phase = "gone"
        self.groups.remove(group)
        self.placing = [row for row in self.placing if row.group is not group]
        if self.rules.rule == "discard":
            self.again.append((group.prompt, group.attempt + 1))

    def end_stage(self) -> None:
        """The end of a step or of a publication."""
        due = (self.version + 1) % self.rules.interval == 0
        self.stage_end = None
        if self.stage == "training" and due and self.rules.publish == "drain":
            self.stage = "draining"
            return
        if self.stage == "training" and due and self.sync > 0:
            self.stage, self.stage_end = "publishing", self.now + self.sync
            return
        self.stage = "idle"
        self.folds.append(self.now)
        for group in self.batch:
            for row in group.members:
                self.rows.append((row, "trained", row.tokens))
        self.version += 1
        if due:
            self.published, self.stale = self.version, len(self.groups)
        old = [group for group in self.queue() if self.age(group) > self.rules.eta]
        if self.rules.rule in ("discard", "window"):
            growing = [group for group in self.groups if group.complete is None]
            if self.rules.rule == "discard":
                old += sorted(
                    (group for group in growing if self.age(group) > self.rules.eta),
                    key=lambda group: group.number,
                )
            for group in old:
                self.throw_away(group)

    def queue(self) -> list[Group]:
        """Complete groups in the order in which they are trained on."""
        waiting = [group for group in self.groups if group.complete is not None]
        if self.rules.rule in ("admission", "one-step"):
            return sorted(waiting, key=lambda group: group.number)
        return sorted(waiting, key=lambda group: (group.complete, group.number))

    def start(self) -> None:
        """Whatever may start now."""
        rules = self.rules
        is_idle = all(slot is None for each in self.generators for slot in each.slots)
        if self.stage == "draining" and is_idle and not self.placing:
            self.stage, self.stage_end = "publishing", self.now + self.sync
        queue = self.queue()
        if self.stage == "idle" and len(queue) >= rules.batch:
            self.batch = queue[: rules.batch]
            tokens = 0
            for group in self.batch:
                self.groups.remove(group)
                for row in group.members:
                    row.taken, row.trained_version = self.now, self.version
                    tokens += row.tokens
            self.steps_begun += 1
            seconds = rules.steps * Fraction(rules.train_s)
            seconds += Fraction(rules.token_s) * rules.length_scale * tokens
            self.stage, self.stage_end = "training", self.now + seconds
        while any(slot is None for each in self.generators for slot in each.slots):
            if not self.placing:
                if not self.admits():
                    break
                self.begin()
            row = self.placing.pop(0)
            free = [each.slots.count(None) for each in self.generators]
            who = free.index(max(free))
            slot = self.generators[who].slots.index(None)
            self.generators[who].slots[slot] = row
            row.place, row.phase = (who, slot), "placed"
        for who, generator in enumerate(self.generators):
            # who comes at the instant at which a step begins takes part in it
            if generator.until is None or (generator.decodes and generator.since == self.now):
                self.begin_step(generator, who)

    def admits(self) -> bool:
        """Whether a group may begin."""
        rules = self.rules
        if rules.publish == "drain" and self.stage in ("draining", "publishing"):
            return False
        alive = len(self.groups) + (len(self.batch) if self.stage != "idle" else 0)
        if alive >= rules.room * rules.batch:
            return False
        if rules.rule == "admission":
            return self.begun // rules.batch <= self.version + rules.eta
        if rules.rule == "one-step":
            return self.begun < (self.steps_begun + 1) * rules.batch
        if rules.rule == "backpressure":
            return self.stale < rules.batch * (1 + rules.eta) * rules.interval
        return True

    def begin(self) -> None:
        """Begin a group."""
        prompt, attempt = self.again.pop(0) if self.again else (self.prompts, 0)
        self.prompts += attempt == 0
        group = Group(self.begun, prompt, attempt, self.rules.group)
        self.begun += 1
        self.stale += 1
        self.groups.append(group)
        self.placing = list(group.members)

    def begin_step(self, generator: Generator, who: int) -> None:
        """Between two steps: exchange weights, begin rollouts, read; then take a step."""
        rules, read = self.rules, 0
        exchanged = rules.publish == "in-flight" and generator.version < self.published
        for row in generator.slots:
            if row is not None and row.phase == "placed":
                row.phase, row.start = "decoding", self.now
                self.read(row, 0)
                read += rules.prompt_tokens
            elif row is not None and row.phase == "decoding" and exchanged:
                self.read(row, row.progress // rules.length_scale)
                if rules.recompute:
                    read += rules.prompt_tokens + row.progress
        generator.version = self.published
        active = [row for row in generator.slots if row is not None and row.phase == "decoding"]
        if not active:
            return
        generator.decodes = read == 0 or rules.prefill_s == 0
        if generator.decodes:
            seconds = Fraction(rules.decode_s) + Fraction(rules.sequence_s) * len(active)
            generator.until, generator.stepping = self.now + generator.pace * seconds, active
            generator.since = self.now
        else:
            generator.until = self.now + generator.pace * Fraction(rules.prefill_s) * read

    def read(self, row: Rollout, kept: int) -> None:
        """Go on with the published weights."""
        row.stretches.append((kept, self.published, self.now))
        group = row.group
        tokens = self.length(group.prompt, row.member, group.attempt, self.published)
        row.tokens = max(kept + 1, tokens)
