"""Executor of sequence training on a simulated cluster, from streams of utterances.

`Streams` is paper 3's scheme: decoders and trainers side by side, utterance by utterance.
Simulated time and training advance together. The time of an utterance in its slot depends on the
number of its kept frames, and that on the parameters it is decoded with. So the executor decodes
the utterances in decoders, whose parameters are known, and gives their counts to the simulation;
the simulation then advances to the first end of a decoding with an unknown count, and the executor
replays every fold up to there.

`Batcher` assigns kept frames to steps (paper 3, section 3.1). With shuffling on the fly, each slot
of a replica's minibatch has an utterance and gives one frame per step; an empty slot takes the
next decoded one. Without, a replica's minibatches are cut from one utterance after another. The
times come from the simulator's timeline, row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness.acoustics.mmi import Outer
from harness.algorithms.saved import Saved
from harness.experiment.experiment import AnyExperiment
from harness.experiment.loop import OnSimulation
from harness.networks.contract import Minibatch
from harness.replay.fold_replay import StaleReplay
from harness.simulator.timeline import Contributions, Decodes, Timeline
from harness.speech.protocol import CountQueries
from harness.speech.sequence import Setup, Step, orders_of, simulation_of
from harness.tasks.order import Key

WITHOUT_LIMIT = 10**9
"""Folds of a simulation that ends by itself."""


@dataclass
class SequenceReplay(StaleReplay):
    """A `StaleReplay` that also keeps the parameters that every decoder has read.

    A replica has at most one contribution in flight, and its decoder one utterance, so each has
    ``slots`` rows.
    """

    SAVED = (*StaleReplay.SAVED, "decoders", "decoder_versions")

    decoders: Tensor = field(init=False)
    decoder_versions: list[int] = field(init=False)
    _due: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decoders = torch.zeros_like(self.replicas)
        self.decoder_versions = [-1] * self.slots

    def follow(self, segment: Timeline, rate: float, queries: CountQueries) -> None:
        """Execute a segment; ``queries`` are the utterances in decoders at its end."""
        for worker, version in zip(
            queries.worker.tolist(), queries.decode_version.tolist(), strict=True
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


class Streams(OnSimulation[SequenceReplay]):
    """Executor of sequence training, simulated.

    Args:
        config: what is run.
        setup: its parts.
    """

    SAVED = (*OnSimulation.SAVED, "batcher", "_decoded")

    def __init__(self, config: AnyExperiment, setup: Setup) -> None:
        self._config, self._setup = config, setup
        self.simulation = simulation_of(config, setup.train)
        self.batcher = Batcher(setup.protocol.slots, config.shuffling == "on the fly")
        self.replay = SequenceReplay(
            config.algorithm,
            setup.loss,
            config.algorithm.start(setup.part),
            self.batcher.minibatch,
            slots=config.workers,
        )
        self._orders = orders_of(config, setup.train)
        self._decoded = 0

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, by the decoders' progress."""
        return self._decoded / len(self._setup.train)

    def advance(self, rate: float) -> Step:
        """Advance at one learning rate to the next end of a decoding with an unknown count."""
        stats = self._decode()
        if any(utterance.trouble == "not finite" for utterance in stats):
            return Step([], stats, ended=False)
        self._decoded += len(stats)
        segment = self.simulation.advance(folds=WITHOUT_LIMIT)
        queries = self.simulation.asked()
        self.batcher.follow(segment)
        self.replay.follow(segment, rate, queries)
        return Step([segment], stats, ended=not len(queries.worker))

    def _decode(self) -> list[Outer]:
        """Decode the utterances in decoders, and give the simulation their kept frames."""
        queries = self.simulation.asked()
        models = [self.replay.decoders[worker] for worker in queries.worker.tolist()]
        utterances = self._orders[queries.worker, queries.number].tolist()
        decoded = self._setup.decoder.decode(models, utterances)
        for utterance, result in zip(queries.utterance.tolist(), decoded, strict=True):
            self.batcher.add(utterance, result.x, result.gradient)
        counts = [len(result.x) for result in decoded]
        self.simulation.answer(queries.worker, np.array(counts, np.int64))
        return [result.outer for result in decoded]


@dataclass
class Batcher(Saved):
    """Builds minibatches in the order of the replicas' reads.

    Args:
        slots: frames of a minibatch.
        shuffled: whether each slot has an utterance of its own.

    Attributes:
        kept: inputs [F, D] and outer gradients [F, K] of an utterance, until its last frame is
            chosen.
        places: frames of the minibatches that have not been read, by worker and number: slot,
            utterance, counted over all replicas, and index in the utterance.
        frames: number of frames of a worker's utterances so far.
        steps: number of minibatches by worker.
        chosen: the frames of each minibatch that has been read.
        last_step: number of the latest of these.
    """

    SAVED = ("kept", "places", "frames", "steps", "chosen", "last_step")

    slots: int
    shuffled: bool
    kept: dict[int, Minibatch] = field(default_factory=dict[int, Minibatch])
    places: dict[Key, list[tuple[int, int, int]]] = field(
        default_factory=dict[Key, list[tuple[int, int, int]]]
    )
    frames: dict[int, int] = field(default_factory=dict[int, int])
    steps: dict[int, int] = field(default_factory=dict[int, int])
    chosen: dict[Key, Minibatch] = field(default_factory=dict[Key, Minibatch])
    last_step: int = -1

    def add(self, utterance: int, x: Tensor, outer: Tensor) -> None:
        """Store an utterance that will enter a minibatch, unless it has no frames."""
        if len(x):
            self.kept[utterance] = Minibatch(x, outer)

    def follow(self, segment: Timeline) -> None:
        """Choose the frames of every minibatch that was read in a segment."""
        self.expect(segment.decodes)
        for step, worker in sorted(_keys(segment.contributions)):
            if step > self.last_step:
                self.read(worker, step)

    def expect(self, decodes: Decodes) -> None:
        """Note in which minibatch each frame of utterances that enter slots is."""
        for worker, slot, utterance, first_step in _rows(decodes):
            count, before = len(self.kept[utterance].x), self.frames.get(worker, 0)
            self.frames[worker] = before + count
            for at in range(count):
                number = first_step + at if self.shuffled else (before + at) // self.slots
                self.places.setdefault((worker, number), []).append((slot, utterance, at))

    def read(self, worker: int, step: int) -> None:
        """Choose the frames of a worker's next minibatch, which has the number ``step``."""
        number = self.steps.get(worker, 0)
        self.steps[worker] = number + 1
        frames = list[tuple[Tensor, Tensor]]()
        for _, utterance, at in sorted(self.places.pop((worker, number))):
            x, outer = self.kept[utterance]
            frames.append((x[at], outer[at]))
            if at + 1 == len(x):
                del self.kept[utterance]
        self.chosen[worker, step] = Minibatch(*map(torch.stack, zip(*frames, strict=True)))
        self.last_step = step

    def minibatch(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of several replicas' steps, padded with zeros to equal numbers.

        Returns:
            ``x [W, B, D]`` and, in place of targets, outer gradients ``[W, B, K]``.
        """
        columns = zip(*(self.chosen.pop(key) for key in keys), strict=True)
        return Minibatch(*(pad_sequence(list(part), batch_first=True) for part in columns))


def _keys(rows: Contributions) -> Iterable[tuple[int, int]]:
    """(first_step, worker) of contributions."""
    return zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True)


def _rows(rows: Decodes) -> Iterable[tuple[int, int, int, int]]:
    columns = (rows.worker, rows.slot, rows.utterance, rows.first_step)
    return zip(*(column.tolist() for column in columns), strict=True)
