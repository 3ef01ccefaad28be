"""Lost messages, failing servers, buckets and checkpoints against event models of their own.

As `test_event_models`: plain Python that walks from event to event, or round to round, and shares
with the simulator only the laws that durations, instants and losses are drawn by.
"""

import heapq
import math
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from types import SimpleNamespace

import pytest

from harness.simulator.cluster import Checkpoints, Compression, Fault, Host, Link, Parallel, Server
from harness.simulator.costs import computation_s, costs_of, purpose_key, uniforms
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from tests.equivalence.test_event_models import JOB, assert_equal, random_cluster, rows_of
from tests.nightly import runs

FOLDED, ARRIVED, SENT_AGAIN, COMPUTED, FETCHED, FAULT, RETURNED, READ = range(8)
"""Of events at one instant this is the order."""


def instants_of(fault, place, seed):
    """A function of (worker, occurrence, when the last one was over): the next instant."""
    if fault.at_s:
        return lambda who, times, over_s: [*fault.at_s, *[math.inf] * (times + 1)][times]
    key = purpose_key(seed, "fault")
    return lambda who, times, over_s: (
        over_s - fault.mean_s * math.log(uniforms(key, who, times, place)[0])
    )


class FailingServer:
    """A server that fails, messages that are lost, and workers that go, from event to event.

    Args:
        cluster, workers, seed, rules: as of a simulation.
    """

    def __init__(self, cluster, workers, seed, rules):
        self.cluster, self.rules, self.costs = cluster, rules, costs_of(cluster, JOB, workers, seed)
        self.message_key, self.sent, self.dropped = purpose_key(seed, "message"), 0, 0
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
        u = uniforms(self.message_key, worker.who, worker.messages, 0)[0]
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
    fetch = every * draw.choice([1, 1, 2])
    return ParameterServer(
        push_every=every, fetch_every=fetch, bound=bound, queue=queue, depth=depth
    )


KNOWN = [870, 1290]
"""In which a dying worker once sent what had waited for the place that its death made free."""


@pytest.mark.parametrize("cases", runs(25, 100))
def test_a_server_that_fails_and_messages_that_are_lost_are_those_of_a_naive_walk(cases):
    sent = dropped = expected = variance = restarts = 0
    for case in [*range(cases), *KNOWN]:
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
    assert min(dropped, restarts) > cases


def all_reduced_s(ready_s, size, level, add_s=0.0):
    """When each worker has the sum, round a ring; ``add_s`` a byte to add what has come."""
    count = len(ready_s)
    copy_s, add_s = size / count / level.bandwidth_bytes_per_s, size / count * add_s
    there_s = ready_s
    for turn in range(2 * (count - 1)):
        met_s = [max(there_s[who], there_s[(who + 1) % count]) for who in range(count)]
        there_s = [
            max(met_s[who] + copy_s, met_s[who - 1] + copy_s + level.latency_s)
            + (add_s if turn < count - 1 else 0.0)
            for who in range(count)
        ]
    return there_s


class Absent:
    """Who is there: deaths with and without notice, preemptions and late arrivals, one a worker."""

    def __init__(self, cluster, workers, seed):
        self.now_s, self.until_s = 0.0, [-math.inf] * workers
        self.leave_s, self.doom_s = [0.0] * workers, [math.inf] * workers
        self.strikes = []
        for place, fault in enumerate(cluster.faults):
            (who,) = fault.workers
            if fault.kind == "late":
                self.until_s[who] = fault.at_s[0]
            else:
                next_s = instants_of(fault, place, seed)
                heapq.heappush(self.strikes, (next_s(who, 0, 0.0), who, 0, fault, next_s))

    def missing(self):
        return [who for who, until_s in enumerate(self.until_s) if until_s > self.now_s]

    def first_s(self):
        return min([*self.doom_s, *(strike[0] for strike in self.strikes)])

    def go_on(self, end_s):
        """To an instant, or to a death before it: who dies."""
        while self.first_s() < end_s:
            self.now_s = self.first_s()
            if (who := self.happen()) is not None:
                return who
        self.now_s = end_s
        return None

    def die(self, who, down_s):
        self.until_s[who] = self.now_s + down_s
        self.leave_s[who], self.doom_s[who] = 0.0, math.inf
        return who

    def happen(self):
        if min(self.doom_s) == self.now_s:
            who = self.doom_s.index(self.now_s)
            return self.die(who, self.leave_s[who])
        _, who, times, fault, next_s = heapq.heappop(self.strikes)
        later_s = next_s(who, times + 1, self.now_s + fault.notice_s + fault.down_s)
        heapq.heappush(self.strikes, (later_s, who, times + 1, fault, next_s))
        if who in self.missing():
            return None
        if fault.kind == "death" and not fault.notice_s:
            return self.die(who, fault.down_s)
        self.leave_s[who] = max(self.leave_s[who], fault.down_s)
        if fault.kind == "death":
            self.doom_s[who] = min(self.doom_s[who], self.now_s + fault.notice_s)
        return None

    def depart(self):
        """Between rounds those go who have to."""
        for who, down_s in enumerate(self.leave_s):
            if down_s:  # that of an announced death counts from its instant
                from_s = self.doom_s[who] if self.doom_s[who] < math.inf else self.now_s
                self.die(who, down_s)
                self.until_s[who] = from_s + down_s


class SavedRounds(Absent):
    """Averaging that nobody misses, and that goes on from checkpoints."""

    def run(self, cluster, workers, seed, every, folds):
        costs, saving = costs_of(cluster, JOB, workers, seed), cluster.checkpoints
        self.rows, self.lost, self.restarts = [], [], []
        self.step = self.saved = self.newest = 0
        is_broken = False
        while self.newest < folds:
            if self.missing():
                is_broken |= self.go_on(max(self.until_s)) is not None
            elif is_broken:
                is_broken = self.go_on(self.now_s + saving.restart_s) is not None
                if not is_broken:
                    self.restarts.append((self.now_s, self.newest, self.saved))
                    self.saved = self.newest
            elif any(self.leave_s) and self.newest > self.saved:
                is_broken = not self.save(saving)
            elif any(self.leave_s):
                self.depart()
                is_broken = True
            else:
                steps, began_s = range(self.step, self.step + every), self.now_s
                ready_s = [
                    began_s + sum(computation_s(costs, who, step) for step in steps)
                    for who in range(workers)
                ]
                end_s = max(all_reduced_s(ready_s, JOB.parameter_bytes, cluster.network.levels[0]))
                is_broken = self.go_on(end_s) is not None
                read = self.newest
                if is_broken:
                    self.lost += [(began_s, who, read, self.step) for who in range(workers)]
                else:
                    self.rows += [(end_s, who, 0, self.step) for who in range(workers)]
                    self.newest += 1
                self.step += every
                if not is_broken and self.newest - self.saved >= saving.every_folds:
                    is_broken = not self.save(saving)

    def save(self, saving):
        if self.go_on(self.now_s + saving.write_s) is not None:
            return False
        self.saved = self.newest
        return True


def random_absences(draw, workers, notice=False):
    """One process for each of some workers."""
    found = []
    for who in draw.sample(range(workers), draw.randint(0, workers)):
        kind = draw.choice(["death", "death", "preemption", "late"])
        at_s, down_s = draw.uniform(0.5, 40.0), draw.uniform(0.2, 9.0)
        if kind == "late":
            found.append(Fault(kind, (who,), at_s=(at_s / 8,)))
            continue
        warns = {"notice_s": draw.uniform(0.2, 6.0)} if notice and draw.random() < 0.5 else {}
        when = {"at_s": (at_s,)} if draw.random() < 0.3 else {"mean_s": at_s + 5.0}
        more = warns if kind == "death" else {}
        found.append(Fault(kind, (who,), down_s=down_s, **when, **more))
    return tuple(found)


def check_rounds(found, model, case):
    """The folds, losses and restarts of a model."""
    rows, lost = found.folded(), found.lost()
    steps = rows.first_step.tolist()
    mine = sorted(model.rows, key=lambda row: row[0])
    rows = [(*row, step) for row, step in zip(rows_of(found), steps, strict=True)]
    assert_equal(rows, mine, case)
    columns = [lost.read_time_s, lost.worker, lost.read_version, lost.first_step]
    rows = sorted(zip(*(c.tolist() for c in columns), strict=True))
    assert_equal(rows, sorted(model.lost), case)
    columns = [found.restarts.time_s, found.restarts.version, found.restarts.restored_version]
    assert_equal(list(zip(*(c.tolist() for c in columns), strict=True)), model.restarts, case)


def random_rounds(draw, workers, **more):
    level = Level(1, draw.uniform(4, 80), draw.choice([0.0, 0.05]))
    return random_cluster(draw, workers, network=Network((level,), sharing="fifo"), **more)


@pytest.mark.parametrize("cases", runs(25, 100))
def test_checkpoints_that_all_wait_for_are_those_of_a_naive_walk(cases):
    restarts = 0
    for case in range(cases):
        draw = Random(case)
        workers, every = draw.randint(1, 5), draw.randint(1, 3)
        times = [draw.choice([0.0, draw.uniform(0.1, 3.0)]) for _ in range(2)]
        cluster = random_rounds(
            draw,
            workers,
            faults=random_absences(draw, workers, notice=True),
            checkpoints=Checkpoints(draw.randint(1, 6), *times),
        )
        model = SavedRounds(cluster, workers, case)
        model.run(cluster, workers, case, every, 15)
        found = Simulation(cluster, Averaging(every), JOB, seed=case).advance(folds=15)
        check_rounds(found, model, (case, cluster.checkpoints, cluster.faults))
        restarts += len(model.restarts)
    assert restarts > cases / 2


def paced_s(begins_s, work_s, busy, slowdown):
    """When work is done that goes on ``slowdown`` times as slowly while its worker is busy."""
    now_s = begins_s
    for start_s, end_s in busy:
        if end_s > now_s:
            free_s = max(start_s - now_s, 0.0)
            if work_s <= free_s:
                return now_s + work_s
            work_s, now_s = work_s - free_s, now_s + free_s
            if work_s * slowdown <= end_s - now_s:
                return now_s + work_s * slowdown
            work_s, now_s = work_s - (end_s - now_s) / slowdown, end_s
    return now_s + work_s


class BucketedRounds(Absent):
    """Averaging in buckets among those who are there; after a death it is done anew, in one."""

    def run(self, cluster, workers, seed, rules, folds):
        self.costs, self.cluster = costs_of(cluster, JOB, workers, seed), cluster
        self.add_s = cluster.server.fold_traffic / cluster.host.memory_bytes_per_s
        self.rows, self.lost, self.restarts, self.step, self.version = [], [], [], 0, 0
        whole, buckets = JOB.parameter_bytes, rules.buckets or (JOB.parameter_bytes,)
        ends = [0.0, *accumulate(buckets)]
        while ends[-1] < whole:
            ends.append(ends[-1] + buckets[-1])
        ends = [min(end, whole) for end in ends if end < whole] + [whole]
        self.parts = [end - start for start, end in pairwise(ends)]
        while self.version < folds:
            self.depart()
            away = self.missing()
            there = [who for who in range(workers) if who not in away]
            if not there:
                self.go_on(min(self.until_s))
                continue
            self.average(there, range(self.step, self.step + rules.every))
            self.step += rules.every

    def average(self, there, steps):
        began_s, coder = self.now_s, self.cluster.compression
        decode_s = JOB.parameter_bytes / coder.decode_bytes_per_s
        ready_s, through_s = self.in_buckets(there, steps)
        while there:
            dead = self.go_on(max(through_s) + decode_s)
            if dead is None:
                self.rows += [(self.now_s, who, 0, steps[0]) for who in there]
                self.version += 1
                return
            if dead in there:
                self.lost.append((began_s, dead, self.version, steps[0]))
                del ready_s[there.index(dead)]
                there.remove(dead)
                anew_s = [max(time_s, self.now_s) for time_s in ready_s]
                through_s = self.sent_s(anew_s, JOB.parameter_bytes) if there else []

    def sent_s(self, ready_s, size):
        size *= self.cluster.compression.ratio
        return all_reduced_s(ready_s, size, self.cluster.network.levels[0], self.add_s)

    def in_buckets(self, there, steps):
        """When each has all of its gradients, and has been through all of the buckets."""
        parallel, coder = self.cluster.parallel, self.cluster.compression
        pause_s = parallel.average_s + (0.0 if self.version else parallel.first_average_s)
        full_s, work_s, busy = [], [], [[] for _ in there]
        for who in there:
            seconds = [computation_s(self.costs, who, step) * parallel.slowdown for step in steps]
            backward_s = seconds[-1] * parallel.backward_share
            full_s.append(self.now_s + sum(seconds) - backward_s)
            work_s.append(backward_s + JOB.parameter_bytes / coder.encode_bytes_per_s)
        left_s = full_s
        for number, part in enumerate(self.parts, start=1):
            share = part / JOB.parameter_bytes
            full_s = [
                paced_s(full_s[who], work_s[who] * share, busy[who], parallel.overlap_slowdown)
                for who in range(len(there))
            ]
            joined_s = [max(full_s[who], left_s[who]) for who in range(len(there))]
            if number == len(self.parts):
                joined_s = [time_s + pause_s for time_s in joined_s]
            left_s = self.sent_s(joined_s, part)
            for who, spent in enumerate(zip(joined_s, left_s, strict=True)):
                busy[who].append(spent)
        return [time_s + pause_s for time_s in full_s], left_s


@pytest.mark.parametrize("cases", runs(15, 60))
def test_an_all_reduce_in_buckets_is_that_of_a_naive_walk(cases):
    for case in range(cases):
        draw = Random(case)
        workers, every = draw.randint(2, 6), draw.randint(1, 3)
        buckets = tuple(draw.uniform(1.0, 5.0) for _ in range(draw.randint(0, 3)))
        parallel = Parallel(
            slowdown=draw.uniform(1.0, 1.3), average_s=draw.choice([0.0, 0.1]),
            first_average_s=draw.choice([0.0, 0.5]), backward_share=draw.uniform(0.1, 1.0),
            overlap_slowdown=draw.choice([1.0, draw.uniform(1.0, 4.0)]),
        )  # fmt: skip
        cluster = random_rounds(
            draw, workers, parallel=parallel, host=Host(memory_bytes_per_s=draw.uniform(50, 500)),
            server=Server(0.0, draw.choice([0.0, 3.0])),
            compression=Compression(draw.uniform(0.2, 1.5), 200.0, draw.uniform(40, 400)),
            faults=random_absences(draw, workers),
        )  # fmt: skip
        rules = Averaging(every, buckets=buckets)
        model = BucketedRounds(cluster, workers, case)
        model.run(cluster, workers, case, rules, 12)
        found = Simulation(cluster, rules, JOB, seed=case).advance(folds=12)
        check_rounds(found, model, (case, rules, cluster.faults))
