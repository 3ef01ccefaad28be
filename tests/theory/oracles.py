"""What theory says of every algorithm, and what it does: one function each.

``python -m tests.theory.oracles`` prints the table of docs/algorithms.md.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd, ClippedSgd
from harness.algorithms.averaging import (
    LOCAL,
    BlockMomentum,
    Easgd,
    GradientAveraging,
    ModelAveraging,
    OuterNesterov,
)
from harness.algorithms.compression import OWN, RESIDUE, Compressed, TopK
from harness.algorithms.contract import Algorithm, Fold
from harness.algorithms.descent import AdamW, Momentum
from harness.algorithms.diloco import AHEAD, EagerDiLoCo, ElasticDiLoCo, StreamingDiLoCo
from harness.algorithms.stale import (
    USED,
    DelayCompensated,
    DelayedNesterov,
    FedBuff,
    PartialFolds,
    Ringmaster,
    ServerDescent,
    StalenessAware,
)
from harness.experiment.loop import slice_timeline
from harness.simulator.cluster import Cluster, Device, WorkerGroup, Workload
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from reproductions.staleness.quantities import stable_rate as delayed_stable_rate
from tests.theory.bowl import at_zero, in_rounds, replayed, stale, vector, walked

SGD = Momentum(0.0)
"""Plain local steps, along the gradient of any network."""
ONES, START = vector(1.0, 1.0, 1.0), vector(1.0, -2.0, 0.5)
CURVATURE = vector(1.0, 0.5, 0.25)


class Figure(NamedTuple):
    """One figure of theory.

    Args:
        what: in words.
        expected: by theory.
        found: by a run.
        within: how far they may be apart; for a bound, infinite, ``found`` being at most it.
    """

    what: str
    expected: float
    found: float
    within: float

    @property
    def holds(self) -> bool:
        """Whether they agree."""
        if math.isinf(self.within):
            return self.found <= self.expected
        return abs(self.found - self.expected) <= self.within


def apart(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def same(what: str, one: Tensor, other: Tensor, within: float = 1e-14) -> Figure:
    """A distance that is none."""
    return Figure(what, 0.0, apart(one, other), within)


def stable_rate(tau: int) -> float:
    """The largest of ``theta <- theta - rate theta(t - tau)``: roots of the delay polynomial."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))


def found_stable_rate(algorithm: Algorithm, tau: int, guess: float) -> float:
    """Where a bowl's iterates neither grow nor shrink, between 4% below and above a guess."""
    rates, growths, folds = (0.96 * guess, 1.04 * guess), [], 60 * (tau + 1)
    for rate in rates:
        size = walked(algorithm, stale(folds, tau), ONES[:1], START[:1], rate).abs().squeeze(1)
        windows = (size[folds // 3 : 2 * folds // 3], size[2 * folds // 3 : folds])
        early, late = (math.log(window.max()) for window in windows)
        growths.append(late - early)
    low, high = growths
    return rates[0] + (rates[1] - rates[0]) * -low / (high - low)


def serial(optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], steps: int) -> Tensor:
    """PyTorch's own way down the bowl, ``[steps + 1, P]``."""
    weight = START.clone().requires_grad_()
    made, seen = optimizer([weight]), [START]
    for _ in range(steps):
        weight.grad = CURVATURE * weight.detach()
        made.step()
        seen.append(weight.detach().clone())
    return torch.stack(seen)


# -- asynchronous steps along gradients ------------------------------------------------------


def asynchronous_sgd() -> Figure:
    tau = 4
    found = found_stable_rate(AsyncSgd(), tau, stable_rate(tau))
    return Figure(f"largest stable rate at τ = {tau}", stable_rate(tau), found, 2e-3)


def local_optimizer() -> Figure:
    theirs = serial(lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1), 30)
    ours = walked(AsyncDescent(AdamW(decay=0.1)), stale(30, 0), CURVATURE, START, 0.05)
    return same("AdamW, τ = 0: largest distance from torch.optim.AdamW", ours, theirs)


def server_optimizer() -> Figure:
    """Roots of the delayed heavy ball's polynomial: momentum costs ten times under staleness."""
    tau, expected = 4, delayed_stable_rate(4, 0.9)
    found = found_stable_rate(ServerDescent(Momentum(0.9)), tau, expected)
    return Figure(
        f"momentum 0.9: largest stable rate at τ = {tau}", expected, found, 5e-3 * expected
    )


def staleness_aware() -> Figure:
    tau = 4
    expected = tau * stable_rate(tau)
    found = found_stable_rate(StalenessAware(), tau, expected)
    return Figure(f"largest stable rate at τ = {tau}", expected, found, 8e-3)


def delay_compensation() -> Figure:
    """At ``theta_read = 1`` lambda g g is the bowl's curvature, so Taylor's formula is exact."""
    algorithm = DelayCompensated(strength=1.0)
    server = algorithm.start(vector(1.0))
    for _ in range(3):  # the model moves on while a gradient at 1 is under way
        algorithm.fold(server, Fold(vector(0.5).unsqueeze(0), [0], 0.1))
    before = server.model.clone()
    algorithm.fold(server, Fold(vector(1.0).unsqueeze(0), [3], 1.0))
    compensated = (before - server.model).item()
    now = before.item()  # the gradient of theta^2 / 2 there
    return Figure(
        "τ = 3: compensated gradient, where λg² is the curvature", now, compensated, 1e-15
    )


def unequal(speeds, protocol) -> Simulation:
    """Workers of these speeds, the fastest of which take 1 s a minibatch."""
    groups = tuple(WorkerGroup(1, "card", speed=speed) for speed in speeds)
    cluster = Cluster(name="unequal", workers=groups, devices={"card": Device(launch_s=1.0)})
    return Simulation(cluster, protocol, Workload(1, 0.0, 0.0), len(speeds), 0)


def ringmaster() -> Figure:
    """Lemma 4.1: any R steps take at most ``2 min_m (sum 1/h / m)^-1 (1 + R / m)``."""
    speeds, most = [1.0] * 4 + [0.3] * 4 + [0.01] * 4, 8
    timeline = unequal(speeds, ParameterServer()).advance(folds=800)
    made = replayed(Ringmaster(most), timeline, ONES[:1], START[:1])
    used_s, used = [0.0], 0.0
    for fold, time_s in enumerate(timeline.folds.time_s.tolist()):
        made.run(slice_timeline(timeline, fold, fold + 1), 1e-3)
        if made.server.numbers[USED] > used:
            used = made.server.numbers[USED]
            used_s.append(time_s)
    longest = max(end - begin for begin, end in zip(used_s, used_s[most:], strict=False))
    ahead = np.cumsum(np.sort(speeds)[::-1])
    bound = min(2 * (m / speed) * (1 + most / m) for m, speed in enumerate(ahead, 1))
    return Figure(
        f"seconds for {most} steps with 12 unequal workers, at most", bound, longest, math.inf
    )


def clipped() -> Figure:
    """A clipped step of at most rate limit overshoots zero tau times more at most."""
    tau, rate, limit = 8, 3 * stable_rate(8), 0.1
    run = walked(ClippedSgd(limit), stale(400, tau), ONES[:1], vector(0.0) + 0.05, rate)
    bound, found = (tau + 1) * rate * limit, run.abs().max().item()
    told = "three times the stable rate at τ = 8: largest size of θ, at most"
    return Figure(told, bound, found, math.inf)


def partial_folds() -> Figure:
    """In the mean a part of a gradient, over its share, is the gradient: (1 - rate)^folds."""
    size, folds, rate, share = 20_000, 10, 0.1, 0.25
    start = torch.ones(size, dtype=torch.float64)
    timeline = stale(folds, 0)
    made = replayed(PartialFolds(share), timeline, start, start, at_zero(size))
    made.run(timeline, rate)
    mean = (1 - rate) ** folds
    square = ((1 - rate) ** 2 + rate**2 * (1 / share - 1)) ** folds
    error = math.sqrt((square - mean**2) / size)
    return Figure(
        "mean component after 10 folds of a quarter",
        mean,
        made.server.model.mean().item(),
        4 * error,
    )


# -- who waits for whom ----------------------------------------------------------------------


def stale_synchronous() -> Figure:
    bound, speeds = 3, (1.0, 1.0, 0.2)
    timeline = unequal(speeds, ParameterServer(bound=bound)).advance(folds=300)
    worker = timeline.folded().worker
    counts = (worker[:, None] == np.arange(3)).cumsum(0)
    ahead = float((counts.max(1) - counts.min(1)).max())
    return Figure(
        f"bound {bound}: contributions ahead of the slowest, at most", bound + 1, ahead, math.inf
    )


def backup_workers() -> Figure:
    """A round of N - b of N without jitter lasts as long as the (N - b)-th fastest."""
    speeds = (1.0, 0.9, 0.8, 0.1)
    timeline = unequal(speeds, BackupWorkers(backups=1)).advance(folds=20)
    rounds = walked(GradientAveraging(SGD), slice_timeline(timeline, 0, 20), CURVATURE, START, 0.1)
    expected = START * (1 - 0.1 * CURVATURE) ** 20
    assert apart(rounds[-1], expected) < 1e-14
    return Figure(
        "seconds a round, one of four dropped", 1 / 0.8, timeline.folds.time_s[-1] / 20, 1e-9
    )


# -- outer loops of single workers -----------------------------------------------------------


def fedbuff() -> Figure:
    """With a buffer of one and no discount: asynchronous SGD on differences."""
    ours = walked(FedBuff(SGD, 1, 1.0, 0.0), stale(40, 3), CURVATURE, START, 0.1)
    theirs = walked(AsyncSgd(), stale(40, 3), CURVATURE, START, 0.1)
    return same("K = 1, s = 1, τ = 3: largest distance from asynchronous SGD", ours, theirs)


def delayed_nesterov() -> Figure:
    algorithm = DelayedNesterov(SGD, every=1, momentum=0.9, outer_rate=0.7)
    theirs = serial(lambda p: torch.optim.SGD(p, 0.7 * 0.1, momentum=0.9, nesterov=True), 40)
    ours = walked(algorithm, stale(40, 0), CURVATURE, START, 0.1)
    return same(
        "N = 1, H = 1, τ = 0: largest distance from torch.optim.SGD(nesterov)", ours, theirs
    )


def elastic_diloco() -> Figure:
    """A quorum of one and one fragment is DiLoCo with one worker."""
    ours = walked(ElasticDiLoCo(SGD, quorum=1), stale(20, 0, steps=3), CURVATURE, START, 0.1)
    theirs = walked(
        ModelAveraging(SGD, outer=OuterNesterov()), in_rounds(20, 1, 3), CURVATURE, START, 0.1
    )
    return same("quorum 1, one worker: largest distance from DiLoCo", ours, theirs)


def easgd() -> Figure:
    """Where springs and bowls hold each other: the centre amid the bowls."""
    lows, rate, alpha = (-1.0, 0.5, 3.0), 0.2, 0.1
    timeline = in_rounds(600, 3, 1)
    algorithm = Easgd(SGD, alpha=alpha, beta=3 * alpha, rounds=True)
    made = replayed(algorithm, timeline, ONES[:1], START[:1], lambda worker, step: [lows[worker]])
    made.run(timeline, rate)
    centre = sum(lows) / 3
    workers = [(rate * low + alpha * centre) / (rate + alpha) for low in lows]
    found = torch.cat([made.memories.join(range(3)).tensors[LOCAL].squeeze(1), made.server.model])
    return same(
        "distance from the fixed point of three bowls", found, vector(*workers, centre), 1e-12
    )


# -- outer loops in rounds -------------------------------------------------------------------


def bmuf() -> Figure:
    algorithm = ModelAveraging(SGD, outer=BlockMomentum(0.9, 1.0))
    theirs = serial(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 40)
    ours = walked(algorithm, in_rounds(40, 4, 1), CURVATURE, START, 0.1)
    return same("H = 1: largest distance from torch.optim.SGD(momentum)", ours, theirs)


def diloco() -> Figure:
    algorithm = ModelAveraging(SGD, outer=OuterNesterov(0.9, 0.7))
    theirs = serial(lambda p: torch.optim.SGD(p, 0.07, momentum=0.9, nesterov=True), 40)
    ours = walked(algorithm, in_rounds(40, 4, 1), CURVATURE, START, 0.1)
    return same("H = 1: largest distance from torch.optim.SGD(nesterov)", ours, theirs)


def streaming_diloco() -> Figure:
    """Components of a bowl do not touch: each fragment is a DiLoCo of its own, at an offset."""
    fragments, steps, rate, rounds = 3, 2, 0.1, 30
    algorithm = StreamingDiLoCo(SGD, OuterNesterov(), fragments)
    ours = walked(algorithm, in_rounds(rounds, 4, steps), CURVATURE, START, rate)[-1]
    theirs = []
    for k, (theta, curved) in enumerate(zip(START.tolist(), CURVATURE.tolist(), strict=True)):
        speed, syncs = 0.0, [k, *range(k + fragments, rounds, fragments)]
        for before, now in pairwise([-1, *syncs]):
            slope = theta * (1 - (1 - rate * curved) ** (steps * (now - before)))
            speed = 0.9 * speed + slope
            theta -= 0.7 * (slope + 0.9 * speed)
        theirs.append(theta)
    return same("3 fragments: largest distance from 3 separate DiLoCos", ours, vector(*theirs))


def eager_diloco() -> Figure:
    """One worker knows everything at once: overlapped, it is where DiLoCo without overlap is."""
    timeline = in_rounds(20, 1, 3, late=1)
    made = replayed(EagerDiLoCo(1, SGD), timeline, CURVATURE, START)
    made.run(slice_timeline(timeline, 0, 19), 0.1)
    mine = (
        made.replicas[next(iter(made.in_flight.values()))]
        + made.memories.join([0]).tensors[AHEAD][0]
    )
    theirs = walked(
        ModelAveraging(SGD, outer=OuterNesterov()), in_rounds(20, 1, 3), CURVATURE, START, 0.1
    )
    return same("one worker, overlapped: distance from DiLoCo", mine, theirs[19])


def compressed() -> Figure:
    """Stich, Cordonnier and Jaggi (1809.07599): less the residues, a model has all gradients."""
    algorithm, rounds, rate = Compressed(GradientAveraging(SGD), TopK(1 / 3)), 30, 0.1
    timeline = in_rounds(rounds, 4, 1)
    made, summed = replayed(algorithm, timeline, CURVATURE, START), START.clone()
    for fold in range(rounds):
        summed -= rate * CURVATURE * made.server.model
        made.run(slice_timeline(timeline, fold, fold + 1), rate)
    residue = made.memories.join(range(4)).tensors[OWN + RESIDUE].mean(0)
    found = made.server.model - rate * residue
    return same("a third sent: model less residue, distance from all gradients", found, summed)


ORACLES: dict[str, Callable[[], Figure]] = {
    "AsyncSgd": asynchronous_sgd,
    "AsyncDescent": local_optimizer,
    "ServerDescent": server_optimizer,
    "stale synchronous parallel": stale_synchronous,
    "StalenessAware": staleness_aware,
    "DelayCompensated": delay_compensation,
    "Ringmaster": ringmaster,
    "ClippedSgd": clipped,
    "PartialFolds": partial_folds,
    "FedBuff": fedbuff,
    "DelayedNesterov": delayed_nesterov,
    "ElasticDiLoCo": elastic_diloco,
    "Easgd": easgd,
    "backup workers": backup_workers,
    "BMUF": bmuf,
    "DiLoCo": diloco,
    "StreamingDiLoCo": streaming_diloco,
    "EagerDiLoCo": eager_diloco,
    "Compressed": compressed,
}
"""By the name in docs/algorithms.md."""


def main() -> None:
    """Print the table."""
    print("| algorithm | quantity | predicted | measured |\n|---|---|---|---|")
    for name, oracle in ORACLES.items():
        figure = oracle()
        print(f"| {name} | {figure.what} | {figure.expected:.4g} | {figure.found:.4g} |")


if __name__ == "__main__":
    main()
