"""What each scale decides about paper 2's runs."""

from __future__ import annotations

from dataclasses import dataclass

from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner


@dataclass(frozen=True)
class Preset:
    """What a scale decides.

    Args:
        hidden: units of the hidden layers (the paper: six of 2048).
        minibatch: frames, where the paper has 1024; a small one, so that a pass over a small
            corpus still makes many rounds.
        share: of the training set that is trained on.
        passes: where the paper has 15.
        most_passes: newbob ends by itself; what does not would end here.
        ranks: of natural gradient's estimates, of inputs and of output derivatives.
        period: minibatches between their updates.
        history: frames over which they forget.
        max_change: how far a frame may move a layer's parameters on average, for SGD too.
        seeds: how many by default.
        cells: workers of the cells that the law of averages is fitted to.
        pretraining: passes of each machine, the first layer's twice as many, where pretraining is
            compared with none; elsewhere 1.
    """

    hidden: tuple[int, ...]
    minibatch: int
    share: float
    passes: int
    most_passes: int
    ranks: tuple[int, int]
    period: int
    history: float
    max_change: float
    seeds: int
    cells: tuple[int, int]
    pretraining: int = 1


PRESETS = {
    "smoke": Preset((64,) * 2, 32, 0.25, 2, 3, (10, 20), 4, 500.0, 0.4, 2, (2, 4)),
    "laptop": Preset((128,) * 4, 32, 0.105, 8, 40, (10, 20), 4, 500.0, 0.4, 3, (2, 8)),
    "overnight": Preset((128,) * 4, 32, 1.0, 8, 40, (10, 20), 4, 500.0, 0.4, 5, (8, 32), 5),
    "gpu": Preset((512,) * 6, 256, 1.0, 4, 20, (30, 60), 4, 2000.0, 0.075, 3, (8, 32)),
    "paper": Preset((2048,) * 6, 1024, 1.0, 15, 40, (40, 40), 1, 2000.0, 0.075, 3, (8, 32)),
}
SEEDS = {scale: preset.seeds for scale, preset in PRESETS.items()}


def natural(preset: Preset) -> NaturalGradient:
    """Natural gradient under the preset's max-change."""
    inputs, outputs = (
        Preconditioner(rank, preset.period, history=preset.history) for rank in preset.ranks
    )
    return NaturalGradient(inputs, outputs, PerSample(preset.max_change))


def plain(preset: Preset) -> NaturalGradient:
    """Plain SGD under the same max-change."""
    return NaturalGradient(None, None, PerSample(preset.max_change))
