"""Replay of a recorded sequence training on one device.

All three stalenesses are those of the record: every utterance is decoded with the version of its
decoder, every gradient is computed at the version that its trainer read, and folds have the
recorded order. The frames of each minibatch are recorded as well, so on the CPU the parameters
are equal bit for bit.
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
from harness.replay.fold_replay import Arrays, Facts, StaleReplay
from harness.simulator import Timeline
from harness.simulator.timeline_file import load_timeline
from harness.speech.decoding import DecodeStats
from harness.speech.sequence import SequenceConfig, Setup, Step
from harness.speech.sequence_server import DecodeLog, load_decode_log
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
    """A `StaleReplay` with a callback at the model versions that decoders used.

    Args:
        due: version -> rows of the record to decode with it; entries are removed.
        shown: called with these rows when the model has that version.
    """

    due: dict[int, list[int]] = field(kw_only=True)
    shown: Callable[[list[int]], None] = field(kw_only=True)

    def _is_shown(self, version: int) -> bool:
        return version in self.due

    def _show(self) -> None:
        self.shown(self.due.pop(self.server.version, []))


class SequenceRecordExecutor:
    """Executor that replays a record.

    Args:
        config: configuration of the run.
        setup: its parts.
        timeline: recorded timeline.
        record: recorded decoding of utterances.
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
        """Passes over the training utterances so far, by the reports to the server."""
        return self._decoded / len(self._setup.train)

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: to the first fold after ``until`` passes were reported."""
        first, folds = self.server.version, len(self._timeline.folds)
        end, ended, due = folds, True, ceil(until * len(self._setup.train))
        if due <= len(self.record.rows):
            # a row reported at version v was counted by fold v, whose result is version v + 1
            told = max(1, due) - 1
            end = max(self.record.rows[told].told_version + 1, first + 1)
            end, ended = (end, False) if end <= folds else (folds, True)
        segment = slice_timeline(self._timeline, first, end)
        self._replay.run(segment, rate)
        seen = self._take_stats_before(end, ended)
        self._decoded += len(seen)
        return Step([segment], seen, ended)

    def capture(self) -> tuple[Arrays, Facts]:
        """No state: an interrupted replay starts again from the beginning."""
        return {}, {}

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `capture`."""
        raise ValueError("a replay cannot be resumed")

    def _take_stats_before(self, version: int, all_of_them: bool) -> list[DecodeStats]:
        """Statistics not yet returned of utterances reported before ``version``, or of all."""
        rows, first = self.record.rows, self._returned
        while self._returned < len(rows) and (
            all_of_them or rows[self._returned].told_version < version
        ):
            self._returned += 1
        return [seen for seen in self._found[first : self._returned] if seen is not None]

    def _decode(self, rows: list[int]) -> None:
        """Decode the utterances of these rows with the present model.

        Raises:
            UserError: the number of kept frames differs from the record.
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
        """The frames of a contribution, after those of all contributions read before it."""
        ((_, last),) = keys
        # slots depend on every earlier read, also of contributions that were lost with a replica
        while self._reads and self._reads[0][0] <= last:
            step, worker = self._reads.popleft()
            while self._restarts and self._restarts[0] <= step:
                self._restarts.popleft()
                self._batcher.empty()
            self._batcher.read(worker, step)
        return self._batcher.minibatch(keys)


def replay(config: SequenceConfig, corpus: Corpus, run: Run, store: Store, watch: Watch) -> Run:
    """Replay a run on real processes into another store.

    Raises:
        UserError: the run was simulated, or its record is incomplete.
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
    """(number, worker) of all contributions that were read, lost ones included."""
    rows = timeline.contributions
    return sorted(zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True))
