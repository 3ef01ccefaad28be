"""``--check``: comparison of a simulated timeline with queueing theory.

Some results hold for every distribution of times: Little's law on every queue and on the whole, the
server's utilisation, and bounds of the throughput. If theory has a solution for the cluster,
throughput and the wait for the server are compared with it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from harness.base.errors import UserError
from harness.simulator import Cluster, Level, Network, Simulation, Timeline, laws
from harness.simulator.costs import Costs, costs_of
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.protocols.state import is_networked
from harness.simulator.queueing import (
    Steady,
    Visits,
    constant_repair,
    lockstep,
    machine_repairman,
    mean_value_analysis,
    throughput_bounds,
    visits,
)

__all__ = ["Finding", "check", "findings", "has_closed_forms", "solution"]

SETTLED = 0.2  # share of the folds that is left out as warm-up
ENOUGH = 20  # folds for each worker, below which the warm-up still has an effect
MOST_SOLVED = 2000  # workers beyond which the chain of M/D/1//N takes too long
WIDTHS = (35, 10, 22, 8)
"""Widths of the columns, which are separated by a space."""


@dataclass(frozen=True)
class Finding:
    """One comparison with theory.

    Attributes:
        what: name of the quantity.
        measured: its value in the simulation.
        theory: its value in theory, or its lower and upper bound.
    """

    what: str
    measured: float
    theory: float | tuple[float, float]

    @property
    def error(self) -> float:
        """Distance from theory, relative to it; zero inside bounds."""
        low, high = self.theory if isinstance(self.theory, tuple) else (self.theory, self.theory)
        nearest = min(max(self.measured, low), high)
        return abs(self.measured - nearest) / nearest if nearest else abs(self.measured)

    def line(self) -> str:
        """The comparison as a line of at most 80 columns."""
        bounds = self.theory if isinstance(self.theory, tuple) else (self.theory,)
        theory = " to ".join(f"{edge:.4g}" for edge in bounds)
        error = f"{self.error:.2%}" if self.error < 10.0 else ">1000%"
        return _columns(self.what, f"{self.measured:.4g}", theory, error)


def has_closed_forms(protocol: TimingProtocol) -> bool:
    """Whether a protocol compares itself with theory."""
    return type(protocol).compare_with_theory is not TimingProtocol.compare_with_theory


def _columns(what: str, *figures: str) -> str:
    aligned = [text.rjust(width) for text, width in zip(figures, WIDTHS[1:], strict=True)]
    return " ".join([what.ljust(WIDTHS[0]), *aligned])


def check(simulation: Simulation, timeline: Timeline) -> Iterator[str]:
    """The lines that ``--check`` prints for one worker count (arguments as for `findings`).

    Raises:
        UserError: no time passes in the simulation.
    """
    folds, workers = len(timeline.folds), simulation.workers
    settings = (simulation.cluster, simulation.workload, workers, simulation.seed)
    own = [*simulation.protocol.compare_with_theory(timeline, costs_of(*settings))]
    if own:
        yield ""
        yield f"{simulation.protocol.name}, {workers} workers, {folds} folds, against closed forms"
        yield _columns("", "measured", "theory", "error")
        yield from (Finding(*comparison).line() for comparison in own)
        return
    yield ""
    yield f"{workers} workers against theory, last {1 - SETTLED:.0%} of {folds} folds"
    yield _columns("", "measured", "theory", "error")
    yield from (finding.line() for finding in findings(simulation, timeline))
    if folds < ENOUGH * workers:
        needed = f"--folds {ENOUGH * workers}"
        yield f"  ({folds / workers:.3g} folds a worker are hardly the long run; {needed})"


def findings(simulation: Simulation, timeline: Timeline) -> Iterator[Finding]:
    """Every comparison that theory allows for the cluster.

    Args:
        simulation: simulation of a parameter server, at its end.
        timeline: its timeline from the start, with spans.
    """
    cluster, workers = simulation.cluster, simulation.workers
    times_s = timeline.folds.time_s
    first = int(SETTLED * len(times_s))
    if len(times_s) - first < 2 or times_s[-1] <= times_s[first]:
        raise UserError("--check: no time passes in this simulation; allowed: more folds, or costs")
    window = (float(times_s[first]), float(times_s[-1]))
    rate = (len(times_s) - 1 - first) / (window[1] - window[0])
    costs = costs_of(cluster, simulation.workload, workers, simulation.seed)
    stale, lag_s = timeline.staleness()[first + 1 :], timeline.lag_s()[first + 1 :]
    yield Finding("under way, counted in folds", float(stale.mean()) + 1.0, workers)
    yield Finding("under way = throughput x lag", rate * float(lag_s.mean()), workers)
    queues = visits(timeline)
    for name, queue in queues.items():
        present = queue.mean_present(*window)
        if present > 0.0:
            yield Finding(f"at {name} = arrivals x stay", present, queue.littles_product(*window))
    if costs.fold_s > 0.0:
        busy = queues["fold"].utilisation(*window)
        yield Finding("server busy = throughput x fold", busy, rate * costs.fold_s)
    yield Finding("throughput, any law, /s", rate, bounds(cluster, costs))
    solved = solution(cluster, costs, workers)
    if solved is not None:
        name, steady = solved
        yield Finding(f"throughput, {name}, /s", rate, steady.throughput_per_s)
        if name.endswith("//N") and steady.wait_s > 0.0:
            yield Finding(f"wait for the server, {name}, s", _wait_s(queues, first), steady.wait_s)


def _wait_s(queues: Mapping[str, Visits], first: int) -> float:
    fold = queues["fold"]
    return float((fold.start_s - fold.arrive_s)[first:].mean())


def _mean_compute_s(costs: Costs) -> float:
    """Mean computing seconds of the first worker, including straggling."""
    return float(costs.compute_s[0]) * _straggling(costs)


def _straggling(costs: Costs) -> float:
    return 1.0 + costs.straggle_probability * (costs.slowdown - 1.0)


def _away_s(cluster: Cluster, costs: Costs) -> float:
    """Seconds of a cycle outside computing and queues: own copies and latencies."""
    own = 2.0 * costs.copy_s if cluster.link.sharing == "none" else 0.0
    return own + 2.0 * costs.latency_s


def _demands_s(cluster: Cluster, costs: Costs) -> list[float]:
    """Service seconds of a cycle at each shared station: the link or its two ways, the server."""
    both = [2.0 * costs.copy_s] if cluster.link.duplex == "half" else [costs.copy_s] * 2
    shared = [] if cluster.link.sharing == "none" else both
    return [demand for demand in (*shared, costs.fold_s) if demand > 0.0]


def bounds(cluster: Cluster, costs: Costs) -> tuple[float, float]:
    """Lower and upper bound of the throughput, in folds a second, for these costs."""
    if is_networked(cluster):
        return _network_bounds(cluster, costs)
    away_s = costs.compute_s * _straggling(costs) + _away_s(cluster, costs)
    return throughput_bounds(away_s.tolist(), _demands_s(cluster, costs))


def _network_bounds(cluster: Cluster, costs: Costs) -> tuple[float, float]:
    """Bounds on a network.

    Lower bound: every message waits for one message of every other worker, each way. Upper bound:
    queues form only at links shared by all workers.
    """
    network = cast(Network, cluster.network)
    server = cast(Level, network.server)
    levels = [*network.levels, server]
    core = network.core_bandwidth_bytes_per_s
    rates = [rate for rate in (*(x.away_bytes_per_s for x in levels), core) if rate]
    copy_s = max((costs.parameter_bytes / rate for rate in rates), default=0.0)
    latency_s = sum(level.latency_s for level in levels)
    stage_s = 0.0
    if cluster.host.staging == "pageable" and cluster.host.staging_bytes_per_s:
        stage_s = costs.parameter_bytes / cluster.host.staging_bytes_per_s
    away_s = costs.compute_s * _straggling(costs) + 2.0 * (latency_s + stage_s)
    least, _ = throughput_bounds(away_s.tolist(), [copy_s, copy_s, costs.fold_s])
    shared_s = [costs.fold_s]
    if server.bandwidth_bytes_per_s:
        ways = 2.0 if server.duplex == "half" else 1.0
        shared_s.append(ways * costs.parameter_bytes / server.away_bytes_per_s)
    if core:
        shared_s.append(2.0 * costs.parameter_bytes / core)
    _, alone = throughput_bounds((away_s + 2.0 * copy_s + costs.fold_s).tolist(), [])
    return least, min(alone, *(1.0 / demand_s for demand_s in shared_s if demand_s), math.inf)


def solution(cluster: Cluster, costs: Costs, workers: int) -> tuple[str, Steady] | None:
    """Name and steady state of the queueing model that describes the cluster exactly, or None.

    Workers must be alike. Queues in order of arrival need exponential service, except for the
    server alone, which is also solved for constant folds if think times are exponential or
    constant. Equal shares of a link, and time outside all queues, may have any distribution.
    """
    alike = bool((costs.compute_s == costs.compute_s[0]).all())
    if (
        not alike
        or is_networked(cluster)
        or (cluster.link.sharing == "fifo" and costs.copy_s > 0.0)
    ):
        return None
    demands_s, away_s = _demands_s(cluster, costs), _away_s(cluster, costs)
    think_s = _mean_compute_s(costs) + away_s
    if costs.fold_s == 0.0 or _is_exponential(costs.fold_law, costs.fold_cv):
        if len(demands_s) == 1 and costs.fold_s > 0.0 and think_s > 0.0:
            return "M/M/1//N", machine_repairman(workers, think_s, costs.fold_s)
        return _product_form(workers, think_s, demands_s)
    if len(demands_s) > 1 or not _is_constant(costs.fold_law, costs.fold_cv):
        return None
    steady = costs.straggle_probability == 0.0
    if steady and _is_constant(costs.law, costs.cv):
        return "D/D/1//N", lockstep(workers, think_s, costs.fold_s)
    exponential = steady and away_s == 0.0 and _is_exponential(costs.law, costs.cv)
    if exponential and workers <= MOST_SOLVED:
        return "M/D/1//N", constant_repair(workers, think_s, costs.fold_s)
    return None


def _product_form(workers: int, think_s: float, demands_s: list[float]) -> tuple[str, Steady]:
    if not demands_s:
        return "no queues", Steady(workers / think_s, 0.0, 0.0)
    return "mean-value analysis", mean_value_analysis(workers, think_s, demands_s)[-1]


def _is_exponential(law: int, cv: float) -> bool:
    return law in (laws.SHIFTED_EXPONENTIAL, laws.GAMMA) and cv == 1.0


def _is_constant(law: int, cv: float) -> bool:
    return law == laws.CONSTANT or (law != laws.EMPIRICAL and cv == 0.0)
