"""Rounds in which workers die, as processes of SimPy.

Written from the description of the protocols, not from their code; durations are drawn
beforehand by the same laws.
"""

import simpy

from harness.simulator.costs import computation_s, costs_of
from tests.harness.simulator.simpy_server import Counted


class BackupModel(Counted):
    """The first N − b of a round are folded, or all that can still come.

    Args:
        cluster, job, workers, seed: as for a `Simulation`.
        backups: b.
        deaths: (worker, instant, seconds away) of each.
    """

    def __init__(self, cluster, job, workers, seed, backups, deaths=()):
        self.env, self.costs = simpy.Environment(), costs_of(cluster, job, workers, seed)
        self.server, self.needed = simpy.Resource(self.env), workers - backups
        self.version, self.ready, self.served = 0, False, 0
        self.taken, self.coming, self.record = [], {}, []
        self.folded = self.env.event()
        self.workers = [self.env.process(self.worker(who)) for who in range(workers)]
        for strike in deaths:
            self.env.process(self.death(*strike))

    def death(self, who, at_s, down_s):
        yield self.env.timeout(at_s)
        self.workers[who].interrupt(down_s)

    def worker(self, who):
        env, costs, step = self.env, self.costs, 0
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
                self.see()
                yield env.timeout(death.cause)
                continue
            del self.coming[who]
            if read < self.version or self.ready:
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
