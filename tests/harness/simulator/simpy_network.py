"""A parameter server that is joined to its workers by a network, as processes of SimPy.

Written from the description, not from the kernel. On links in order of arrival a message asks
every link of its way for its turn at once and holds them together. On fair links one process
keeps the rates of all messages, and is woken when a message starts or one has departed.
"""

import math

import simpy

from harness.simulator.cluster import Cluster
from harness.simulator.costs import computation_s, costs_of, folding_s
from tests.harness.simulator.simpy_server import Counted


class Ways:
    """Links by name, as the description of a network has them.

    Args:
        network: levels, core, and the link of a shard.
        workers: how many.
    """

    def __init__(self, network, workers):
        self.network, self.workers = network, workers

    def of(self, worker, shard, up):
        """The links between a worker and a shard, and the latency."""
        levels = [*self.network.levels, self.network.server]
        places = [worker // level.workers_per_link for level in self.network.levels] + [shard]
        links, latency_s = [], 0.0
        for height, (level, place) in enumerate(zip(levels, places, strict=True)):
            server = level is levels[-1]
            direction = "both" if level.duplex == "half" else ("up" if up != server else "down")
            links.append(((height, place, direction), level.bandwidth_bytes_per_s or math.inf))
            latency_s += level.latency_s
        core = self.network.core_bandwidth_bytes_per_s
        return dict([*links, *([("core", core)] if core else [])]), latency_s


class InTurn:
    """Links that carry one message at a time."""

    def __init__(self, env):
        self.env, self.links = env, {}

    def carry(self, way, size):
        turns = [self.links.setdefault(link, simpy.Resource(self.env)).request() for link in way]
        yield self.env.all_of(turns)
        yield self.env.timeout(size / min(way.values()))
        for turn in turns:
            turn.resource.release(turn)


class InParts:
    """Links whose messages have max-min fair parts of them."""

    def __init__(self, env):
        self.env, self.messages, self.change = env, [], env.event()
        env.process(self.run())

    def carry(self, way, size):
        message = {"way": way, "left": size, "rate": 0.0, "since": self.env.now}
        message["departed"] = self.env.event()
        self.messages.append(message)
        if not self.change.triggered:
            self.change.succeed()
        yield message["departed"]

    def run(self):
        while True:
            if self.messages:
                self.share()
                first = min(self.messages, key=lambda message: message["departs"])
                wait = self.env.timeout(max(first["departs"] - self.env.now, 0.0), first)
                found = yield wait | self.change
                if wait in found:
                    self.messages.remove(first)
                    first["departed"].succeed()
                    continue
            else:
                yield self.change
            self.change = self.env.event()

    def share(self):
        """Rates by progressive filling; what a message has left changes with its rate."""
        room = {link: rate for m in self.messages for link, rate in m["way"].items()}
        waiting, now, rates = list(self.messages), self.env.now, {}
        while waiting:
            count = {link: sum(link in m["way"] for m in waiting) for link in room}
            part = [min(room[link] / count[link] for link in m["way"]) for m in waiting]
            share = min(part)
            full = [m for m, own in zip(waiting, part, strict=True) if own <= share]
            for message in full:
                rates[id(message)] = share
                for link in message["way"]:
                    room[link] -= share
            waiting = [m for m in waiting if id(m) not in rates]
        for message in self.messages:
            rate = rates[id(message)]
            if rate != message["rate"]:
                message["left"] -= message["rate"] * (now - message["since"])
                message["since"], message["rate"] = now, rate
                message["departs"] = now + message["left"] / rate


class NetworkedModel(Counted):
    """Workers, shards, and the network between them.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        shards: how many servers share the model.
    """

    def __init__(self, cluster: Cluster, job, workers, seed, shards=1):
        self.costs, self.env = costs_of(cluster, job, workers, seed), simpy.Environment()
        self.ways = Ways(cluster.network, workers)
        self.links = (InParts if cluster.network.sharing == "fair" else InTurn)(self.env)
        self.queues = [simpy.Resource(self.env) for _ in range(shards)]
        self.size = job.parameter_bytes / shards
        rate = cluster.host.staging_bytes_per_s
        self.stage_s = job.parameter_bytes / rate if cluster.host.staging == "pageable" else 0.0
        self.record = []
        for who in range(workers):
            self.env.process(self.worker(who))

    def worker(self, who):
        env, step = self.env, 0
        order = [(who + piece) % len(self.queues) for piece in range(len(self.queues))]
        while True:
            version = len(self.record)
            for shard in order:
                way, latency_s = self.ways.of(who, shard, up=False)
                yield from self.links.carry(way, self.size)
            yield env.timeout(latency_s)
            if self.stage_s:
                yield env.timeout(self.stage_s)
            yield env.timeout(computation_s(self.costs, who, step))
            fold_s = folding_s(self.costs, who, step) / len(self.queues)
            step += 1
            if self.stage_s:
                yield env.timeout(self.stage_s)
            folds = []
            for shard in order:
                way, latency_s = self.ways.of(who, shard, up=True)
                yield from self.links.carry(way, self.size)
                folds.append(env.process(self.fold(shard, latency_s, fold_s)))
            yield env.all_of(folds)
            self.record.append((env.now, who, len(self.record) - version))
            if len(self.record) == self.goal:
                self.finished.succeed()

    def fold(self, shard, latency_s, fold_s):
        yield self.env.timeout(latency_s)
        with self.queues[shard].request() as turn:
            yield turn
            yield self.env.timeout(fold_s)
