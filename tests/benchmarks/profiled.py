"""Where a reproduction's processor time goes: one run, profiled, and the floor beneath it.

    python tests/benchmarks/profiled.py paper1 one_pass [--scale smoke] [--seed 0]

Times are the processor's, of one thread. The floor is what the run's gradients would take if
all their multiplications ran at the speed of one large product, measured here.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import torch

from data_synth import load_corpus
from harness.base.seeds import identity
from harness.grid import grid
from harness.grid.carriers import Parcel
from harness.networks.feedforward import Dnn
from harness.store import Store
from reproductions.command import PAPERS
from reproductions.paper import Subject

SIZE, COPIED = 1024, 64_000_000
ROWS = 25
NATURAL, GRADIENT = ("layer.py", "_factors"), ("dnn.py", "backward_from")
PARTS = {
    "gradients": (GRADIENT, NATURAL),
    "natural gradient": (("batched_layers.py", "step_"), GRADIENT),
    "the same by layer": (NATURAL, None),
    "gathering minibatches": (("frames.py", "gather"), None),
    "folds and reads": (("fold_replay.py", "_fold"), None),
    "simulating time": (("simulation.py", "advance"), None),
    "pretraining": (("rbm.py", "pretrain"), None),
    "forward passes alone": (("dnn.py", "logits"), None),
    "sequence criterion": (("mmi.py", "outer"), None),
    "decoding and tuning": (("tuning.py", "recognise"), None),
}
"""Functions, none inside another's time but what stands second, which is taken away.

Without natural gradient nothing is left of its row: gradients are more than it takes."""


def least_s(work: Callable[[], object]) -> float:
    """The least disturbed of nine measurements, in seconds of the processor."""
    took = []
    for _ in range(9):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def ceilings() -> tuple[float, float]:
    """FLOP a second of one large product, and bytes a second read and written by a copy."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    source, target = torch.ones(COPIED // 4), torch.empty(COPIED // 4)
    product_s, copy_s = least_s(lambda: torch.mm(a, b)), least_s(lambda: target.copy_(source))
    return 2 * SIZE**3 / product_s, 2 * COPIED / copy_s


class Products:
    """Counts what the gradients' matrix products take: 6 FLOP a weight and frame, the input
    layer's backward product left out."""

    def __init__(self) -> None:
        self.flops, backward = 0.0, Dnn.backward_from

        def counting(net, stack, x, inner, visit):
            frames = x.shape[0] * x.shape[1]
            weights = [m * n for m, n in pairwise(net.layout.sizes)]
            self.flops += frames * (6 * sum(weights) - 2 * weights[0])
            return backward(net, stack, x, inner, visit)

        Dnn.backward_from = counting


def parts(stats: pstats.Stats) -> dict[str, float]:
    """Seconds of each part, and of everything else."""

    def spent(function: tuple[str, str] | None) -> float:
        every = stats.stats.items()  # type: ignore[attr-defined]
        return sum(row[3] for (file, _, name), row in every if (Path(file).name, name) == function)

    found = {part: max(0.0, spent(whole) - spent(less)) for part, (whole, less) in PARTS.items()}
    return {**found, "everything else": stats.total_tt - sum(found.values())}  # type: ignore[attr-defined]


def main() -> None:
    """Profile one run in a store of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", choices=sorted(PAPERS))
    parser.add_argument("setting")
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    flops_per_s, bytes_per_s = ceilings()
    print(f"load {os.getloadavg()[0]:.1f}; product {flops_per_s / 1e9:.1f} GFLOP/s;", end=" ")
    print(f"copy {bytes_per_s / 1e9:.1f} GB/s")
    paper = import_module(PAPERS[asked.paper]).PAPER
    corpus = load_corpus(paper.corpus, scale=asked.scale)
    subject = Subject(asked.scale, corpus, 0, "cpu")
    config = paper.experiments(subject, asked.seed)[asked.setting]
    products, profile = Products(), cProfile.Profile(time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        run = Parcel((identity(config.to_dict()), config))
        profile.runcall(grid._execute, run, store=Store(Path(folder)), keeps_faults=True)
    floor_s = products.flops / flops_per_s
    print(f"gradients: {products.flops / 1e9:.1f} GFLOP, floor {floor_s:.2f} s")
    stats = pstats.Stats(profile)
    for part, seconds in parts(stats).items():
        print(f"{part:24}{seconds:8.2f} s {100 * seconds / stats.total_tt:5.0f}%")
    stats.sort_stats("cumulative").print_stats("harness|data_synth|reproductions", ROWS)


if __name__ == "__main__":
    main()
