"""Executors of sequence training on a simulated cluster: streams of utterances, or passes.

`Streams` is paper 3's scheme: decoders and trainers side by side, utterance by utterance.
Simulated time and training advance together. The time of an utterance in its slot depends on the
number of its kept frames, and that on the parameters it is decoded with. So the executor decodes
the utterances in decoders, whose parameters are known, and gives their counts to the simulation;
the simulation then advances to the first end of a decoding with an unknown count, and the executor
replays every fold up to there.

`Passes` shuffles frames fully, for comparison in paper 3. At the start of a pass, all utterances
are decoded with the same parameters, each replica its part. Then the kept frames are shuffled and
trained on asynchronously, as in frame training; outer gradients are fixed until the next pass.

`Batcher` assigns kept frames to steps (paper 3, section 3.1). With shuffling on the fly, each slot
of a replica's minibatch has an utterance and gives one frame per step; an empty slot takes the
next decoded one. Without, a replica's minibatches are cut from one utterance after another. The
times come from the simulator's timeline, row by row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.base.seeds import stream
from harness.experiment.executors import OnSimulation
from harness.experiment.order import Key
from harness.networks.contract import Minibatch
from harness.replay import fold_replay as resume
from harness.replay.fold_replay import Arrays as stale_Arrays
from harness.replay.fold_replay import Facts as stale_Facts
from harness.replay.fold_replay import StaleReplay
from harness.simulator import Contributions, Decodes, Timeline, compute_seconds, copy_seconds
from harness.speech.decoding import DecodeStats, parts
from harness.speech.protocol import CountQueries
from harness.speech.sequence import SequenceConfig, Setup, Step


@dataclass
class SequenceReplay(StaleReplay):
    """A `StaleReplay` that also keeps the parameters that every decoder has read.

    A replica has at most one contribution in flight, and its decoder one utterance, so each has
    ``slots`` rows.
    """

    decoders: Tensor = field(init=False)
    decoder_versions: list[int] = field(init=False)
    _due: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decoders = torch.zeros_like(self.replicas)
        self.decoder_versions = [-1] * self.slots

    def follow(self, segment: Timeline, rate: float, begun: CountQueries) -> None:
        """Execute a segment; ``begun`` are the utterances in decoders at its end."""
        for worker, version in zip(
            begun.worker.tolist(), begun.decode_version.tolist(), strict=True
        ):
            if version != self.decoder_versions[worker]:
                self._due.setdefault(version, []).append(worker)
        self.run(segment, rate)
        if self._due:
            raise ValueError(f"decoders read versions {sorted(self._due)} that have gone by")

    def _show(self) -> None:
        for worker in self._due.pop(self.server.version, ()):
            self.decoders[worker].copy_(self.server.model)
            self.decoder_versions[worker] = self.server.version


WITHOUT_LIMIT = 10**9


class Streams(OnSimulation[SequenceReplay]):
    """Shuffling none or on the fly, simulated; see `SequenceExecutor`.

    Args:
        config: what is run.
        setup: its parts.
    """

    def __init__(self, config: SequenceConfig, setup: Setup) -> None:
        self._config, self._setup = config, setup
        self.simulation = config.simulation(setup.train)
        self.batcher = Batcher(config.slots, config.shuffling == "on the fly")
        self.replay = SequenceReplay(
            config.algorithm,
            setup.loss,
            config.algorithm.start(setup.part),
            self.batcher.minibatch,
            slots=config.replicas,
        )
        self._orders = config.orders(setup.train)
        self._decoded = 0

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, by the decoders' progress."""
        return self._decoded / len(self._setup.train)

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: to the next end of a decoding with an unknown count."""
        del until
        seen = self._decode()
        if any(each.trouble == "not finite" for each in seen):
            return Step([], seen, ended=False)
        self._decoded += len(seen)
        segment = self.simulation.advance(folds=WITHOUT_LIMIT)
        begun = self.simulation.asked()
        self.batcher.follow(segment)
        self.replay.follow(segment, rate, begun)
        return Step([segment], seen, ended=not len(begun.worker))

    def _decode(self) -> list[DecodeStats]:
        """Decode the utterances in decoders, and give the simulation their kept frames."""
        begun = self.simulation.asked()
        models = [self.replay.decoders[worker] for worker in begun.worker.tolist()]
        utterances = self._orders[begun.worker, begun.number].tolist()
        decoded = self._setup.decoder.decode(models, utterances)
        for utterance, each in zip(begun.utterance.tolist(), decoded, strict=True):
            self.batcher.add(KeptFrames(utterance, each.x, each.outer))
        self.simulation.answer(begun.worker, np.array([len(each.x) for each in decoded], np.int64))
        return [each.seen for each in decoded]

    def capture(self) -> tuple[stale_Arrays, stale_Facts]:
        """See `Executor`."""
        replay, replay_facts = self.replay.capture()
        batcher, batcher_facts = self.batcher.capture()
        arrays = {
            **resume.add_prefix(self.simulation.state(), "simulation/"),
            **resume.add_prefix(replay, "replay/"),
            **resume.add_prefix(batcher, "batcher/"),
            "decoders": self.replay.decoders.cpu().numpy(),
        }
        versions = self.replay.decoder_versions
        facts = {"replay": replay_facts, "batcher": batcher_facts, "versions": versions}
        return arrays, {**facts, "decoded": self._decoded}

    def reinstate(self, arrays: stale_Arrays, facts: stale_Facts) -> None:
        """See `Executor`."""
        self.simulation = self.simulation.with_state(resume.part(arrays, "simulation/"))
        self.replay.reinstate(resume.part(arrays, "replay/"), facts["replay"])
        batcher = resume.part(arrays, "batcher/")
        self.batcher.reinstate(batcher, facts["batcher"], self._config.device)
        self.replay.decoders.copy_(torch.as_tensor(arrays["decoders"]))
        self.replay.decoder_versions = facts["versions"]
        self._decoded = facts["decoded"]


class Passes(OnSimulation[StaleReplay]):
    """Shuffling full, simulated; see `SequenceExecutor`.

    Args:
        config: what is run.
        setup: its parts.
    """

    def __init__(self, config: SequenceConfig, setup: Setup) -> None:
        self._config, self._setup = config, setup
        self.simulation = config.simulation(setup.train)
        self.replay = StaleReplay(
            config.algorithm,
            setup.loss,
            config.algorithm.start(setup.part),
            self._minibatch,
            slots=config.replicas,
        )
        self._pass = self._step = self._steps_before = 0
        self._decoded_with = setup.part.clone()
        self._x = self._outer = setup.part.new_zeros(0, 0)
        self._shuffled = np.zeros(0, np.int64)

    @property
    def epoch(self) -> float:
        """Passes over the kept frames so far."""
        return self._pass + self._step / max(1, self._steps)

    @property
    def _steps(self) -> int:
        """Minibatches of this pass; the last one may have fewer frames."""
        return -(-len(self._shuffled) // self._config.slots)

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: to ``until`` or the end of the pass; decodes at its start."""
        happened, seen = list[Timeline](), list[DecodeStats]()
        if not len(self._shuffled):
            self._decoded_with = self.server.model.clone()
            seen = self._decode()
            if any(each.trouble == "not finite" for each in seen):
                return Step(happened, seen, ended=False)
            happened += self._pause()
        boundary = max(self._step, ceil(float(until - self._pass) * self._steps))
        boundary, last = min(self._steps, boundary), boundary >= self._steps
        segment = self.simulation.advance(
            folds=boundary - self._step,
            drain=last,
            handing_out=None if last else self._steps - self._step,
        )
        self.replay.run(segment, rate)
        self._step = boundary
        if last:
            self._end_pass()
        return Step([*happened, segment], seen, ended=self._pass == self._config.passes)

    def _end_pass(self) -> None:
        self._steps_before += self._steps
        self._pass, self._step = self._pass + 1, 0
        self._shuffled = self._shuffled[:0]

    def _pause(self) -> list[Timeline]:
        """Pause for decoding: the time of the replica with the most frames to decode."""
        config, train = self._config, self._setup.train
        if not config.decode_cost:
            return []
        dealt = parts(config.seed, len(train), config.replicas)
        most = max(int(train.frames[part].sum()) for part in dealt)
        frame_s = compute_seconds(config.cluster, config.workload()) / config.slots
        seconds = copy_seconds(config.cluster, config.workload().parameter_bytes)
        seconds += most * config.decode_cost * frame_s
        return [self.simulation.pause(seconds, "decode")] if seconds else []

    def _decode(self) -> list[DecodeStats]:
        """Decode all frames of this pass with the parameters at its start."""
        every = range(len(self._setup.train))
        decoded = self._setup.decoder.decode([self._decoded_with] * len(every), every)
        self._x = torch.cat([each.x for each in decoded])
        self._outer = torch.cat([each.outer for each in decoded])
        drawn = stream(self._config.seed, "sequence frames", self._pass)
        self._shuffled = drawn.permutation(len(self._x))
        return [each.seen for each in decoded]

    def _minibatch(self, keys: Sequence[Key]) -> Minibatch:
        size = self._config.slots
        index = np.full((len(keys), size), -1)
        for row, (_, step) in enumerate(keys):
            frames = self._shuffled[(step - self._steps_before) * size :][:size]
            index[row, : len(frames)] = frames
        at = torch.as_tensor(index).to(self._x.device)
        return Minibatch(self._x[at], self._outer[at] * (at >= 0).unsqueeze(2))

    def capture(self) -> tuple[stale_Arrays, stale_Facts]:
        """See `Executor`; stores the decoding parameters, from which a resume decodes again."""
        replay, facts = self.replay.capture()
        arrays = {
            **resume.add_prefix(self.simulation.state(), "simulation/"),
            **resume.add_prefix(replay, "replay/"),
            "decoded_with": self._decoded_with.cpu().numpy(),
        }
        place = {"pass": self._pass, "step": self._step, "steps_before": self._steps_before}
        return arrays, {"replay": facts, "open": len(self._shuffled) > 0, **place}

    def reinstate(self, arrays: stale_Arrays, facts: stale_Facts) -> None:
        """See `Executor`."""
        self._pass, self._step = facts["pass"], facts["step"]
        self._steps_before = facts["steps_before"]
        self.simulation = self.simulation.with_state(resume.part(arrays, "simulation/"))
        self.replay.reinstate(resume.part(arrays, "replay/"), facts["replay"])
        self._decoded_with.copy_(torch.as_tensor(arrays["decoded_with"]))
        if facts["open"]:
            self._decode()


Arrays = dict[str, np.ndarray]

Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class KeptFrames:
    """The kept frames of an utterance.

    Attributes:
        utterance: its number, counted over all replicas in order of decoding.
        x: inputs [F, D] of its frames.
        outer: their outer gradients [F, K].
    """

    utterance: int
    x: Tensor
    outer: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Cursor:
    """An utterance that is being trained on, with the index of its next frame."""

    kept: KeptFrames
    at: int = 0


Frame = tuple[KeptFrames, int]


class Entry(NamedTuple):
    """Entry of an utterance into a slot, in its replica's step ``first_step``."""

    slot: int
    utterance: int
    first_step: int


@dataclass
class Batcher:
    """Builds minibatches in the order of the replicas' reads.

    Args:
        slots: frames of a minibatch.
        shuffled: whether each slot has an utterance of its own.
    """

    slots: int
    shuffled: bool
    decoded: dict[int, KeptFrames] = field(default_factory=dict[int, KeptFrames])
    entering: dict[int, deque[Entry]] = field(default_factory=dict[int, deque[Entry]])
    current: dict[int, deque[Cursor] | list[Cursor | None]] = field(
        default_factory=dict[int, deque[Cursor] | list[Cursor | None]]
    )
    steps: dict[int, int] = field(default_factory=dict[int, int])
    chosen: dict[Key, list[Frame]] = field(default_factory=dict[Key, list[Frame]])
    last_step: int = -1

    def add(self, kept: KeptFrames) -> None:
        """Store an utterance that will enter a minibatch, unless it has no frames."""
        if len(kept):
            self.decoded[kept.utterance] = kept

    def follow(self, segment: Timeline) -> None:
        """Choose the frames of every minibatch that was read in a segment."""
        self.expect(segment.decodes)
        for step, worker in sorted(_keys(segment.contributions)):
            if step > self.last_step:
                self.read(worker, step)

    def expect(self, decodes: Decodes) -> None:
        """Queue the entries of utterances into slots."""
        for worker, *entry in _rows(decodes):
            self.entering.setdefault(worker, deque()).append(Entry(*entry))

    def read(self, worker: int, step: int) -> None:
        """Choose the frames of a worker's next minibatch, which has the number ``step``."""
        own = self.steps.get(worker, 0)
        self.steps[worker] = own + 1
        # A replica may take an utterance well before it has all frames of that step.
        entering = self.entering.get(worker, deque())
        while entering and entering[0].first_step == own:
            entry = entering.popleft()
            kept, place = Cursor(self.decoded.pop(entry.utterance)), self._place(worker)
            if isinstance(place, deque):  # without shuffling at the end of the queue
                place.append(kept)
            else:
                place[entry.slot] = kept
        self.chosen[worker, step] = list(self._choose(worker))
        self.last_step = step

    def minibatch(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of several replicas' steps, padded with zeros to equal numbers.

        Returns:
            ``x [W, B, D]`` and, in place of targets, outer gradients ``[W, B, K]``.
        """
        return pad_minibatches([self.chosen.pop(key) for key in keys])

    def _place(self, worker: int) -> deque[Cursor] | list[Cursor | None]:
        if worker not in self.current:
            empty: list[Cursor | None] = [None] * self.slots
            self.current[worker] = empty if self.shuffled else deque()
        return self.current[worker]

    def _choose(self, worker: int) -> Iterable[Frame]:
        place = self._place(worker)
        if isinstance(place, deque):
            yield from _consecutive(place, self.slots)
            return
        for slot, cursor in enumerate(place):
            if cursor is not None:
                yield cursor.kept, cursor.at
                cursor.at += 1
                if cursor.at == len(cursor.kept):
                    place[slot] = None

    # -- to go on later -----------------------------------------------------------------

    def capture(self) -> tuple[Arrays, Facts]:
        """The state as arrays and facts."""
        every = {kept.utterance: kept for kept in self._iter_kept_frames()}
        arrays = {
            f"{kept.utterance}/{name}": tensor.cpu().numpy()
            for kept in every.values()
            for name, tensor in (("x", kept.x), ("outer", kept.outer))
        }
        facts = {
            "utterances": sorted(every),
            "decoded": list(self.decoded),
            "current": [
                [worker, [c and [c.kept.utterance, c.at] for c in place]]
                for worker, place in self.current.items()
            ],
            "entering": [[worker, list(rows)] for worker, rows in self.entering.items()],
            "steps": list(self.steps.items()),
            "chosen": [
                [*key, [[kept.utterance, at] for kept, at in frames]]
                for key, frames in self.chosen.items()
            ],
            "last_step": self.last_step,
        }
        return arrays, facts

    def reinstate(self, arrays: Arrays, facts: Facts, device: str) -> None:
        """Undo ``capture``."""
        every = {
            u: KeptFrames(
                u, *(torch.as_tensor(arrays[f"{u}/{n}"]).to(device) for n in ("x", "outer"))
            )
            for u in facts["utterances"]
        }
        self.decoded = {u: every[u] for u in facts["decoded"]}
        for worker, place in facts["current"]:
            cursors = [entry and Cursor(every[entry[0]], entry[1]) for entry in place]
            self.current[worker] = cursors if self.shuffled else deque(cursors)
        for worker, rows in facts["entering"]:
            self.entering[worker] = deque(Entry(*row) for row in rows)
        self.steps = dict(facts["steps"])
        self.chosen = {
            (worker, step): [(every[u], at) for u, at in frames]
            for worker, step, frames in facts["chosen"]
        }
        self.last_step = facts["last_step"]

    def _iter_kept_frames(self) -> Iterable[KeptFrames]:
        yield from self.decoded.values()
        for place in self.current.values():
            yield from (cursor.kept for cursor in place if cursor is not None)
        for frames in self.chosen.values():
            yield from (kept for kept, _ in frames)


def _consecutive(queue: deque[Cursor], most: int) -> Iterable[Frame]:
    """Take the next frames of a queue of utterances; exhausted utterances are removed."""
    for _ in range(most):
        if not queue:
            return
        cursor = queue[0]
        yield cursor.kept, cursor.at
        cursor.at += 1
        if cursor.at == len(cursor.kept):
            queue.popleft()


def pad_minibatches(minibatches: Sequence[Sequence[Frame]]) -> Minibatch:
    """Stack several minibatches of frames, padded with zeros to the longest.

    Returns:
        ``x [W, B, D]`` and, in place of targets, outer gradients ``[W, B, K]``.
    """
    most = max(map(len, minibatches))
    x = torch.stack([_pad_rows([kept.x[at] for kept, at in each], most) for each in minibatches])
    outer = [_pad_rows([kept.outer[at] for kept, at in each], most) for each in minibatches]
    return Minibatch(x, torch.stack(outer))


def _pad_rows(rows: list[Tensor], size: int) -> Tensor:
    """Stack rows, followed by rows of zeros up to ``size``."""
    return torch.stack(rows + [torch.zeros_like(rows[0])] * (size - len(rows)))


def _keys(rows: Contributions) -> Iterable[tuple[int, int]]:
    """(first_step, worker) of contributions."""
    return zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True)


def _rows(rows: Decodes) -> Iterable[tuple[int, int, int, int]]:
    columns = (rows.worker, rows.slot, rows.utterance, rows.first_step)
    return zip(*(column.tolist() for column in columns), strict=True)
