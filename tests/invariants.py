"""Rules that hold of every simulated timeline and every message, checked in every test.

While a test runs, each part of a timeline that a `Simulation` gives in its process goes through
`check_timeline`, and what an all-reduce or `travel` sends through `check_messages`.
Nothing here asks a kernel of the simulator for a time: `way_of` finds ways again, link by link.
"""

import sys
from itertools import pairwise

import numpy as np
import pytest

MOST = 20_000
"""Rows and messages of one call that are looked at, so that long ones cost little."""
ROUNDING = 1e-9


def check_timeline(timeline, *, in_one_place=True, waits=True, push_s=0.0, interval=1):
    """Check one segment, or a part of one.

    Args:
        timeline: the segment.
        in_one_place: whether a worker does one thing at a time; if not, it still computes one
            minibatch at a time.
        waits: whether a worker goes on only after the fold of what it has handed in.
        push_s: the least time in which a contribution can reach the server; every folded one has
            then a span of at least that.
        interval: folds from one version that is published to the next.
    """
    numbers, times_s = timeline.folds.fold, timeline.folds.time_s
    assert (np.diff(times_s) >= 0.0).all(), "a fold is complete before the one before it"
    assert (np.diff(numbers) == 1).all(), "folds are not numbered one by one"
    if len(numbers):
        check_reads(timeline.contributions, int(numbers[0]), times_s, interval)
    spans = timeline.spans
    if 0 < len(spans) <= MOST:
        compute = timeline.kinds.index("compute")
        check_places(
            spans, spans.kind == compute if not in_one_place else spans.worker == spans.worker
        )
    if waits and 0 < len(spans) <= MOST and len(numbers):
        check_arrivals(timeline)
    if push_s > 0.0 and len(spans):
        pushed = spans.kind == timeline.kinds.index("push")
        seconds = (spans.end_s - spans.start_s)[pushed]
        assert len(seconds) == len(timeline.folded()), "a contribution arrives in no time"
        least_s = push_s - ROUNDING * spans.end_s[pushed]
        assert (seconds >= least_s).all(), "a contribution arrives too soon"


def check_reads(rows, first, times_s, interval):
    """A version is read from the fold that makes it on, no longer than until the next is there."""
    made = rows.read_version - 1 - first
    known = (made >= 0) & (made < len(times_s))
    after = times_s[made[known]] <= rows.read_time_s[known]
    assert after.all(), "a version is read before the fold that makes it is complete"
    known = (made >= -1) & (made < len(times_s) - interval)
    before = rows.read_time_s[known] <= times_s[made[known] + interval]
    assert before.all(), "a version is read after the fold that ends it"
    folded = rows.fold >= 0
    ends_s = times_s[rows.fold[folded] - first]
    assert (rows.read_time_s[folded] <= ends_s).all(), "a contribution is folded before its read"


def check_places(spans, which):
    """No two of these spans of one worker, or one shard, are at the same time."""
    worker, start_s, end_s = spans.worker[which], spans.start_s[which], spans.end_s[which]
    order = np.lexsort((end_s, start_s, worker))
    same = worker[order][1:] == worker[order][:-1]
    apart = start_s[order][1:] >= end_s[order][:-1] - ROUNDING * end_s[order][:-1]
    assert apart[same].all(), "a worker is in two places at once"


def check_arrivals(timeline):
    """What a worker does for a contribution is over when that is folded."""
    rows, spans = timeline.folded(), timeline.spans
    ends_s = timeline.folds.time_s[rows.fold - timeline.folds.fold[0]]
    for who in np.unique(rows.worker):
        mine_s = ends_s[rows.worker == who]
        own = spans.worker == who
        place = np.searchsorted(mine_s, spans.start_s[own], side="right")
        fold_s = np.append(mine_s, np.inf)[place]
        late = spans.end_s[own] > fold_s * (1.0 + ROUNDING)
        assert not late.any(), "a fold is complete before the last of it has arrived"


def way_of(wiring, source, target):
    """The links between two ends, found level by level from the description of a network."""
    servers = [end >= wiring.workers for end in (source, target)]
    levels, links = len(wiring.group), []
    has_top = True
    for level in range(levels):
        group = int(wiring.group[level])
        many = int(wiring.links[level])
        if not any(servers) and source // group == target // group:
            has_top = False
            break
        if wiring.inside[level]:
            above = int(wiring.group[level + 1])
            if any(servers) or source // above != target // above:
                continue
        for end, is_server, first in zip(
            (source, target), servers, (wiring.up, wiring.down), strict=True
        ):
            if not is_server:
                links.append(int(first[level]) + end // group * many + end % group * many // group)
    for end, is_server, first in zip(
        (source, target), servers, (wiring.up, wiring.down), strict=True
    ):
        if is_server:
            links.append(int(first[levels]) + end - wiring.workers)
    if has_top and wiring.core >= 0:
        rail = [end % group * many // group for end in (source, target)] if levels else [0, 0]
        if any(servers) or not wiring.rails or rail[0] != rail[1]:
            links.append(wiring.core)
    return links


def check_messages(wiring, source, target, size_bytes, sent_s, departed_s):
    """Each takes at least its bytes over its narrowest link; no link carries more than it can.

    Args:
        wiring: the network.
        source, target: [M] ends.
        size_bytes: [M].
        sent_s, departed_s: [M] when each began to move, and when its last byte left.
    """
    if not 0 < len(size_bytes) <= MOST // 10 or not np.isfinite(departed_s).all():
        return
    ways = [way_of(wiring, int(a), int(b)) for a, b in zip(source, target, strict=True)]
    narrowest = np.array([min(wiring.rate[way], default=np.inf) for way in ways])
    slack_s = ROUNDING * np.abs(departed_s)
    least_s = size_bytes / narrowest
    assert (departed_s - sent_s >= least_s - slack_s).all(), "a message is quicker than its bytes"
    carried = {}
    for message, way in enumerate(ways):
        for link in way:
            carried.setdefault(link, []).append(message)
    for link, those in carried.items():
        if wiring.rate[link] == np.inf:
            continue
        window_s = departed_s[those].max() - sent_s[those].min()
        room = wiring.rate[link] * (window_s + slack_s[those].max())
        assert size_bytes[those].sum() <= room * (1 + ROUNDING), "a link carries more than it can"
        if not wiring.fair:
            turns = sorted(zip(sent_s[those].tolist(), departed_s[those].tolist(), strict=True))
            for (_, end_s), (begin_s, _) in pairwise(turns):
                assert begin_s >= end_s - slack_s[those].max(), "two messages at once on a link"


def rules_of(simulation):
    """What `check_timeline` may ask of a simulation's timelines."""
    protocol = simulation.protocol
    ahead = getattr(protocol, "overlap", False) or getattr(protocol, "depth", 1) > 1
    ahead = ahead or protocol.name == "sequence"
    push_s, network = 0.0, simulation.cluster.network
    on_network = protocol.name == "parameter_server" and network and network.server
    if on_network and simulation.spans:
        way = [*(level for level in network.levels if not level.inside), network.server]
        rates = [rate for x in way for rate in (x.away_bytes_per_s, x.towards_bytes_per_s)]
        own = [group.up_bytes_per_s or 0.0 for group in simulation.cluster.workers]
        push_s = simulation.least_bytes / protocol.shards / max([*rates, *own])
    interval = protocol.interval if protocol.name == "rollouts" else 1
    return {"in_one_place": not ahead, "waits": not ahead, "push_s": push_s, "interval": interval}


@pytest.fixture(autouse=True)
def _checked(request, monkeypatch):
    """Check what is simulated in a test, but for one that measures speed."""
    module = sys.modules.get("harness.simulator.simulation")
    if module is None or "benchmarks" in request.path.parts:
        return
    from harness.simulator import collectives
    from harness.simulator.protocols import client_sampling

    simulation, all_reduce = module.Simulation, collectives.AllReduce
    run, change = simulation._run, simulation.change
    messages, travel = all_reduce._run, client_sampling.travel

    def checked_run(self, limits, most):
        for part in run(self, limits, most):
            if type(self.protocol).__module__.startswith("harness."):
                check_timeline(part, **rules_of(self))
                if self.version == limits.version and len(part.folds):
                    assert part.folds.time_s[-1] == self.now_s, "a fold is not its round's end"
            yield part

    def checked_change(self, workload):
        change(self, workload)
        known = getattr(self, "least_bytes", np.inf)
        self.least_bytes = min(known, workload.parameter_bytes)

    def checked_messages(self, ready, size_bytes, add_s_per_byte):
        ends_s, found = messages(self, ready, size_bytes, add_s_per_byte)
        names = "source", "target", "size_bytes", "sent_s", "departed_s"
        check_messages(self.wiring, *(found[name] for name in names))
        return ends_s, found

    def checked_travel(costs, traffic, heap, tasks, sizes, prepare_s):
        travel(costs, traffic, heap, tasks, sizes, prepare_s)
        if traffic.wiring.fair:
            who, there = tasks["worker"], np.full(len(tasks), traffic.wiring.workers)
            columns = (
                np.repeat(sizes, len(who)),
                np.concatenate([tasks["read_at_s"], tasks["join_s"]]),
                np.concatenate([tasks["start_s"], tasks["pushed_s"]]),
            )
            ends = np.concatenate([there, who]), np.concatenate([who, there])
            check_messages(traffic.wiring, *ends, *columns)

    monkeypatch.setattr(simulation, "_run", checked_run)
    monkeypatch.setattr(simulation, "change", checked_change)
    monkeypatch.setattr(all_reduce, "_run", checked_messages)
    monkeypatch.setattr(client_sampling, "travel", checked_travel)
