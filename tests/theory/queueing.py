"""Queueing theory in closed form, and the queues of a timeline to compare with it.

Around one parameter server, N workers are a closed network: each is away for its think time Z
(computing and copying), then queues for a fold of s seconds. Names follow Kendall: M/D/1//N has
exponential think times, constant folds, one server and N customers. Symbols: X throughput, ρ
utilisation, W waiting time, L number present.

    machine_repairman    M/M/1//N by its product form
    mean_value_analysis  the same and any chain of stations, without normalising constants
    constant_repair      M/D/1//N by the chain embedded at the ends of folds
    lockstep             D/D/1//N
    open_queue           M/G/1 (Pollaczek and Khinchine), of which M/M/1 and M/D/1 are cases
    throughput_bounds    bounds for every law
    slowest_s            mean of the longest of N times, for rounds that wait for the slowest

`visits` gives the queues of a timeline: arrival, start of service and departure of each
contribution at each stage (fetch, compute, push, fold). A timeline records the service at each
stage; the gap before it is the wait in that stage's queue. This holds for protocols in which a
worker has one contribution in flight at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

from harness.simulator.timeline import SERVER, Timeline

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Steady:
    """The long run of a queue.

    Attributes:
        throughput_per_s: X.
        utilisation: ρ, the share of time its server is busy.
        wait_s: W, from arrival to the start of service, on average.
    """

    throughput_per_s: float
    utilisation: float
    wait_s: float


def _queue_from_utilisation(
    workers: int, think_s: float, service_s: float, utilisation: float
) -> Steady:
    """A closed queue from its utilisation: X = ρ/s, and N = X·(Z + W + s) gives W."""
    rate = utilisation / service_s
    return Steady(rate, utilisation, max(workers / rate - think_s - service_s, 0.0))


def machine_repairman(workers: int, think_s: float, service_s: float) -> Steady:
    """M/M/1//N; the think time may have any law with this mean (it is insensitive).

    p₀ = 1 / Σₙ N!/(N−n)!·(s/Z)ⁿ and ρ = 1 − p₀ (Kleinrock, Queueing Systems I, 3.8).

    Args:
        workers: N.
        think_s: mean time a worker is away, above 0.
        service_s: mean time of a fold, above 0.
    """
    # In logarithms: the weights themselves overflow for many workers.
    n = np.arange(workers + 1)
    falling = np.append(0.0, np.cumsum(np.log(workers - n[:-1])))
    log_weights = falling + n * np.log(service_s / think_s)
    largest = float(log_weights.max())
    idle = float(np.exp(-largest) / np.exp(log_weights - largest).sum())
    return _queue_from_utilisation(workers, think_s, service_s, 1.0 - idle)


def mean_value_analysis(
    workers: int, think_s: float, demands_s: Sequence[float]
) -> tuple[Steady, ...]:
    """Each station of a closed network; exact if the network has a product form.

    It has one if stations that serve in order of arrival have exponential service, while
    those that share equally, and the think time, may have any law. Reiser and Lavenberg,
    "Mean-value analysis of closed multichain queuing networks" (JACM 1980):
    R_k(n) = D_k·(1 + L_k(n−1)), X(n) = n / (Z + Σ R_k(n)), L_k(n) = X(n)·R_k(n).

    Args:
        workers: N.
        think_s: mean time spent away from all stations in a cycle.
        demands_s: [K] D_k, mean service that a cycle needs at each station.

    Returns:
        [K] one result per station; ``wait_s`` is that of a whole cycle at the station.
    """
    demand_s = np.array(demands_s, dtype=np.float64)
    present = np.zeros(len(demand_s))
    rate, stay_s = 0.0, demand_s
    for n in range(1, workers + 1):
        stay_s = demand_s * (1.0 + present)
        rate = n / (think_s + float(stay_s.sum()))
        present = rate * stay_s
    pairs = zip(demand_s.tolist(), (stay_s - demand_s).tolist(), strict=True)
    return tuple(Steady(rate, rate * demand, wait_s) for demand, wait_s in pairs)


def constant_repair(workers: int, think_s: float, service_s: float) -> Steady:
    """M/D/1//N: exponential think times, constant folds.

    Between the ends of two folds the number present is a Markov chain that falls by at most
    one: from i it starts a fold with max(i, 1), during which a binomial number of the others
    arrive, each with probability 1 − exp(−s/Z). Its law π balances the flow over every cut,
    π_{k+1}·P(k+1 → k) = Σ_{i≤k} π_i·P(i → above k), sums of positive terms only. The server
    idles Z/N on average before every fold that finds it empty: ρ = s / (s + π₀·Z/N).
    """
    start = np.maximum(np.arange(workers), 1)
    arrives = -np.expm1(-service_s / think_s)
    law = np.zeros(workers)
    law[0] = 1.0
    for k in range(workers - 1):
        above = _binomial_above(k + 1 - start[: k + 1], workers - start[: k + 1], arrives)
        none = (workers - k - 1) * -service_s / think_s
        law[k + 1] = float(law[: k + 1] @ above) / np.exp(none)
        if law[k + 1] > 1e200:  # not normalised yet: rescale before it overflows
            law /= law[k + 1]
    empty = float(law[0] / law.sum())
    return _queue_from_utilisation(
        workers, think_s, service_s, service_s / (service_s + empty * think_s / workers)
    )


def _binomial_above(k: NDArray[Any], trials: NDArray[Any], chance: float) -> Floats:
    """[·] probability that more than k of ``trials`` trials succeed."""
    return np.asarray(cast(Any, stats.binom).sf(k, trials, chance), dtype=np.float64)


def lockstep(workers: int, think_s: float, service_s: float) -> Steady:
    """D/D/1//N: X = min(N/(Z + s), 1/s); no worker waits until the server is saturated."""
    rate = min(workers / (think_s + service_s), 1.0 / service_s)
    return _queue_from_utilisation(workers, think_s, service_s, rate * service_s)


def open_queue(arrivals_per_s: float, service_s: float, cv: float) -> Steady:
    """M/G/1: W = ρ·s·(1 + cv²) / (2·(1 − ρ)), after Pollaczek and Khinchine.

    Many workers that rarely visit the server arrive as a Poisson process: with N → ∞ at
    constant N/Z, M/D/1//N tends to this with ``cv`` 0 (M/D/1), M/M/1//N with ``cv`` 1 (M/M/1).

    Args:
        arrivals_per_s: λ, with λ·s below 1.
        service_s: mean s.
        cv: standard deviation of the service over its mean.
    """
    busy = arrivals_per_s * service_s
    return Steady(arrivals_per_s, busy, busy * service_s * (1.0 + cv * cv) / (2.0 * (1.0 - busy)))


def throughput_bounds(think_s: Sequence[float], demands_s: Sequence[float]) -> tuple[float, float]:
    """Lower and upper bound of throughput, for all laws with these means.

    A cycle lasts at least Z_i + Σ D, at most as long as if all others were always ahead:
    Σᵢ 1/(Z_i + N·ΣD) ≤ X ≤ min(1/max D, Σᵢ 1/(Z_i + ΣD)) (Muntz and Wong 1974). The lower bound
    assumes services with a mean remainder of at most a whole one (constant, exponential).

    Args:
        think_s: [N] mean think time of each worker.
        demands_s: [K] mean service that a cycle needs at each station.
    """
    away, total = np.array(think_s, dtype=np.float64), float(sum(demands_s))
    least = float((1.0 / (away + len(away) * total)).sum())
    most = float((1.0 / (away + total)).sum())
    return least, min(most, 1.0 / max(demands_s))


def slowest_s(workers: int, steps: int, step_s: float) -> float:
    """Mean time until the last of N workers has finished ``steps`` exponential steps.

    The sum of n steps has an Erlang law F, and E[max] = ∫ 1 − F(t)^N dt; for one step that is
    the harmonic number, step_s·(1 + 1/2 + … + 1/N).

    Args:
        workers: N.
        steps: n, before all wait for each other.
        step_s: mean time of a step.
    """
    law = cast(Any, stats.gamma)(steps)
    end = float(law.isf(1e-16 / workers))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    pieces = np.linspace(0.0, end, 21)
    half = (pieces[1:] - pieces[:-1])[:, None] / 2.0
    times = pieces[:-1, None] + half * (1.0 + nodes)
    late = -np.expm1(workers * np.asarray(law.logcdf(times)))
    return step_s * float((half * weights * late).sum())


STAGES = ("fetch", "compute", "push", "fold")


@dataclass(frozen=True, eq=False)
class Visits:
    """[C] visits to one stage, one row per contribution.

    Attributes:
        arrive_s: arrival at the stage.
        start_s: start of service.
        end_s: departure.
    """

    arrive_s: Floats
    start_s: Floats
    end_s: Floats

    def mean_present(self, from_s: float, to_s: float) -> float:
        """L: the number present, averaged over time by following every arrival and departure."""
        return _mean_count(self.arrive_s, self.end_s, from_s, to_s)

    def utilisation(self, from_s: float, to_s: float) -> float:
        """ρ: the mean number in service."""
        return _mean_count(self.start_s, self.end_s, from_s, to_s)

    def littles_product(self, from_s: float, to_s: float) -> float:
        """λ·W of the contributions that arrived in that interval, with W the whole stay."""
        came = (self.arrive_s >= from_s) & (self.arrive_s < to_s)
        stay_s = (self.end_s - self.arrive_s)[came]
        return float(stay_s.sum()) / (to_s - from_s)


def _mean_count(enter_s: Floats, leave_s: Floats, from_s: float, to_s: float) -> float:
    """Time average of a count that goes up at ``enter_s`` and down at ``leave_s``."""
    times_s = np.clip(np.concatenate([enter_s, leave_s]), from_s, to_s)
    steps = np.concatenate([np.ones(len(enter_s)), -np.ones(len(leave_s))])
    order = np.argsort(times_s, kind="stable")
    counts, edges_s = np.cumsum(steps[order]), np.append(times_s[order], to_s)
    return float(counts @ np.diff(edges_s)) / (to_s - from_s)


def visits(timeline: Timeline) -> dict[str, Visits]:
    """The visits to every stage of the contributions that were folded.

    A stage that took no time has no span; its visit is the instant at which the previous stage
    ended.

    Args:
        timeline: of one server, recorded with spans.
    """
    rows = timeline.folded()
    start_s = np.full((len(STAGES), len(rows)), np.nan)
    end_s = start_s.copy()
    spans, owner = timeline.spans, _owners(timeline)
    for stage, name in enumerate(STAGES):
        mine = (spans.kind == timeline.kinds.index(name)) & (owner >= 0)
        start_s[stage, owner[mine]] = spans.start_s[mine]
        end_s[stage, owner[mine]] = spans.end_s[mine]
    came_s, found = rows.read_time_s, dict[str, Visits]()
    for stage, name in enumerate(STAGES):
        started_s = np.where(np.isnan(start_s[stage]), came_s, start_s[stage])
        ended_s = np.where(np.isnan(end_s[stage]), came_s, end_s[stage])
        found[name] = Visits(came_s, started_s, ended_s)
        came_s = ended_s
    return found


def _owners(timeline: Timeline) -> NDArray[Any]:
    """[S] row of the folded contribution of each span, −1 for none.

    The server's span ends at the instant of the fold; a worker's span begins after the last read
    of that worker.
    """
    rows, spans = timeline.folded(), timeline.spans
    served = spans.worker == SERVER
    owner = np.full(len(spans), -1, dtype=np.int64)
    owner[served] = _matching(timeline.folds.time_s, spans.end_s[served])
    away = ~served
    owner[away] = _latest(rows.worker, rows.read_time_s, spans.worker[away], spans.start_s[away])
    return owner


def _latest(worker: Any, read_s: Floats, who: Any, start_s: Floats) -> NDArray[Any]:
    """[S] index of a worker's last read up to ``start_s``, −1 for none."""
    reads = len(worker)
    lanes, times_s = np.concatenate([worker, who]), np.concatenate([read_s, start_s])
    is_span = np.arange(len(lanes)) >= reads
    order = np.lexsort((is_span, times_s, lanes))
    last = np.maximum.accumulate(np.where(is_span[order], -1, np.arange(len(order))))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.where(last >= 0, order[last], -1)
    found = found[reads:]
    return np.where((found >= 0) & (lanes[found] == who), found, -1)


def _matching(sorted_s: Floats, wanted_s: Floats) -> NDArray[Any]:
    """[W] index of each wanted instant in ``sorted_s``, −1 if it is missing."""
    place = np.minimum(np.searchsorted(sorted_s, wanted_s), len(sorted_s) - 1)
    return np.where(sorted_s[place] == wanted_s, place, -1)
