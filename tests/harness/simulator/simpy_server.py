"""A parameter server in shards as processes of SimPy.

Written from the description of the protocol, not from its kernel; durations are drawn
beforehand by the same laws.
"""

from itertools import count

import simpy

from harness.simulator.cluster import Cluster
from harness.simulator.costs import computation_s, costs_of


class Counted:
    """What records folds, and ends at a number of them."""

    def run(self, folds: int) -> list:
        """The record of so many folds, as (time, worker, staleness) but of rounds."""
        self.goal, self.finished = folds, self.env.event()
        self.env.run(self.finished)
        return self.record


class ShardedModel(Counted):
    """The server in shards: a process for each piece, which keeps its shard's count of folds.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        shards: how many servers share the model.
    """

    def __init__(self, cluster: Cluster, job, workers, seed, shards):
        self.costs, self.env = costs_of(cluster, job, workers, seed), simpy.Environment()
        self.record = []
        self.queues = [simpy.Resource(self.env) for _ in range(shards)]
        self.versions = [0] * shards
        for who in range(workers):
            self.env.process(self.worker(who))

    def worker(self, who):
        """Records (time, worker, staleness, versions read, versions before the folds)."""
        env, costs, shards = self.env, self.costs, len(self.queues)
        order = [(who + piece) % shards for piece in range(shards)]
        for step in count():
            version, seen = len(self.record), list(self.versions)
            yield env.timeout(costs.copy_s)
            yield env.timeout(costs.latency_s)
            yield env.timeout(computation_s(costs, who, step))
            pieces = [env.process(self.piece(who, piece)) for piece in range(shards)]
            yield env.all_of(pieces)
            before = {shard: piece.value for shard, piece in zip(order, pieces, strict=True)}
            entry = (env.now, who, len(self.record) - version)
            self.record.append((*entry, seen, [before[shard] for shard in range(shards)]))
            if len(self.record) == self.goal:
                self.finished.succeed()

    def piece(self, who, number):
        env, costs, shards = self.env, self.costs, len(self.queues)
        shard = (who + number) % shards
        yield env.timeout(costs.copy_s * ((number + 1) / shards))
        yield env.timeout(costs.latency_s)
        with self.queues[shard].request() as turn:
            yield turn
            before = self.versions[shard]
            yield env.timeout(costs.fold_s / shards)
        self.versions[shard] += 1
        return before
