"""Rounds in which workers die or join late, as processes of SimPy.

Written from the description of the protocols, not from their code; durations are drawn
beforehand by the same laws.
"""

import math

import simpy

from harness.simulator.costs import computation_s, costs_of
from tests.harness.simulator.simpy_server import Counted


class AveragingModel:
    """Averaging over a ring, with a barrier; a worker's messages have a port at their receiver.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        every: minibatches between two averages.
        deaths: (worker, instant, seconds away) of each.
    """

    def __init__(self, cluster, job, workers, seed, every, deaths=()):
        self.env, self.costs = simpy.Environment(), costs_of(cluster, job, workers, seed)
        self.rate, self.latency_s = cluster.link.bandwidth_bytes_per_s, cluster.link.latency_s
        self.size, self.every = job.parameter_bytes, every
        self.until, self.struck, self.record = [-math.inf] * workers, self.env.event(), []
        for strike in deaths:
            self.env.process(self.death(*strike))

    def run(self, folds):
        """[(time, worker, version read)] of so many folds."""
        self.env.run(self.env.process(self.rounds(folds)))
        return self.record

    def death(self, who, at_s, down_s):
        yield self.env.timeout(at_s)
        self.until[who] = self.env.now + down_s
        event, self.struck = self.struck, self.env.event()
        event.succeed(who)

    def rounds(self, folds):
        env, step, version = self.env, 0, 0
        while version < folds:
            here = [who for who, until_s in enumerate(self.until) if until_s <= env.now]
            if not here:
                yield env.timeout(min(self.until) - env.now)
                continue
            computed = {who: env.process(self.compute(who, step)) for who in here}
            step += self.every
            version += yield env.process(self.average(here, computed, version))

    def average(self, here, computed, version):
        """Average until it succeeds among whoever is left; whether anybody is."""
        env = self.env
        attempt = env.process(self.all_reduce(list(here), computed))
        while here:
            struck = self.struck
            found = yield attempt | struck
            if attempt in found:
                self.record += [(env.now, who, version) for who in here]
                return 1
            if struck.value in here:
                here.remove(struck.value)
                attempt = env.process(self.all_reduce(list(here), computed))
        return 0

    def compute(self, who, step):
        for number in range(step, step + self.every):
            yield self.env.timeout(computation_s(self.costs, who, number))

    def all_reduce(self, here, computed):
        ports, events = {who: simpy.Resource(self.env) for who in here}, {}
        members = [
            self.env.process(self.member(here, place, computed[who], ports, events))
            for place, who in enumerate(here)
        ]
        yield self.env.all_of(members)

    def member(self, here, place, computed, ports, events):
        env, count = self.env, len(here)
        yield computed
        after, before = here[(place + 1) % count], here[place - 1]

        def event_of(*key):
            return events.setdefault(key, env.event())

        for number in range(2 * (count - 1)):
            out, into = (number, here[place]), (number, before)
            env.process(self.message(out, ports[after], self.size / count, event_of))
            event_of("sender", *out).succeed()
            event_of("receiver", *into).succeed()
            yield event_of("departed", *out) & event_of("arrived", *into)

    def message(self, key, port, size, event_of):
        yield event_of("sender", *key) & event_of("receiver", *key)
        with port.request() as turn:
            yield turn
            yield self.env.timeout(size / self.rate)
        event_of("departed", *key).succeed()
        yield self.env.timeout(self.latency_s)
        event_of("arrived", *key).succeed()


class BackupModel(Counted):
    """The first N − b of a round are folded, or all that can still come.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        backups: b.
        deaths: as of `AveragingModel`.
        late: (worker, instant) of each.
    """

    def __init__(self, cluster, job, workers, seed, backups, deaths=(), late=()):
        self.env, self.costs = simpy.Environment(), costs_of(cluster, job, workers, seed)
        self.server, self.needed = simpy.Resource(self.env), workers - backups
        self.version, self.ready, self.served = 0, False, 0
        self.taken, self.coming, self.record, self.dropped = [], {}, [], []
        self.folded, self.late = self.env.event(), dict(late)
        self.workers = [self.env.process(self.worker(who)) for who in range(workers)]
        for strike in deaths:
            self.env.process(self.death(*strike))

    def death(self, who, at_s, down_s):
        yield self.env.timeout(at_s)
        self.workers[who].interrupt(down_s)

    def worker(self, who):
        env, costs, step = self.env, self.costs, 0
        if who in self.late:
            yield env.timeout(self.late[who])
        while True:
            if self.ready:
                yield from self.patient(self.folded)
                if self.ready:
                    continue
            read, self.coming[who] = self.version, self.version
            step += 1
            try:
                yield env.timeout(costs.copy_s)
                yield env.timeout(costs.latency_s)
                yield env.timeout(computation_s(costs, who, step - 1))
                yield env.timeout(costs.copy_s)
                yield env.timeout(costs.latency_s)
            except simpy.Interrupt as death:
                del self.coming[who]
                self.dropped.append((who, read))
                self.see()
                yield env.timeout(death.cause)
                continue
            del self.coming[who]
            if read < self.version or self.ready:
                self.dropped.append((who, read))
                continue
            self.taken.append(who)
            env.process(self.serve())
            mine = self.folded
            self.see()
            yield from self.patient(mine)

    def patient(self, event):
        """Wait for an event; a death in the meantime takes time, and no more."""
        try:
            yield event
        except simpy.Interrupt as death:
            yield self.env.timeout(death.cause)
            if not event.processed:
                yield event

    def serve(self):
        with self.server.request() as turn:
            yield turn
            yield self.env.timeout(self.costs.fold_s)
        self.served += 1
        self.end()

    def see(self):
        more = any(version == self.version for version in self.coming.values())
        if not self.ready and self.taken and (len(self.taken) == self.needed or not more):
            self.ready = True
            self.end()

    def end(self):
        if self.ready and self.served == len(self.taken):
            self.record.append((self.env.now, self.taken))
            self.version, self.ready, self.served, self.taken = self.version + 1, False, 0, []
            event, self.folded = self.folded, self.env.event()
            event.succeed()
            if len(self.record) == self.goal:
                self.finished.succeed()
