"""How fast every shipped cluster is simulated, from 4 workers to a million: a table.

``python tests/benchmarks/speeds.py [FILE …] [--workers 4,64,…] [--simpy-most N] [--commands 64]``
measures, in one process and in processor time, microseconds a fold of three programs on the same
system with the same draws, and says how often they agree:

- the parameter server of the simulator, past its start, all columns recorded, no spans;
- a plain loop around a binary heap, in numba: what somebody writes who needs this system once;
- SimPy (`simpy_link`), of which durations are drawn before the clock starts.

The two others know workers on a link of their own or on one that all share, without faults; of
other files only the first is measured. Files whose network joins no server, and that have no link
either, are simulated in rounds of averaging instead, a minibatch each, up to 64 workers: what
counts is minibatches. Then, for the numbers of workers of ``--commands``, what ``lagbench simulate
FILE --workers N`` takes as a whole: once with kernels to compile (cold), and again (warm). On fair
links loops that round otherwise go apart after some thousand folds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from harness.simulator import Averaging, Link, Simulation, load_cluster
from harness.simulator.costs import computation_with_jitter_s, costs_of, folding_s, jitter_of
from harness.simulator.events import SIZE, first_s, loop, new_heap, part, pop, push
from harness.simulator.protocols.state import is_networked

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "reproductions" / "clusters"
MODEL = ROOT / "tests" / "harness" / "simulator" / "simpy_link.py"
SPEC = importlib.util.spec_from_file_location("l", MODEL)
simpy_link = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simpy_link)

WORKERS = (4, 64, 1024, 16_384, 100_000, 1_000_000)
FOLDS, SIMPY_FOLDS = 200_000, 5000
MOST_IN_ROUNDS = 64
FOLDED, COMPUTED = range(2)


@part
def computation_s(costs, who, step):
    """As in the simulator, but written out in the loop: a call would copy all costs."""
    return computation_with_jitter_s(costs, who, step, jitter_of(costs, who, step))


@loop
def own_links(costs, heap, version, read_s, step, record, folds):
    """A worker's arrival at the server is its only event; arrays as in `heap_loop`."""
    free_s = 0.0
    for who in range(len(step)):
        seconds = 2.0 * (costs.copy_s + costs.latency_s) + computation_s(costs, who, 0)
        push(heap, seconds, 0, who)
    for fold in range(folds):
        arrival_s, _, who = pop(heap)
        free_s = max(arrival_s, free_s) + folding_s(costs, who, step[who])
        record[0][fold], record[1][fold] = free_s, who
        record[2][fold], record[3][fold], record[4][fold] = version[who], read_s[who], step[who]
        step[who] += 1
        version[who], read_s[who] = fold + 1, free_s
        fetched_s = free_s + costs.copy_s + costs.latency_s
        computed_s = fetched_s + computation_s(costs, who, step[who])
        push(heap, computed_s + costs.copy_s + costs.latency_s, 0, who)


@loop
def fair_link(costs, heap, down, up, clocks, changed_s, version, read_s, step, record, folds):
    """Ends of computing and folds are events, and copies by what they have had of the link."""
    fold, free_s, now_s = 0, 0.0, 0.0
    for who in range(len(step)):
        push(down, costs.copy_s, 0, who)
    while True:
        down_s = changed_s[0] + max(first_s(down) - clocks[0], 0.0) * down.counts[SIZE]
        up_s = changed_s[1] + max(first_s(up) - clocks[1], 0.0) * up.counts[SIZE]
        down_s = np.inf if down.counts[SIZE] == 0 else down_s
        up_s = np.inf if up.counts[SIZE] == 0 else up_s
        event_s = first_s(heap)
        if min(down_s, up_s) <= event_s:
            side, now_s = (0, down_s) if down_s <= up_s else (1, up_s)
            clocks[side], _, who = pop(down if side == 0 else up)
            changed_s[side] = now_s
            if side == 0:
                seconds = costs.latency_s + computation_s(costs, who, step[who])
                push(heap, now_s + seconds, COMPUTED, who)
            else:
                free_s = max(now_s + costs.latency_s, free_s) + folding_s(costs, who, step[who])
                push(heap, free_s, FOLDED, who)
            continue
        now_s, kind, who = pop(heap)
        if kind == FOLDED:
            record[0][fold], record[1][fold] = now_s, who
            record[2][fold], record[3][fold], record[4][fold] = version[who], read_s[who], step[who]
            fold += 1
            if fold == folds:
                return
            step[who] += 1
            version[who], read_s[who] = fold, now_s
        side, copies = (0, down) if kind == FOLDED else (1, up)
        if copies.counts[SIZE] > 0:
            clocks[side] += (now_s - changed_s[side]) / copies.counts[SIZE]
        changed_s[side] = now_s
        push(copies, clocks[side] + costs.copy_s, 0, who)


def rounds_of(workers):
    """Of so many measurements the least counts; with a million workers one takes long enough."""
    return 3 if workers <= 100_000 else 1


def heap_loop(cluster, costs, workers, folds):
    """(time, worker) of each fold, and microseconds a fold of a loop past its start."""

    def run(folds):
        heaps = [new_heap(workers) for _ in range(3)]
        record = (np.empty(folds), np.empty(folds, np.int32), *np.empty((3, folds)))
        state = (np.zeros(workers, np.int64), np.zeros(workers), np.zeros(workers, np.int64))
        start = time.process_time()
        if cluster.link.sharing == "fair":
            fair_link(costs, *heaps, np.zeros(2), np.zeros(2), *state, record, folds)
        else:
            own_links(costs, heaps[0], *state, record, folds)
        return time.process_time() - start, record

    run(10)
    rounds = range(rounds_of(workers))
    before = min(run(2 * workers)[0] for _ in rounds)
    both = [run(2 * workers + folds) for _ in rounds]
    return both[0][1][:2], (min(s for s, _ in both) - before) / folds * 1e6


def simulated(cluster, workers, folds):
    """The same of the simulator."""
    simulation = Simulation(cluster, "parameter_server", cluster.workload, workers, spans=False)
    first = simulation.advance(folds=2 * workers)
    took, rows = [], []
    for _ in range(3):
        start = time.process_time()
        rows.append(simulation.advance(folds=folds))
        took.append(time.process_time() - start)
    columns = (first.folds.time_s, rows[0].folds.time_s), (first.folded(), rows[0].folded())
    sequence = np.concatenate(columns[0]), np.concatenate([each.worker for each in columns[1]])
    return sequence, min(took) / folds * 1e6


@loop
def draw(costs, drawn):
    for who in range(drawn.shape[0]):
        for step in range(drawn.shape[1]):
            drawn[who, step, 0] = computation_s(costs, who, step)
            drawn[who, step, 1] = folding_s(costs, who, step)


def with_simpy(cluster, costs, workers):
    """The same of SimPy, after a tenth of its folds."""
    drawn = np.empty((workers, SIMPY_FOLDS // workers * 4 + 16, 2))
    draw(costs, drawn)
    table = drawn.tolist()
    model = simpy_link.LinkedModel(
        cluster, cluster.workload, workers, 0, lambda who, step: table[who][step]
    )
    warm = SIMPY_FOLDS // 10
    model.run(warm)
    start = time.process_time()
    record = model.run(SIMPY_FOLDS)
    seconds = time.process_time() - start
    return list(zip(*record, strict=True))[:2], seconds / (SIMPY_FOLDS - warm) * 1e6


def agreeing(one, other):
    """After how many folds the order of workers differs, or how many there are of both."""
    most = min(len(one[1]), len(other[1]))
    differ = np.flatnonzero(np.asarray(one[1][:most]) != np.asarray(other[1][:most]))
    return int(differ[0]) if len(differ) else most


def command_s(file, workers, cache):
    """Processor seconds of a whole command, all its processes together."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, "-m", "harness", "simulate", str(file), "--workers", str(workers)]
    subprocess.run(line, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_rounds_us(cluster, workers):
    """Microseconds a minibatch in rounds of averaging, past the first two."""
    simulation = Simulation(cluster, Averaging(every=1), cluster.workload, workers, spans=False)
    simulation.advance(folds=2)
    rounds = max(2, 20_000 // workers)
    start = time.process_time()
    simulation.advance(folds=rounds)
    return (time.process_time() - start) / rounds / workers * 1e6


def beside(cluster, workers, sequence, own_us, simpy_most):
    """Times a heap loop, times SimPy, and after how many folds they differ; blank where unknown."""
    if cluster.faults or is_networked(cluster):
        return f"{'':7} {'':8}", ""
    costs = costs_of(cluster, cluster.workload, workers, 0)
    plain, heap_us = heap_loop(cluster, costs, workers, FOLDS)
    agreed, times = [agreeing(sequence, plain)], f"{'':8}"
    if workers <= simpy_most:
        model, simpy_us = with_simpy(cluster, costs, workers)
        agreed.append(agreeing(sequence, model))
        times = f"{simpy_us / own_us:8.0f}"
    return f"{own_us / heap_us:7.2f} {times}", ", ".join(f"{count:,}" for count in agreed)


def rows_of(file, counts, simpy_most, commands):
    """The lines of one file."""
    cluster = load_cluster(file)
    joined = cluster.link != Link() or is_networked(cluster)
    rounds = cluster.network is not None and not joined
    with tempfile.TemporaryDirectory() as cache:
        for workers in counts if not rounds else (n for n in counts if n <= MOST_IN_ROUNDS):
            if rounds:
                own_us, ratios, agreed = in_rounds_us(cluster, workers), " " * 16, "in rounds"
            else:
                sequence, own_us = simulated(cluster, workers, FOLDS)
                ratios, agreed = beside(cluster, workers, sequence, own_us, simpy_most)
            whole = [f"{'':7}"] * 2
            if workers in commands:
                cold = workers == commands[0]
                taken = [command_s(file, workers, cache) for _ in range(1 + cold)]
                whole = [f"{taken[0]:7.1f}" if cold else f"{'':7}", f"{taken[-1]:7.1f}"]
            start = f"{file.stem:18} {workers:9,} {1.0 / own_us:7.2f}"
            yield " ".join([start, ratios, *whole, "", agreed])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=sorted(CLUSTERS.glob("*.toml")))
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--simpy-most", type=int, default=WORKERS[-2])
    parser.add_argument("--commands", default="")
    asked = parser.parse_args()
    counts, commands = (
        [int(count) for count in told.split(",") if count]
        for told in (asked.workers, asked.commands)
    )
    print("                             M folds  times a    times    cold    warm  folds in the")
    print("cluster              workers      /s heap loop    SimPy       s       s  same order")
    for file in asked.files:
        for line in rows_of(file, counts, asked.simpy_most, commands):
            print(line, flush=True)


if __name__ == "__main__":
    main()
