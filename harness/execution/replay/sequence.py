"""The replay of a timeline in which replicas have decoders with reads of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.execution.replay.stale import StaleReplay
from harness.simulator import Timeline, Untold


@dataclass
class SequenceReplay(StaleReplay):
    """A `StaleReplay` that also keeps the parameters every decoder has read.

    A replica has one contribution under way at most, and its decoder one utterance, so there are
    as many rows of each as ``slots``.
    """

    decoders: Tensor = field(init=False)
    decoder_versions: list[int] = field(init=False)
    _due: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decoders = torch.zeros_like(self.replicas)
        self.decoder_versions = [-1] * self.slots

    def follow(self, segment: Timeline, rate: float, begun: Untold) -> None:
        """Execute a segment at whose end the utterances ``begun`` are being decoded."""
        for worker, version in zip(
            begun.worker.tolist(), begun.decode_version.tolist(), strict=True
        ):
            if version != self.decoder_versions[worker]:
                self._due.setdefault(version, []).append(worker)
        self.run(segment, rate)
        if self._due:
            raise ValueError(f"decoders read versions {sorted(self._due)} that have gone by")

    def _is_shown(self, version: int) -> bool:
        return version in self._due

    def _show(self) -> None:
        for worker in self._due.pop(self.server.version, ()):
            self.decoders[worker].copy_(self.server.model)
            self.decoder_versions[worker] = self.server.version
