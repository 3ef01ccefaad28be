"""Decoding while training: from utterances and stale parameters to outer gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_synth.corpus import Utterances
from harness.acoustics.dnn import Dnn
from harness.acoustics.mmi import Outer, SequenceCriterion
from harness.acoustics.stack import Layout
from harness.execution.frames import Frames
from harness.execution.sequence_config import SequenceConfig


@dataclass(frozen=True)
class Halves:
    """A network in two: a trunk that is never updated, and what is trained on its outputs.

    Args:
        trunk: the levels below, with their parameters [1, P]; None where all are trained.
        net: what is trained.
    """

    trunk: tuple[Dnn, Tensor] | None
    net: Dnn

    @classmethod
    def of(cls, net: Dnn, model: Tensor, layers: str) -> tuple[Halves, Tensor]:
        """The two halves, and the trained one's part [P'] of ``model [P]``."""
        if layers == "all":
            return cls(None, net), model
        top = Dnn(Layout(net.layout.sizes[-2:]), net.activation)
        below = Dnn(Layout(net.layout.sizes[:-1]), net.activation)
        size = below.layout.parameters
        return cls((below, model[:size].unsqueeze(0).clone()), top), model[size:]

    def inputs(self, x: Tensor) -> Tensor:
        """What the trained half sees [B, D'] of frames [B, D]."""
        if self.trunk is None:
            return x
        net, model = self.trunk
        level = net.logits(model, x.unsqueeze(0))[0]
        return level.sigmoid_() if net.activation == "sigmoid" else level.relu_()

    def whole(self, part: Tensor) -> Tensor:
        """The parameters [P] of the network whose trained half is ``part [P']``."""
        return part if self.trunk is None else torch.cat([self.trunk[1][0], part])


@dataclass
class Tally:
    """What decoding came across since the last look.

    Attributes:
        utterances, frames: how many were decoded.
        value: the criterion summed over those that have one, and their frames.
        kept, rejected, cancelled: frames.
        troubles: how many utterances had each.
    """

    utterances: int = 0
    frames: int = 0
    value: float = 0.0
    value_frames: int = 0
    kept: int = 0
    rejected: int = 0
    cancelled: int = 0
    troubles: Counter[str] = field(default_factory=Counter[str])

    def add(self, outer: Outer) -> None:
        """Count an utterance."""
        self.utterances += 1
        self.frames += outer.frames
        if np.isfinite(outer.value):
            self.value += outer.value
            self.value_frames += outer.frames
        self.kept += outer.used
        self.rejected += outer.rejected
        self.cancelled += outer.cancelled
        if outer.trouble:
            self.troubles[outer.trouble] += 1

    def take_in(self, other: Tally) -> None:
        """Count everything of another tally."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "troubles": dict(self.troubles)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        """Undo ``to_dict``."""
        return cls(**{**values, "troubles": Counter(values["troubles"])})


@dataclass(frozen=True)
class Decoder:
    """Decodes training utterances.

    Args:
        config: of the run.
        halves: the network.
        frames: the corpus on its device.
        train: its training utterances.
        criterion: gives outer gradients.
        silence: targets of silence.
    """

    config: SequenceConfig
    halves: Halves
    frames: Frames
    train: Utterances
    criterion: SequenceCriterion

    @torch.no_grad()
    def decode(self, part: Tensor, utterance: int) -> tuple[Tensor, Tensor, Outer]:
        """What one utterance's trainers get from parameters ``part [P']``.

        Returns:
            Inputs [F, D'] and outer gradients [F, K] of the frames that enter minibatches, and
            everything about the utterance.
        """
        first, length = int(self.train.start[utterance]), int(self.train.frames[utterance])
        rows = torch.arange(first, first + length, device=part.device)
        x = self.halves.inputs(self.frames.gather(rows.unsqueeze(0)).x[0])
        found = self.criterion.outer(
            log_posteriors(self.halves.net, part, x), self.train.words[utterance]
        )
        entering = torch.from_numpy(self._entering(found)).to(part.device)
        outer = torch.from_numpy(found.gradient).to(part.device, part.dtype)
        return x[entering], outer[entering], found

    def _entering(self, found: Outer) -> np.ndarray:
        if self.config.frames == "kept" or not found.used:
            return np.flatnonzero(found.kept)
        return np.arange(found.frames)


def log_posteriors(net: Dnn, model: Tensor, x: Tensor) -> np.ndarray:
    """Log p(s|x_t), float64 [T, K], of one model [P] for frames [T, D]."""
    logits = net.logits(model.unsqueeze(0), x.unsqueeze(0))[0]
    return torch.log_softmax(logits.double(), 1).cpu().numpy()


def broken(outers: Sequence[Outer]) -> bool:
    """Whether parameters no longer give numbers."""
    return any(outer.trouble == "not finite" for outer in outers)
