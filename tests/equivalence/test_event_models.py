"""Random clusters and protocols against event models that share no code with the simulator's.

Models of SimPy lie beside the simulator's tests; those here walk from event to event, or round to
round, in plain Python. Shared are the laws that durations are drawn by, and the tables of what an
all-reduce sends to whom.
"""

import heapq
import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from harness.simulator import Cluster, Device, Fault, WorkerGroup, Workload
from harness.simulator.cluster import Jitter, Link, Server
from harness.simulator.collectives import AllReduce
from harness.simulator.costs import computation_s, costs_of, uniforms
from harness.simulator.network import Level, Network, wire
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from tests.harness.simulator.fluid import fair_rates
from tests.harness.simulator.simpy_network import NetworkedModel
from tests.harness.simulator.simpy_rounds import BackupModel
from tests.invariants import way_of
from tests.nightly import runs


def random_cluster(draw, workers, **more):
    """Workers of different speeds, whose computations vary and whose copies take a while."""
    speeds = [draw.uniform(0.5, 2.0) for _ in range(workers)]
    law = draw.choice(["gamma", "lognormal", "shifted-exponential"])
    link = Link(draw.choice([0.0, draw.uniform(0, 0.1)]), draw.uniform(10, 200))
    settings = {"link": link, "server": Server(draw.uniform(0.01, 0.2), 0.0), **more}
    groups = tuple(WorkerGroup(1, "d", speed=speed) for speed in speeds)
    jitter = Jitter(law, draw.uniform(0.1, 0.9))
    return Cluster("random", {"d": Device(1.0)}, groups, jitter=jitter, **settings)


def random_deaths(draw, workers, until_s=25.0):
    """(worker, instant, seconds away) of some workers, of each at most once."""
    dying = draw.sample(range(workers), draw.randint(0, workers - 1))
    return [(who, draw.uniform(0.5, until_s), draw.uniform(0.2, 9.0)) for who in dying]


def faults_of(deaths):
    return tuple(
        Fault("death", (who,), at_s=(at_s,), down_s=down_s) for who, at_s, down_s in deaths
    )


def rows_of(timeline):
    """(time, worker, staleness) of everything folded."""
    rows = timeline.folded()
    times_s = timeline.folds.time_s[rows.fold - timeline.folds.fold[0]].tolist()
    return list(zip(times_s, rows.worker.tolist(), timeline.staleness().tolist(), strict=True))


def assert_equal(found, expected, case):
    """The same in the same order, at the same times but for rounding."""
    assert [row[1:] for row in found] == [tuple(row[1:]) for row in expected], case
    times_s = [row[0] for row in expected]
    assert [row[0] for row in found] == pytest.approx(times_s, rel=1e-9, abs=1e-9), case


JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


@pytest.mark.parametrize("cases", runs(10, 40))
def test_a_fair_link_is_simpys(cases):
    for case in range(cases):
        draw = Random(case)
        workers = draw.randint(1, 12)
        cluster = random_cluster(draw, workers)
        duplex = draw.choice(["full", "half"])
        link = replace(cluster.link, sharing="fair", duplex=duplex)
        linked = replace(cluster, link=link)
        timeline = Simulation(linked, "parameter_server", JOB, seed=case).advance(folds=80)
        level = Level(1, link.bandwidth_bytes_per_s, link.latency_s, duplex)
        cluster = replace(cluster, link=Link(), network=Network((), "fair", server=level))
        expected = NetworkedModel(cluster, JOB, workers, case).run(80)
        assert_equal(rows_of(timeline), expected, (case, duplex))


@pytest.mark.parametrize("cases", runs(10, 40))
def test_a_server_on_a_network_is_simpys(cases):
    for case in range(cases):
        draw = Random(case)
        workers, shards = draw.randint(1, 8), draw.choice([1, 1, 2, 3])
        duplex = draw.choice(["full", "half"])
        levels = [Level(1, draw.uniform(10, 90), draw.choice([0.0, 0.01]), duplex)]
        if draw.random() < 0.5:
            levels.append(Level(draw.choice([2, 4]), draw.uniform(10, 90), 0.02))
        network = Network(
            tuple(levels),
            draw.choice(["fair", "fifo"]),
            core_bandwidth_bytes_per_s=draw.choice([None, 60.0]),
            server=Level(1, draw.uniform(10, 90), draw.choice([0.0, 0.03])),
        )
        # folds vary, so that no two events are at one instant, of which the first is not said
        server = Server(draw.uniform(0.01, 0.2), 0.0, Jitter("gamma", 0.5))
        cluster = random_cluster(draw, workers, network=network, server=server)
        protocol = ParameterServer(shards=shards)
        timeline = Simulation(cluster, protocol, JOB, seed=case).advance(folds=60)
        expected = NetworkedModel(cluster, JOB, workers, case, shards).run(60)
        assert_equal(rows_of(timeline), expected, (case, network))


def walk_overlapped_rounds(cluster, workers, seed, every, folds):
    """Rounds whose workers go on while their parameters go round a ring."""
    costs = costs_of(cluster, JOB, workers, seed)
    copy_s = JOB.parameter_bytes / workers / cluster.link.bandwidth_bytes_per_s
    read_s, folded_s, record = [0.0] * workers, [0.0], []
    for number in range(folds):
        steps = range(number * every, (number + 1) * every)
        ready_s = [
            read_s[who] + sum(computation_s(costs, who, step) for step in steps)
            for who in range(workers)
        ]
        joined_s = [max(own_s, folded_s[-1]) for own_s in ready_s]
        there_s = joined_s
        for _ in range(2 * (workers - 1) if workers > 1 else 0):
            met_s = [max(there_s[who], there_s[(who + 1) % workers]) for who in range(workers)]
            there_s = [
                max(met_s[who] + copy_s, met_s[who - 1] + copy_s + cluster.link.latency_s)
                for who in range(workers)
            ]
        seen = [sum(fold_s <= own_s for fold_s in folded_s[1:]) for own_s in read_s]
        folded_s.append(max(there_s))
        record += [(folded_s[-1], who, number - seen[who]) for who in range(workers)]
        read_s = joined_s
    return record


@pytest.mark.parametrize("cases", runs(15, 60))
def test_overlapped_averaging_is_that_of_a_naive_walk(cases):
    for case in range(cases):
        draw = Random(case)
        workers, every = draw.randint(1, 7), draw.randint(1, 4)
        cluster = random_cluster(draw, workers)
        found = Simulation(cluster, Averaging(every, overlap=True), JOB, seed=case).advance(
            folds=12
        )
        expected = walk_overlapped_rounds(cluster, workers, case, every, 12)
        assert_equal(rows_of(found), expected, (case, workers, every))


@pytest.mark.parametrize("cases", runs(15, 60))
def test_backup_workers_with_deaths_are_simpys(cases):
    for case in range(cases):
        draw = Random(case)
        workers = draw.randint(1, 9)
        backups = draw.randint(0, workers - 1)
        deaths = random_deaths(draw, workers)
        cluster = random_cluster(draw, workers, faults=faults_of(deaths))
        timeline = Simulation(cluster, BackupWorkers(backups), JOB, seed=case).advance(folds=20)
        expected = BackupModel(cluster, JOB, workers, case, backups, deaths).run(20)
        rounds = [(time_s, who, 0) for time_s, taken in expected for who in taken]
        assert_equal(rows_of(timeline), rounds, (case, backups, deaths))


def walk_sampled_rounds(cluster, workers, seed, rules, deaths, folds):
    """Federated rounds, each from its clients' answers and deaths at once; [(time, clients)]."""
    costs, level = costs_of(cluster, JOB, workers, seed), cluster.network.levels[0]
    copy_s = JOB.parameter_bytes / level.bandwidth_bytes_per_s + level.latency_s
    dies_s, back_s = [math.inf] * workers, [-math.inf] * workers
    for who, at_s, down_s in deaths:
        dies_s[who], back_s[who] = at_s, at_s + down_s
    steps, record, now_s, number = [0] * workers, [], 0.0, 0
    while len(record) < folds:
        there = [who for who in range(workers) if not dies_s[who] <= now_s < back_s[who]]
        if not there:
            now_s = min(back_s[who] for who in range(workers) if back_s[who] > now_s)
            continue
        lots = {who: uniforms(costs.sample_key, who, number, 0)[0] for who in there}
        number += 1
        answers, missing = [], []
        for who in sorted(sorted(lots, key=lots.get)[: rules.sampled]):
            seconds = sum(
                computation_s(costs, who, step)
                for step in range(steps[who], steps[who] + rules.every)
            )
            steps[who] += rules.every
            answer_s = now_s + 2 * copy_s + seconds
            if now_s < dies_s[who] < answer_s:
                missing.append(dies_s[who])
            else:
                answers.append((answer_s, who))
        answers.sort()
        taken, end_s = [], now_s
        enough, deadline_s = rules.needed or math.inf, now_s + (rules.deadline_s or math.inf)
        for answer_s, who in answers[: rules.needed or None]:
            if taken and answer_s > deadline_s:
                break
            end_s = max(end_s, answer_s) + costs.fold_s
            taken.append(who)
        if len(taken) < min(enough, len(answers)):
            end_s = max(end_s, deadline_s)
        elif len(taken) < enough and missing:
            # the last that could have come is known to be missing, unless time is up before
            last_s = max(missing)
            end_s = max(end_s, min(last_s, deadline_s) if taken and end_s <= deadline_s else end_s)
            end_s = end_s if taken else last_s
        now_s = end_s
        if taken:
            record.append((end_s, sorted(taken)))
    return record


@pytest.mark.parametrize("cases", runs(37, 150))
def test_sampled_clients_are_those_of_a_naive_walk(cases):
    for case in range(cases):
        draw = Random(case)
        workers = draw.randint(1, 9)
        sampled = draw.randint(1, workers + 1)
        needed = draw.choice([0, draw.randint(1, sampled)])
        deadline_s = draw.choice([None, draw.uniform(0.5, 9.0)])
        rules = ClientSampling(sampled, needed, draw.randint(1, 3), deadline_s)
        deaths = random_deaths(draw, workers)
        network = Network((Level(1, draw.uniform(4, 40), draw.choice([0.0, 0.125])),))
        cluster = random_cluster(draw, workers, network=network, faults=faults_of(deaths))
        simulation = Simulation(cluster, rules, JOB, seed=case)
        expected = walk_sampled_rounds(cluster, workers, case, rules, deaths, 12)
        for time_s, taken in expected:
            timeline = simulation.advance(folds=1)
            assert timeline.folds.time_s[0] == pytest.approx(time_s, rel=1e-12), (case, rules)
            assert sorted(timeline.folded().worker.tolist()) == taken, (case, rules)


def walk_all_reduce(wiring, rows, sizes, ready_s):
    """When each worker has been through all rounds of its messages."""
    tasks = [
        sorted({int(m["round"]) for m in rows if who in (m["source"], m["target"])})
        for who in range(len(ready_s))
    ]
    sends = {(int(m["source"]), int(m["round"])): k for k, m in enumerate(rows)}
    receives = {(int(m["target"]), int(m["round"])): k for k, m in enumerate(rows)}
    ways = {k: way_of(wiring, int(m["source"]), int(m["target"])) for k, m in enumerate(rows)}
    latency_s = {
        k: latency_of(wiring, int(m["source"]), int(m["target"])) for k, m in enumerate(rows)
    }
    entries = [(time_s, who) for who, time_s in enumerate(ready_s)]
    heapq.heapify(entries)
    entered, left, departed, free_s = {}, {}, {}, {}
    place, end_s, now_s = [0] * len(ready_s), [0.0] * len(ready_s), 0.0

    def settle(who):
        if place[who] == len(tasks[who]) or (who, tasks[who][place[who]]) not in entered:
            return
        key = who, tasks[who][place[who]]
        known = [entered[key]]
        if key in sends:
            known.append(departed.get(sends[key], math.inf))
        if key in receives:
            known.append(departed.get(receives[key], math.inf) + latency_s[receives[key]])
        if max(known) < math.inf:
            place[who] += 1
            heapq.heappush(entries, (max(known), who))

    def begin(message):
        if wiring.fair:
            left[message] = sizes[message]
            return
        starts_s = max([now_s, *(free_s.get(link, 0.0) for link in ways[message])])
        departed[message] = starts_s + sizes[message] / min(wiring.rate[ways[message]])
        free_s.update(dict.fromkeys(ways[message], departed[message]))
        settle(int(rows[message]["source"]))
        settle(int(rows[message]["target"]))

    while entries or left:
        rates = fair_rates(
            {message: {link: wiring.rate[link] for link in ways[message]} for message in left}
        )
        ends_s = {message: now_s + left[message] / rates[message] for message in left}
        until_s = min([*ends_s.values(), *(entries[0][:1] if entries else ())])
        for message in left:
            left[message] -= rates[message] * (until_s - now_s)
        now_s = until_s
        over = [message for message in left if ends_s[message] <= now_s * (1 + 1e-13)]
        for message in over:
            del left[message]
            departed[message] = now_s
        for message in over:
            settle(int(rows[message]["source"]))
            settle(int(rows[message]["target"]))
        while not over and entries and entries[0][0] <= now_s:
            who = heapq.heappop(entries)[1]
            if place[who] == len(tasks[who]):
                end_s[who] = now_s
                continue
            key = who, tasks[who][place[who]]
            entered[key] = now_s
            for message in dict.fromkeys([sends.get(key), receives.get(key)]):
                if message is None:
                    continue
                ends = [(int(rows[message][end]), key[1]) for end in ("source", "target")]
                needed = ends if wiring.rendezvous else ends[:1]
                if all(end in entered for end in needed) and (key in needed):
                    begin(message)
            settle(who)
    return end_s


def latency_of(wiring, source, target):
    """Of all levels that a message passes, up and down together."""
    apart = [source // group != target // group for group in wiring.group]
    return sum(latency for latency, far in zip(wiring.latency_s, apart, strict=False) if far)


KNOWN = [  # levels, core, ready, bytes: on which messages once took no time
    ((Level(1, 100.0), Level(2, 200.0, links=2)), 200.0, [3.0, 6.0, 1.0, 4.0], 400.0),
    ((Level(1, 50.0), Level(2, 200.0, 0.01, links=2)), 100.0, [4.0, 2.0, 5.0, 2.0], 100.0),
    ((Level(1, 100.0), Level(2, 200.0, 0.01)), 200.0, [5.0, 6.0, 4.0, 3.0], 400.0),
]


def random_all_reduce(case):
    """An algorithm, a network, how many are near each other, when each is ready, and bytes."""
    if case < len(KNOWN):
        levels, core, ready_s, size = KNOWN[case]
        network = Network(levels, sending="buffered", core_bandwidth_bytes_per_s=core)
        return "two-level", network, 2, ready_s, size
    draw = Random(case)
    near, groups = draw.choice([2, 3, 4]), draw.choice([2, 3])
    rates = [draw.choice([50.0, 100.0, 200.0]) for _ in range(2)]
    links, latency_s = draw.choice([1, near]), draw.choice([0.0, 0.01])
    levels = (Level(1, rates[0]), Level(near, rates[1], latency_s, links=links))
    algorithm = draw.choice(["two-level", "rabenseifner", "recursive-doubling"])
    sending, sharing = draw.choice(["rendezvous", "buffered"]), draw.choice(["fair"] * 3 + ["fifo"])
    core = draw.choice([None, 100.0, 200.0])
    if sharing == "fifo":  # which of two messages goes first that are sent at once is not said
        levels, core = (levels[0], replace(levels[1], links=near)), None
    network = Network(levels, sharing, sending, core)
    ready_s = [float(draw.randint(0, 6)) for _ in range(near * groups)]
    return algorithm, network, near, ready_s, 400.0


@pytest.mark.parametrize("cases", runs(30, 120))
def test_an_all_reduce_on_a_network_is_that_of_a_naive_walk(cases):
    for case in range(cases):
        algorithm, network, near, ready_s, size = random_all_reduce(case)
        wiring = wire(network, len(ready_s))
        exchange = AllReduce(algorithm, wiring, near)
        found = exchange.messages(np.array(ready_s), size)
        expected = walk_all_reduce(wiring, found, found["size_bytes"].tolist(), ready_s)
        ends_s = exchange.ends_s(ready_s, size).tolist()
        assert ends_s == pytest.approx(expected, rel=1e-9), (case, algorithm, network)
