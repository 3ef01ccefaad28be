"""Lost messages, failing servers, buckets and checkpoints against event models of their own.

As `test_event_models`: plain Python that walks from event to event, or round to round, and shares
with the simulator only the laws that durations, instants and losses are drawn by.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from itertools import accumulate
from random import Random
from types import SimpleNamespace

import pytest

from harness.simulator import (
    Averaging,
    Fault,
    Host,
    Level,
    Link,
    Network,
    ParameterServer,
    Server,
    Simulation,
    laws,
)
from harness.simulator.cluster import Checkpoints, Compression, Parallel
from harness.simulator.costs import computation_s, costs_of
from tests.equivalence.test_event_models import JOB, assert_equal, random_cluster, rows_of

FOLDED, ARRIVED, SENT_AGAIN, COMPUTED, FETCHED, FAULT, RETURNED, READ = range(8)
"""Of events at one instant this is the order."""


def instants_of(fault, place, seed):
    """A function of (worker, occurrence, when the last one was over): the next instant."""
    if fault.at_s:
        return lambda who, times, over_s: [*fault.at_s, *[math.inf] * (times + 1)][times]
    key = laws.purpose_key(seed, "fault")
    return lambda who, times, over_s: over_s - fault.mean_s * math.log(
        laws.uniforms(key, who, times, place)[0]
    )


class FailingServer:
    """A server that fails, messages that are lost, and workers that go, from event to event.

    Args:
        cluster, workers, seed, rules: as of a simulation.
    """

    def __init__(self, cluster, workers, seed, rules):
        self.cluster, self.rules, self.costs = cluster, rules, costs_of(cluster, JOB, workers, seed)
        self.message_key, self.sent, self.dropped = laws.purpose_key(seed, "message"), 0, 0
        message = [fault for fault in cluster.faults if fault.kind == "message"]
        self.probability = message[0].probability if message else 0.0
        self.retry_s = message[0].retry_s if message else 0.0
        self.events, self.number, self.now_s = [], 0, 0.0
        self.folded_s, self.rows, self.lost, self.restarts = [], [], [], []
        self.queue, self.gate, self.places, self.handed_out = [], [], 0, 0
        self.free_s = self.up_s = 0.0
        self.link_free_s = {}
        self.workers = [
            SimpleNamespace(who=who, mine=[], computing=None, away=False, held=False, leave_s=0.0)
            for who in range(workers)
        ]
        for worker in self.workers:
            worker.steps = worker.messages = worker.folds = worker.cycle = 0
            worker.kept, worker.read = -1, None
            self.want(worker)
        timed = [fault for fault in cluster.faults if fault.kind != "message"]
        for place, fault in enumerate(timed):
            next_s = instants_of(fault, place, seed)
            named = [0] if fault.kind == "server" else fault.workers or range(workers)
            for who in named:
                if fault.kind == "late":
                    self.go(self.workers[who], fault.at_s[0])
                else:
                    self.at(next_s(who, 0, 0.0), FAULT, self.strike, fault, next_s, who, 0)

    def at(self, time_s, kind, act, *what):
        self.number += 1
        heapq.heappush(self.events, (time_s, kind, self.number, act, what))

    def run(self, folds):
        while len(self.rows) < folds:
            self.now_s, _, _, act, what = heapq.heappop(self.events)
            act(*what)
            self.release()

    def want(self, worker):
        worker.cycle += 1
        self.at(self.now_s, READ, self.read, worker, worker.cycle)

    def go(self, worker, until_s):
        worker.away, worker.computing, worker.kept, worker.held = True, None, -1, False
        worker.cycle += 1
        self.at(until_s, RETURNED, self.come_back, worker)

    def come_back(self, worker):
        others = [other.folds for other in self.workers if not other.away]
        worker.away, worker.folds = False, max([worker.folds, *([min(others)] if others else [])])
        self.want(worker)

    def is_ahead(self, worker):
        least = min(other.folds for other in self.workers if not other.away)
        return worker.folds + len(worker.mine) > least + self.rules.bound

    def release(self):
        for worker in self.workers:
            if worker.held and not self.is_ahead(worker):
                worker.held = False
                self.want(worker)

    def read(self, worker, cycle):
        rules, costs = self.rules, self.costs
        if cycle != worker.cycle:
            return
        if worker.leave_s:
            self.go(worker, self.now_s + worker.leave_s)
            worker.leave_s = 0.0
            return
        if self.now_s < self.up_s:
            self.at(self.up_s, READ, self.read, worker, cycle)
            return
        if rules.bound is not None and self.is_ahead(worker):
            worker.held = True
            return
        if len(worker.mine) == rules.depth:
            return
        fetches = worker.kept < 0 or worker.kept + rules.push_every > max(
            rules.fetch_every, rules.push_every
        )
        if fetches:
            worker.kept, worker.read = 0, (len(self.rows), self.now_s)
        worker.kept += rules.push_every
        item = SimpleNamespace(worker=worker, read=worker.read, first_step=self.handed_out)
        item.is_lost, item.place, item.is_handed_in = False, False, False
        self.handed_out += rules.push_every
        steps = range(worker.steps, worker.steps + rules.push_every)
        item.seconds = sum(computation_s(costs, worker.who, step) for step in steps)
        worker.steps += rules.push_every
        worker.mine.append(item)
        worker.computing = item
        arrives_s = self.copied_s(worker, "down", fetch=True) if fetches else self.now_s
        self.at(arrives_s + item.seconds, COMPUTED, self.computed, item)

    def copied_s(self, worker, way, fetch=False):
        """When a copy that begins now, or when its link is free, arrives."""
        link = self.cluster.link
        if link.sharing == "none" and fetch:  # nothing else is on its way to this worker
            return self.now_s + self.costs.copy_s + link.latency_s
        key = worker.who if link.sharing == "none" else way if link.duplex == "full" else "both"
        left_s = max(self.now_s, self.link_free_s.get(key, 0.0)) + self.costs.copy_s
        self.link_free_s[key] = left_s
        return left_s + link.latency_s

    def computed(self, item):
        if item.is_lost:
            return
        worker = item.worker
        worker.computing = None
        if self.rules.queue is not None and self.places == self.rules.queue:
            self.gate.append(item)
        else:
            self.enter(item)
        if len(worker.mine) < self.rules.depth:
            self.want(worker)

    def enter(self, item):
        self.places, item.place = self.places + 1, True
        self.send(item)

    def send(self, item):
        if not item.is_lost:
            self.at(self.copied_s(item.worker, "up"), ARRIVED, self.arrive, item)

    def arrive(self, item):
        if item.is_lost:
            return
        worker = item.worker
        worker.messages += 1
        self.sent += 1
        u = laws.uniforms(self.message_key, worker.who, worker.messages, 0)[0]
        if u < self.probability:
            self.dropped += 1
            self.at(self.now_s + self.retry_s, SENT_AGAIN, self.send, item)
            return
        item.is_handed_in = True
        self.queue.append(item)
        self.free_s = max(self.now_s, self.free_s) + self.costs.fold_s
        self.at(self.free_s, FOLDED, self.fold, item)

    def fold(self, item):
        if item.is_lost:
            return
        worker = item.worker
        self.queue.remove(item)
        self.rows.append((self.now_s, worker.who, len(self.rows) - item.read[0], item.first_step))
        self.leave(item)
        worker.folds += 1
        if not worker.away and worker.computing is None and not worker.held:
            self.want(worker)

    def leave(self, item):
        """A contribution is under way no more, and its place at the server is another's."""
        item.worker.mine.remove(item)
        if item in self.gate:
            self.gate.remove(item)
        if item.place:
            self.places -= 1
            if self.gate:
                self.enter(self.gate.pop(0))

    def lose(self, item):
        item.is_lost = True
        self.lost.append((item.worker.who, *item.read, item.first_step))
        self.leave(item)

    def strike(self, fault, next_s, who, times):
        worker = self.workers[who]
        down_s = math.inf if fault.down_s is None else fault.down_s
        if fault.kind == "server":
            self.fail(fault)
        elif fault.kind == "preemption" and not worker.away:
            worker.leave_s = max(worker.leave_s, down_s)
        elif not worker.away:
            self.gate = [item for item in self.gate if item.worker is not worker]
            for item in [item for item in worker.mine if not item.is_handed_in]:
                self.lose(item)
            self.go(worker, self.now_s + down_s)
        later_s = next_s(who, times + 1, self.now_s + down_s)
        self.at(later_s, FAULT, self.strike, fault, next_s, who, times + 1)

    def fail(self, fault):
        self.up_s = self.free_s = self.now_s + fault.down_s
        saved_s = self.now_s // fault.checkpoint_s * fault.checkpoint_s
        restored = sum(row[0] <= saved_s for row in self.rows)
        self.restarts.append((self.up_s, len(self.rows), restored))
        for item in sorted(self.queue, key=lambda item: item.worker.who):
            self.lose(item)
            if not item.worker.away and item.worker.computing is None:
                item.worker.held = False
                self.want(item.worker)
        self.queue.clear()


def random_failures(draw, workers):
    """What befalls messages, the server, and some of the workers, each by one process."""
    found = []
    if draw.random() < 0.6:
        found.append(Fault("message", probability=draw.uniform(0.05, 0.8), retry_s=draw.random()))
    if draw.random() < 0.7:
        often = draw.random() < 0.5
        when = {"mean_s": draw.uniform(2, 20)} if often else {"at_s": (3.0 + draw.random(), 12.5)}
        down_s, saved_s = draw.uniform(0.0, 3.0), draw.uniform(0.5, 9.0)
        found.append(Fault("server", down_s=down_s, checkpoint_s=saved_s, **when))
    for who in draw.sample(range(workers), draw.randint(0, workers - 1)):
        kind = draw.choice(["death", "death", "preemption", "late"])
        at_s, down_s = draw.uniform(0.5, 20.0), draw.uniform(0.2, 9.0)
        if kind == "late":
            found.append(Fault(kind, (who,), at_s=(at_s / 4,)))
        elif draw.random() < 0.3:
            found.append(Fault(kind, (who,), at_s=(at_s,), down_s=down_s))
        else:
            found.append(Fault(kind, (who,), mean_s=at_s, down_s=down_s))
    return tuple(draw.sample(found, len(found)))


def random_rules(draw):
    """Settings of a server; a bound and few places are not together, as either may hold one up."""
    every, depth = draw.choice([1, 1, 3]), draw.choice([1, 1, 2, 3])
    bound = draw.choice([None, None, 0, 1, 3])
    queue = draw.choice([None, 1, 3]) if bound is None else None
    return ParameterServer(every, every * draw.choice([1, 1, 2]), bound, queue, depth)


def test_a_server_that_fails_and_messages_that_are_lost_are_those_of_a_naive_walk():
    sent = dropped = expected = variance = restarts = 0
    for case in range(200):
        draw = Random(case)
        workers, rules = draw.randint(1, 7), random_rules(draw)
        sharing = "none" if rules.bound is not None else draw.choice(["none", "none", "fifo"])
        link = Link(draw.choice([0.0, 0.05]), draw.uniform(10, 200), sharing)
        link = replace(link, duplex=draw.choice(["full", "half"]))
        faults = random_failures(draw, workers)
        cluster = random_cluster(draw, workers, link=link, faults=faults)
        model = FailingServer(cluster, workers, case, rules)
        model.run(60)
        found = Simulation(cluster, rules, JOB, seed=case).advance(folds=60)
        lost, steps = found.lost(), found.folded().first_step.tolist()
        rows = [(*row, step) for row, step in zip(rows_of(found), steps, strict=True)]
        if rules.bound is not None:  # which of two reads first that it let go at once is not said
            rows, model.rows = [row[:3] for row in rows], [row[:3] for row in model.rows]
            model.lost = [(*row[:3], 0) for row in model.lost]
            lost = replace(lost, first_step=0 * lost.first_step)
        assert_equal(rows, model.rows, (case, rules, faults))
        columns = [lost.read_time_s, lost.worker, lost.read_version, lost.first_step]
        mine = sorted((time_s, who, seen, step) for who, seen, time_s, step in model.lost)
        assert_equal(sorted(zip(*(c.tolist() for c in columns), strict=True)), mine, case)
        columns = [found.restarts.time_s, found.restarts.version, found.restarts.restored_version]
        assert_equal(list(zip(*(c.tolist() for c in columns), strict=True)), model.restarts, case)
        undone = [range(back, version) for _, version, back in model.restarts]
        kept = [fold for fold in range(60) if not any(fold in part for part in undone)]
        assert found.kept().fold.tolist() == kept, case
        sent, dropped, restarts = sent + model.sent, dropped + model.dropped, restarts + len(undone)
        expected += model.sent * model.probability
        variance += model.sent * model.probability * (1.0 - model.probability)
    assert abs(dropped - expected) < 5 * math.sqrt(variance)
    assert min(dropped, restarts) > 100
