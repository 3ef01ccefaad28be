"""A replica of sequence training as its server knows it: two processes and their work.

Rank 0 is the server; replica r has two ranks, the trainer 1 + 2r and its decoder 2 + 2r.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.base.seeds import identity
from harness.execution.processes.headers import Kind, SequenceHeader
from harness.execution.processes.messages import send
from harness.execution.processes.pace import Pacing
from harness.execution.processes.recorder import Work
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator.costs import costs_of


def trainer_rank(replica: int) -> int:
    """Of a replica's trainer."""
    return 1 + 2 * replica


def decoder_rank(replica: int) -> int:
    """Of a replica's decoder."""
    return 2 + 2 * replica


def pace_of(config: SequenceConfig, paced: bool) -> Pacing:
    """The pace of the run's own cluster and workload, if it is paced at all."""
    if not paced:
        return Pacing()
    return Pacing(costs_of(config.cluster, config.workload, config.replicas, config.seed))


def sign_of(config: SequenceConfig, *, paced: bool) -> int:
    """48 bits that server and replicas compare, so that all execute the same configuration."""
    return int(identity({**config.to_dict(), "paced": paced})[:12], 16)


class Handed(NamedTuple):
    """A training utterance that a decoder was given, the model's version, and when it was read."""

    utterance: int
    version: int
    read_s: float


@dataclass
class Replica:
    """A trainer and its decoder, as the server knows them.

    Attributes:
        todo: training utterances it has not been handed.
        handed: those that have not entered a minibatch, by number of decoding.
        taken: those of them that enter its next one.
        version, read_s: of its decoder's model.
        left: frames in its slots.
        under_way: frames in its contribution.
        work: its contribution under way.
        reads, folds: how many.
        waits: whether its decoder has asked and there was nothing.
        gone: whether it is dead.
    """

    todo: deque[int]
    handed: dict[int, Handed] = field(default_factory=dict[int, Handed])
    taken: list[SequenceHeader] = field(default_factory=list[SequenceHeader])
    version: int = 0
    read_s: float = float("-inf")
    left: int = 0
    under_way: int = 0
    work: Work | None = None
    reads: int = 0
    folds: int = 0
    waits: bool = False
    gone: bool = False

    @property
    def done(self) -> bool:
        """Whether it has trained on all it was ever given."""
        return not (self.todo or self.handed or self.left or self.work)

    def give_up(self) -> tuple[list[int], int]:
        """Everything it had: utterances that may be handed out again, and frames lost."""
        utterances = [*(each.utterance for each in self.handed.values()), *self.todo]
        lost = self.left + self.under_way
        self.todo, self.handed, self.taken = deque(), {}, []
        self.left = self.under_way = 0
        self.work = None
        return utterances, lost


def send_home(replicas: int) -> None:
    """Tell everybody that there is nothing to do: the run is there already."""
    for rank in range(1, 1 + 2 * replicas):
        with suppress(RuntimeError):  # it is gone
            send(SequenceHeader(Kind.STOP), rank)
