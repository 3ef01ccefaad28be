"""The record of sequence training on real processes: a timeline, and what decoders said.

Beside the timeline one file holds a row for every utterance that entered a minibatch, or of
which nothing was kept: who decoded it, with which version, how much was kept, and at which version
the server was told. With the model that training started from, that is all a replay needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from harness.base.errors import UserError
from harness.execution.processes.recorder import Recorder, Work, table
from harness.execution.replay.state import Arrays
from harness.simulator import Timeline
from harness.simulator.timeline import Decodes


class Row(NamedTuple):
    """An utterance that the server was told of.

    Attributes:
        number: counted over all replicas in order of decoding.
        worker: whose decoder.
        utterance: which training utterance.
        decode_version: the version it was decoded with.
        entering: frames that enter minibatches.
        told_version: how many folds there had been when the server was told.
    """

    number: int
    worker: int
    utterance: int
    decode_version: int
    entering: int
    told_version: int


@dataclass
class DecodeLog:
    """Which utterances were decoded, with what, and what of them was trained on.

    Attributes:
        rows: in the order of telling.
        restarts: the minibatches with whose number all replicas began anew with empty slots.
        lost_frames: kept frames that were lost with whoever held them.
    """

    rows: list[Row] = field(default_factory=list[Row])
    restarts: list[int] = field(default_factory=list[int])
    lost_frames: int = 0

    def arrays(self) -> Arrays:
        """As columns."""
        table = np.array(self.rows, np.int64).reshape(-1, len(Row._fields))
        return {
            **{name: table[:, at].copy() for at, name in enumerate(Row._fields)},
            "restarts": np.array(self.restarts, np.int64),
            "lost_frames": np.array([self.lost_frames], np.int64),
        }

    @classmethod
    def of(cls, arrays: Arrays) -> DecodeLog:
        """Undo ``arrays``."""
        rows = zip(*(arrays[name].tolist() for name in Row._fields), strict=True)
        restarts, lost = arrays["restarts"].tolist(), int(arrays["lost_frames"][0])
        return cls([Row(*row) for row in rows], restarts, lost)


def load_decode_log(path: Path) -> tuple[DecodeLog, Tensor]:
    """A run's decode log, and the parameters ``[P]`` it started from.

    Raises:
        UserError: the file is missing, as of a simulated run, or another one.
    """
    if not path.exists():
        raise UserError(f"{path.parent}: has no {path.name}; allowed: a run on real processes")
    try:
        arrays = load_file(path)
        return DecodeLog.of(arrays), torch.as_tensor(arrays["start"])
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as what decoders said: {error}") from error


class SequenceRecorder(Recorder):
    """A `Recorder` that knows what each contribution's frames were decoded with."""

    def __init__(self) -> None:
        super().__init__()
        self._oldest: dict[int, int] = {}
        self._decodes: list[tuple[float, ...]] = []

    def read(self, work: Work, oldest: int) -> None:
        """A contribution begins whose frames were decoded with versions from ``oldest`` on."""
        self._oldest[work.step] = oldest

    def entered(
        self, worker: int, slot: int, number: int, version: int, *, read_s: float, step: int,
        kept: int,
    ) -> None:  # fmt: skip
        """An utterance enters its replica's step ``step``; see `Decodes`."""
        self._decodes.append((worker, slot, number, version, read_s, step, kept))

    def oldest(self, works: Iterable[Work]) -> list[int]:
        """Of contributions, the oldest version that frames were decoded with."""
        return [self._oldest[work.step] for work in works]

    def segment(self, in_flight: Iterable[Work]) -> Timeline:
        """See `Recorder`; with decodes, and decode versions of contributions."""
        timeline = super().segment(in_flight)
        rows, decodes = timeline.contributions, table(Decodes, self._decodes)
        oldest = np.array([self._oldest[step] for step in rows.first_step.tolist()], np.int64)
        done = set(rows.where(rows.fold >= 0).first_step.tolist())
        self._oldest = {step: v for step, v in self._oldest.items() if step not in done}
        self._decodes = []
        return replace(
            timeline,
            contributions=replace(rows, decode_version=oldest),
            decodes=decodes,
        )
