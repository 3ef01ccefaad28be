"""The parameter server as processes of SimPy, with bounded staleness and workers that die.

Written from the description of the protocol, not from its kernel; durations are drawn
beforehand by the same laws.
"""

import simpy

from harness.simulator import Cluster
from harness.simulator.costs import computation_s, costs_of


class Counted:
    """What records folds, and ends at a number of them."""

    def run(self, folds: int) -> list:
        """The record of so many folds, as (time, worker, staleness) but of rounds."""
        self.goal, self.finished = folds, self.env.event()
        self.env.run(self.finished)
        return self.record


class Model(Counted):
    """Workers, their links and one server.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        bound: how many folds a worker may be ahead of the slowest that is there.
        deaths: (worker, instant, seconds away) of each death.
        queue: places at the server.
    """

    def __init__(self, cluster: Cluster, job, workers, seed, bound=None, deaths=(), queue=None):
        self.costs = costs_of(cluster, job, workers, seed)
        self.env = simpy.Environment()
        self.server = simpy.Resource(self.env)
        self.places = simpy.Resource(self.env, queue or workers + 1)
        self.bound, self.record, self.lost = bound, [], 0
        self.folds, self.present = [0] * workers, [True] * workers
        self.steps = [0] * workers
        self.held: list[tuple[int, simpy.Event]] = []
        self.deaths = deaths
        self.processes = [self.env.process(self.worker(who)) for who in range(workers)]
        for death in deaths:
            self.env.process(self.death(*death))

    def slowest(self) -> int:
        there = [n for n, present in zip(self.folds, self.present, strict=True) if present]
        return min(there, default=0)

    def release(self) -> None:
        """Wake the workers that the bound no longer holds, first held first."""
        free = [(w, e) for w, e in self.held if self.folds[w] <= self.slowest() + self.bound]
        self.held = [entry for entry in self.held if entry not in free]
        for _, event in free:
            event.succeed()

    def worker(self, who):
        env, costs = self.env, self.costs
        while True:
            try:
                if self.bound is not None and self.folds[who] > self.slowest() + self.bound:
                    event = env.event()
                    self.held.append((who, event))
                    yield event
                version = len(self.record)
                step = self.steps[who]
                self.steps[who] += 1
                yield env.timeout(costs.copy_s)
                yield env.timeout(costs.latency_s)
                yield env.timeout(computation_s(costs, who, step))
                place = self.places.request()
                yield place
                yield env.timeout(costs.copy_s)
                yield env.timeout(costs.latency_s)
            except simpy.Interrupt as death:
                self.lost += 1
                yield from self.away(who, death.cause)
                continue
            handed_in = env.process(self.fold(who, version, place))
            try:
                yield handed_in
            except simpy.Interrupt as death:
                yield from self.away(who, death.cause)
                if not handed_in.processed:
                    yield handed_in

    def fold(self, who, version, place):
        with self.server.request() as turn:
            yield turn
            yield self.env.timeout(self.costs.fold_s)
        self.record.append((self.env.now, who, len(self.record) - version))
        self.places.release(place)
        self.folds[who] += 1
        if self.bound is not None:
            self.release()
        if len(self.record) == self.goal:
            self.finished.succeed()

    def death(self, who, time_s, down_s):
        yield self.env.timeout(time_s)
        self.processes[who].interrupt(down_s)

    def away(self, who, down_s):
        self.present[who] = False
        if self.bound is not None:
            self.release()
        yield self.env.timeout(down_s)
        self.folds[who] = max(self.folds[who], self.slowest())
        self.present[who] = True


class ShardedModel(Model):
    """The server in shards: a process for each piece, which keeps its shard's count of folds.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        shards: how many servers share the model.
    """

    def __init__(self, cluster: Cluster, job, workers, seed, shards):
        super().__init__(cluster, job, workers, seed)
        self.queues = [simpy.Resource(self.env) for _ in range(shards)]
        self.versions = [0] * shards

    def worker(self, who):
        """Records (time, worker, staleness, versions read, versions before the folds)."""
        env, costs, shards = self.env, self.costs, len(self.queues)
        order = [(who + piece) % shards for piece in range(shards)]
        while True:
            version, seen = len(self.record), list(self.versions)
            step = self.steps[who]
            self.steps[who] += 1
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
