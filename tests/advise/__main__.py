"""How much slower than the best is the advised candidate, and at which share of a grid's cost?

    python -m tests.advise [PROBLEM ...]

Three problems on clusters of eight workers. For each, `advise` searches; then every candidate has
its rate searched and is trained in full, and the best of both is trained with seeds of neither.
The table in docs/howto/advise.md is what this prints.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import lagbench
from harness.base.settings import format_seconds
from harness.judge.direction import as_error
from harness.modules.experiment import Experiment
from harness.search.advice import AdviceOutcome, expand, seconds_to
from harness.simulator import Cluster, Device, Jitter, Link, WorkerGroup

ALGORITHMS, WORKERS, INTERVALS = ("async", "sync", "averaging"), (2, 4, 8), (4, 16)
FRESH = range(10, 16)
"""Seeds of the trainings that decide how much slower the advised candidate is."""

STEP_S = 0.02


def cluster(name: str, copy_s: float, jitter: float = 0.0) -> Cluster:
    """Eight workers with a step of 20 ms.

    Args:
        name: the name.
        copy_s: seconds of a copy of 1 MB over a worker's link.
        jitter: coefficient of variation of a step.
    """
    return Cluster(
        name, {"card": Device(launch_s=STEP_S)}, (WorkerGroup(8, "card"),),
        link=Link(latency_s=1e-4, bandwidth_bytes_per_s=1e6 / copy_s),
        jitter=Jitter("lognormal", jitter) if jitter else Jitter(),
    )  # fmt: skip


def drawn(count: int, shape: tuple[int, ...], kinds: int, noise: float) -> tuple[Any, Any]:
    """Noisy copies of some patterns, and the pattern of each."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(kinds, *shape, generator=generator)
    y = torch.randint(kinds, (count,), generator=generator)
    return patterns[y] + noise * torch.randn(count, *shape, generator=generator), y


def sequences(count: int) -> tuple[Any, Any]:
    """Rows of ten tokens of six, each of which follows from the two before it or is random."""
    generator = torch.Generator().manual_seed(8)
    rows = torch.randint(6, (count, 11), generator=generator)
    chance = torch.rand(count, 11, generator=generator) < 0.2
    for place in range(2, 11):
        after = (rows[:, place - 1] + 2 * rows[:, place - 2]) % 6
        rows[:, place] = torch.where(chance[:, place], rows[:, place], after)
    return rows[:, :-1], rows[:, 1:]


class Transformer(nn.Module):
    """One block of width 16 over ten tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(6, 16), nn.Embedding(10, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 6)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.token(x) + self.place.weight
        return self.out(self.block(hidden, src_mask=self.mask, is_causal=True))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 8),
    )  # fmt: skip


def of_tokens(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


PROBLEMS: dict[str, dict[str, Any]] = {
    "logistic regression, slow links": {
        "model": lambda: nn.Linear(30, 6), "loss": nn.functional.cross_entropy,
        "data": drawn(1200, (30,), 6, 4.0), "machines": cluster("slow links", 0.05),
    },
    "convolutions, fast links": {
        "model": convolutions, "loss": nn.functional.cross_entropy,
        "data": drawn(1200, (8, 8), 8, 2.0), "machines": cluster("fast links", 0.001),
    },
    "transformer, uneven steps": {
        "model": Transformer, "loss": of_tokens,
        "data": sequences(500), "machines": cluster("uneven steps", 0.01, 0.5),
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "minibatch": 10, "passes": 6, "seeds": 3, "dev": 0.2, "metric": "loss", "evaluations": 10,
    "parameter_bytes": 1e6, "step_seconds": STEP_S, "store": Path("advise-runs"),
}  # fmt: skip


def search(problem: dict[str, Any], exhaustive: bool = False) -> AdviceOutcome:
    """Advice on a problem, or all its candidates trained in full."""
    given = (problem["model"], problem["loss"], problem["data"], problem["machines"])
    with Experiment(*given, COMMON) as experiment:  # pyright: ignore[reportArgumentType]
        grid = experiment.grid([*expand(ALGORITHMS, INTERVALS)], [1, *WORKERS], None)
        return experiment.advise(grid, exhaustive=exhaustive)


def fresh_seconds(problem: dict[str, Any], row: Any, target: float) -> float:
    """Geometric mean of the seconds to a target with seeds that decided nothing."""
    given = {name: each for name, each in problem.items() if name != "machines"}
    found = lagbench.train(
        *given.values(), cluster=problem["machines"], algorithm=row.cell.method,
        workers=row.cell.workers, rate=row.cell.rate, target=target,
        **{**COMMON, "seeds": [*FRESH]},
    )  # fmt: skip
    judged = row.cell.judged
    times = [seconds_to(run, judged, as_error(run, target)) for run in found.runs]
    return float(np.exp(np.mean(np.log(times))))


def main(names: list[str]) -> None:
    """Print a row for each problem."""
    print("| problem | advised | best of the grid | regret | share of the grid's cost |")
    print("|---|---|---|---|---|")
    for name in names or PROBLEMS:
        problem, began = PROBLEMS[name], time.process_time()
        advised = search(problem)
        spent = time.process_time() - began
        advice = lagbench.Advice(advised)
        grid = search(problem, exhaustive=True)
        best = lagbench.Advice(grid)
        seconds = [fresh_seconds(problem, each.rows[0], advised.target) for each in (advice, best)]
        told = [
            f"{each.algorithm}, {each.workers} workers, {format_seconds(float(f'{s:.3g}'))}"
            for each, s in zip((advice, best), seconds, strict=True)
        ]
        share = advised.cost / grid.cost
        print(
            f"| {name} | {told[0]} | {told[1]} | {seconds[0] / seconds[1] - 1.0:.0%} |"
            f" {share:.0%} ({advised.cost:.0f} of {grid.cost:.0f}) |",
            flush=True,
        )
        print(f"{advice}\n{spent:.0f} s of processor time\n{best}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
