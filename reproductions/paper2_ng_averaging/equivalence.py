"""Paper 2's section 3: averaging models after every update is averaging gradients."""

from __future__ import annotations

import torch

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout, random_parameters
from harness.algorithms.contract import Memory, Minibatch
from harness.algorithms.gradient_averaging import GradientAveraging
from harness.algorithms.model_averaging import ModelAveraging
from harness.judge.claims import judge_size
from harness.judge.results import Claim
from harness.judge.statistics import Interval
from reproductions.paper import Runs, Subject

LEVELS, WORKERS, FRAMES, FOLDS, RATE = (20, 16, 16, 10), 16, 8, 50, 2.0
ROUNDING = 1e-12
"""What float64 may round away over so many folds: theta - mean(r g) and mean(theta - r g) are
rounded differently."""


def equivalence(subject: Subject, runs: Runs) -> Claim:
    """Model averaging after every update is gradient averaging."""
    del subject, runs
    apart, moved = difference()
    found = Interval.exact(apart)
    return Claim(
        "p2.equivalence",
        "Averaging models after each weight update is equivalent to gradient averaging",
        "Section 3",
        f"largest difference of a parameter after {FOLDS} folds of {WORKERS} workers, float64; "
        f"at most {ROUNDING:g}",
        "equal",
        found.estimate,
        found.ci95,
        judge_size(found, (0.0, ROUNDING)),
        note=f"Computed when the report is made; the same parameters moved by up to {moved:.2g}.",
    )


def difference() -> tuple[float, float]:
    """How far both methods end apart from the same start, and how far they went."""
    network = Dnn(Layout(LEVELS))
    start = random_parameters(network.layout, torch.Generator().manual_seed(1), 4.0)[0].double()
    ends = [_trained(method, network, start) for method in (ModelAveraging(), GradientAveraging())]
    apart, moved = (ends[0] - ends[1]).abs().max(), (ends[0] - start).abs().max()
    return apart.item(), moved.item()


@torch.no_grad()
def _trained(
    method: ModelAveraging | GradientAveraging, network: Dnn, start: torch.Tensor
) -> torch.Tensor:
    """The model ``[P]`` after all folds over drawn frames."""
    generator = torch.Generator().manual_seed(2)
    server, memory = method.start(start), Memory()
    for _ in range(FOLDS):
        x = torch.randn(WORKERS, FRAMES, LEVELS[0], generator=generator, dtype=torch.float64)
        targets = torch.randint(LEVELS[-1], (WORKERS, FRAMES), generator=generator)
        replicas = server.model.repeat(WORKERS, 1)
        out = torch.empty_like(replicas)
        method.contribute(network, replicas, [Minibatch(x, targets)], out, RATE, memory)
        method.fold(server, out, [0] * WORKERS, RATE)
    return server.model
