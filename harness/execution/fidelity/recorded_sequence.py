"""A sequence training that has been recorded, executed again on one device.

All three stalenesses are as they were: every utterance is decoded with the version its decoder had,
every gradient is computed at the version its trainer had read, and folds follow in the recorded
order. What entered which minibatch is on record as well, so on the CPU the parameters come out the
same, bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.denormals import denormals_flushed
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.contract import Minibatch
from harness.errors import UserError
from harness.execution.data.decoding import Seen
from harness.execution.data.minibatches import Key
from harness.execution.data.slots import Batcher, Kept
from harness.execution.processes.executed import executed_by
from harness.execution.processes.sequence_executor import Step
from harness.execution.processes.sequence_recorder import TOLD, Told, load_told
from harness.execution.replay.stale import StaleReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.executed import Watch
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.recorded import between
from harness.execution.training.run import EXECUTED, TIMELINE
from harness.execution.training.sequence_run import carry_out
from harness.execution.training.setup import Setup
from harness.simulator import Timeline
from harness.store import Run, RunWriter, Store


@dataclass
class ShownReplay(StaleReplay):
    """A `StaleReplay` that shows the model at the versions that decoders had.

    Args:
        due: what is to be shown at versions; emptied.
        shown: told of it when the model has its version.
    """

    due: dict[int, list[int]] = field(kw_only=True)
    shown: Callable[[list[int]], None] = field(kw_only=True)

    def _is_shown(self, version: int) -> bool:
        return version in self.due

    def _show(self) -> None:
        self.shown(self.due.pop(self.server.version, []))


class RecordedSequence:
    """An executor that walks a record.

    Args:
        config: what was run.
        setup: its parts.
        timeline: what happened.
        told: what decoders said.
    """

    def __init__(
        self, config: SequenceConfig, setup: Setup, timeline: Timeline, told: Told
    ) -> None:
        self._setup, self._timeline, self.told = setup, timeline, told
        self._found: list[Seen | None] = [None] * len(told.rows)
        self._returned = 0
        self._restarts = deque(told.restarts)
        self._batcher = Batcher(config.slots, config.shuffling == "on the fly")
        self._batcher.expect(timeline.decodes)
        self._reads = deque(_reads(timeline))
        self._due: dict[int, list[int]] = {}
        for at, row in enumerate(told.rows):
            self._due.setdefault(row.decode_version, []).append(at)
        algorithm = AsyncSgd()
        self._replay = ShownReplay(
            algorithm,
            setup.loss,
            algorithm.start(setup.part),
            self._minibatch,
            slots=config.replicas,
            alone=True,
            due=self._due,
            shown=self._decode,
        )

    @property
    def version(self) -> int:
        """Folds so far."""
        return self._replay.server.version

    @property
    def now_s(self) -> float:
        """The recorded time of the last fold."""
        return float(self._timeline.folds.time_s[self.version - 1]) if self.version else 0.0

    @property
    def model(self) -> Tensor:
        """The server's parameters [P'] of the trained half."""
        return self._replay.server.model

    def state(self) -> Arrays:
        """See `SequenceExecutor`."""
        return {}

    def advance(self, rate: float, until: int) -> Step:
        """See `SequenceExecutor`."""
        first, folds = self.version, len(self._timeline.folds)
        end, ended = folds, True
        if until <= len(self.told.rows):
            told = max(1, until) - 1
            end = max(self.told.rows[told].told_version + 1, first + 1)
            end, ended = (end, False) if end <= folds else (folds, True)
        segment = between(self._timeline, first, end)
        self._replay.run(segment, rate)
        return Step(segment, self._told_before(end, ended), ended)

    def capture(self) -> tuple[Arrays, Facts]:
        """Nothing: a replay that is stopped begins anew."""
        return {}, {}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `capture`."""
        raise ValueError("a replay begins anew")

    def _told_before(self, version: int, all_of_them: bool) -> list[Seen]:
        """What was told before a version, or at all, and has not been returned."""
        rows, first = self.told.rows, self._returned
        while self._returned < len(rows) and (
            all_of_them or rows[self._returned].told_version < version
        ):
            self._returned += 1
        return [seen for seen in self._found[first : self._returned] if seen is not None]

    def _decode(self, rows: list[int]) -> None:
        """Decode utterances with the present model.

        Raises:
            UserError: something else is kept of one than was recorded.
        """
        for at in rows:
            row = self.told.rows[at]
            (found,) = self._setup.decoder.decode([self.model], [row.utterance])
            if len(found.x) != row.entering:
                raise UserError(
                    f"utterance {row.utterance}, decoded with version {row.decode_version}:"
                    f" {len(found.x)} frames are kept, {row.entering} on record; arithmetic"
                    " here is not that of the recorded run"
                )
            self._found[at] = found.seen
            self._batcher.add(Kept(row.number, found.x, found.outer))

    def _minibatch(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of a contribution; those of all that were read before are chosen first."""
        ((_, last),) = keys
        while self._reads and self._reads[0][0] <= last:
            step, worker = self._reads.popleft()
            while self._restarts and self._restarts[0] <= step:
                self._restarts.popleft()
                self._batcher.empty()
            self._batcher.read(worker, step)
        return self._batcher.minibatch(keys)


def replay(config: SequenceConfig, corpus: Corpus, run: Run, store: Store, watch: Watch) -> Run:
    """A run on real processes, again, into another store.

    Raises:
        UserError: it was not one, or its record is not whole.
    """
    timeline = Timeline.load(run.dir / TIMELINE)
    told, start = load_told(run.dir / TOLD)

    def made_by(config: SequenceConfig, setup: Setup, initial: Tensor) -> RecordedSequence:
        del initial
        return RecordedSequence(config, setup, timeline, told)

    def execute(writer: RunWriter) -> None:
        with denormals_flushed():
            carry_out(executed_by(made_by)(config, corpus, start, writer, watch))

    return store.obtain(config.to_dict() | {EXECUTED: {"by": "a record"}}, execute)


def _reads(timeline: Timeline) -> list[tuple[int, int]]:
    """(number, worker) of all contributions that began, also of those that were lost."""
    rows = timeline.contributions
    return sorted(zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True))
