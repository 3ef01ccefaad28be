"""A parameter server and its workers on one fair link, as processes of SimPy.

Written from the description of the link, not from its kernel: copies under way have equal parts of
it. Durations are drawn by the same laws.
"""

import heapq
from itertools import count

import simpy

from harness.simulator.cluster import Cluster
from harness.simulator.costs import computation_s, costs_of, folding_s
from tests.harness.simulator.simpy_server import Counted


class Shared:
    """Copies under way have equal parts: a clock counts what each has had of the link alone."""

    def __init__(self, env):
        self.env, self.copies, self.clock, self.at = env, [], 0.0, 0.0
        self.number, self.wakes = count(), 0

    def carry(self, seconds):
        if self.copies:
            self.clock += (self.env.now - self.at) / len(self.copies)
        self.at, ended = self.env.now, self.env.event()
        heapq.heappush(self.copies, (self.clock + seconds, next(self.number), ended))
        self.wake()
        yield ended

    def wake(self):
        self.wakes += 1
        if self.copies:
            wait_s = max(self.copies[0][0] - self.clock, 0.0) * len(self.copies)
            ends_s, number = self.at + wait_s, self.wakes
            wake = self.env.timeout(max(ends_s - self.env.now, 0.0))
            wake.callbacks.append(lambda _: self.end(number))

    def end(self, number):
        if number == self.wakes:
            self.clock, _, ended = heapq.heappop(self.copies)
            self.at = self.env.now
            ended.succeed()
            self.wake()


class LinkedModel(Counted):
    """Workers, the link, and one server.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
    """

    def __init__(self, cluster: Cluster, job, workers, seed):
        self.costs, self.env = costs_of(cluster, job, workers, seed), simpy.Environment()
        self.down = Shared(self.env)
        self.up = self.down if cluster.link.duplex == "half" else Shared(self.env)
        self.server, self.record = simpy.Resource(self.env), []
        for who in range(workers):
            self.env.process(self.worker(who))

    def worker(self, who):
        env, copy_s, latency_s, step = self.env, self.costs.copy_s, self.costs.latency_s, 0
        while True:
            version = len(self.record)
            compute_s = computation_s(self.costs, who, step)
            fold_s = folding_s(self.costs, who, step)
            step += 1
            yield from self.down.carry(copy_s)
            yield env.timeout(latency_s)
            yield env.timeout(compute_s)
            yield from self.up.carry(copy_s)
            yield env.timeout(latency_s)
            with self.server.request() as turn:
                yield turn
                yield env.timeout(fold_s)
            self.record.append((env.now, who, len(self.record) - version))
            if len(self.record) == self.goal:
                self.finished.succeed()
