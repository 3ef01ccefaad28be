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
from fractions import Fraction
from math import ceil

from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Server
from harness.base.errors import UserError
from harness.networks.contract import Minibatch
from harness.networks.feedforward import denormals_flushed
from harness.replay.stale import Arrays, Facts, StaleReplay
from harness.simulator import Timeline
from harness.simulator.timeline_file import load_timeline
from harness.speech.decoding import DecodeStats
from harness.speech.replicas import DecodeLog, load_decode_log
from harness.speech.sequence import SequenceConfig, Setup, Step
from harness.speech.sequence_training import RECORD, SequenceTraining
from harness.speech.streams import Batcher, KeptFrames
from harness.store import Run, RunWriter, Store
from harness.store.schema import TIMELINE
from harness.tasks.contract import Watch
from harness.tasks.order import Key
from harness.training.executors import slice_timeline
from harness.training.loop import carry_out
from harness.training.run import identity_config


@dataclass
class DecoderReplay(StaleReplay):
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


class SequenceRecordExecutor:
    """An executor that walks a record.

    Args:
        config: what was run.
        setup: its parts.
        timeline: what happened.
        record: what decoders said.
    """

    def __init__(
        self, config: SequenceConfig, setup: Setup, timeline: Timeline, record: DecodeLog
    ) -> None:
        self._setup, self._timeline, self.record = setup, timeline, record
        self._found: list[DecodeStats | None] = [None] * len(record.rows)
        self._returned = self._decoded = 0
        self._restarts = deque(record.restarts)
        self._batcher = Batcher(config.slots, config.shuffling == "on the fly")
        self._batcher.expect(timeline.decodes)
        self._reads = deque(_reads(timeline))
        self._due: dict[int, list[int]] = {}
        for at, row in enumerate(record.rows):
            self._due.setdefault(row.decode_version, []).append(at)
        self._replay = DecoderReplay(
            config.algorithm,
            setup.loss,
            config.algorithm.start(setup.part),
            self._minibatch,
            slots=config.replicas,
            alone=True,
            due=self._due,
            shown=self._decode,
        )

    @property
    def server(self) -> Server:
        """See `Executor`."""
        return self._replay.server

    @property
    def now_s(self) -> float:
        """The recorded time of the last fold."""
        done = self.server.version
        return float(self._timeline.folds.time_s[done - 1]) if done else 0.0

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, as the server was told."""
        return self._decoded / len(self._setup.train)

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: until a fold found so many passes told of, or to the end."""
        first, folds = self.server.version, len(self._timeline.folds)
        end, ended, due = folds, True, ceil(until * len(self._setup.train))
        if due <= len(self.record.rows):
            told = max(1, due) - 1
            end = max(self.record.rows[told].told_version + 1, first + 1)
            end, ended = (end, False) if end <= folds else (folds, True)
        segment = slice_timeline(self._timeline, first, end)
        self._replay.run(segment, rate)
        seen = self._take_stats_before(end, ended)
        self._decoded += len(seen)
        return Step([segment], seen, ended)

    def capture(self) -> tuple[Arrays, Facts]:
        """Nothing: a replay that is stopped begins anew."""
        return {}, {}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `capture`."""
        raise ValueError("a replay begins anew")

    def _take_stats_before(self, version: int, all_of_them: bool) -> list[DecodeStats]:
        """What was told before a version, or at all, and has not been returned."""
        rows, first = self.record.rows, self._returned
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
            row = self.record.rows[at]
            (found,) = self._setup.decoder.decode([self.server.model], [row.utterance])
            if len(found.x) != row.entering:
                raise UserError(
                    f"utterance {row.utterance}, decoded with version {row.decode_version}:"
                    f" {len(found.x)} frames are kept, {row.entering} on record; arithmetic"
                    " here is not that of the recorded run"
                )
            self._found[at] = found.seen
            self._batcher.add(KeptFrames(row.number, found.x, found.outer))

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
    timeline = load_timeline(run.path(TIMELINE))
    record, start = load_decode_log(run.path(RECORD))

    def make_executor(
        config: SequenceConfig, setup: Setup, initial: Tensor
    ) -> SequenceRecordExecutor:
        del initial
        return SequenceRecordExecutor(config, setup, timeline, record)

    def execute(writer: RunWriter) -> None:
        with denormals_flushed():
            carry_out(SequenceTraining(writer, config, corpus, start, watch, make_executor))

    return store.obtain(identity_config(config, {"by": "a record"}), execute)


def _reads(timeline: Timeline) -> list[tuple[int, int]]:
    """(number, worker) of all contributions that began, also of those that were lost."""
    rows = timeline.contributions
    return sorted(zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True))
