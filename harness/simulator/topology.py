"""How the machines are joined: a tree of links, and the way a message takes through it.

One description covers the usual machines. Level 0 joins every worker to its first switch,
level 1 a group of workers to the next one, and so on; above the last level is a switch that
joins everything:

- a switched cluster: one level;
- one server's PCI Express tree: cards, then the switches they share;
- nodes × GPUs: the links inside a node, then one network port a node;
- a wide area: the same, with sites for nodes and seconds' worth of latency;
- a star with parameter-server shards: one level, and a link of each shard's own;
- a bus or a blocking switch: a core whose capacity all traffic shares;
- nodes × GPUs with a card a GPU: as many links a node as it has cards, beside those inside;
- rails: cards with one number in their nodes share a switch, and the core joins the rails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from harness.base.settings import Spec, setting
from harness.simulator.jit import kernel
from harness.simulator.quantities import duration, rate

__all__ = ["Level", "Network", "Wiring", "route", "wire"]

NO_LINK = -1


@dataclass(frozen=True)
class Level(Spec):
    """The links between one level of the tree and the next.

    Attributes:
        workers_per_link: how many workers, in order of their numbers, are behind each link.
        bandwidth_bytes_per_s: of each link; none is infinitely fast.
        latency_s: what passing this level, up and down together, adds to a message.
        duplex: ``full``, both directions at full rate at once; ``half``, they share it.
        name: for tables and figures.
        down_bandwidth_bytes_per_s: of each link towards the workers, where it is another than
            ``bandwidth_bytes_per_s``, which then is the one away from them.
        links: how many links those workers have in the place of one; they are divided among
            them in order, e.g. 8 for 8 workers with a network card each.
        inside: whether only messages pass this level that stay below the next one: what goes
            further has links of its own beside these.
    """

    workers_per_link: int = setting(1, at_least=1, at_most=10_000_000)
    bandwidth_bytes_per_s: float | None = rate()
    latency_s: float = duration()
    duplex: str = setting("full", one_of=("full", "half"))
    name: str = setting("")
    down_bandwidth_bytes_per_s: float | None = rate(added=True)
    links: int = setting(1, at_least=1, at_most=10_000_000, added=True)
    inside: bool = setting(False, added=True)

    @property
    def away_bytes_per_s(self) -> float:
        """Of each link away from the workers, infinite without a limit."""
        return np.inf if self.bandwidth_bytes_per_s is None else self.bandwidth_bytes_per_s

    @property
    def towards_bytes_per_s(self) -> float:
        """Of each link towards the workers."""
        return self.down_bandwidth_bytes_per_s or self.away_bytes_per_s

    def trouble(self) -> tuple[str, str] | None:
        """Two rates need two directions; no link is without a worker."""
        if self.duplex == "half" and self.down_bandwidth_bytes_per_s is not None:
            return "down_bandwidth_bytes_per_s", "not allowed with duplex 'half'; allowed: 'full'"
        if self.workers_per_link % self.links:
            allowed = f"divisors of workers_per_link, {self.workers_per_link}"
            return "links", f"{self.links} is not allowed; allowed: {allowed}"
        return None


@dataclass(frozen=True)
class Network(Spec):
    """The links between workers, level by level, and those of a server.

    Attributes:
        levels: from the workers upwards.
        sharing: ``fair``, messages under way on a link have max-min fair parts of it;
            ``fifo``, a link carries one message at a time, in the order they were sent.
        sending: ``rendezvous``, a message starts when its receiver waits for it too, as MPI
            has it with long ones; ``buffered``, as soon as its sender has it ready.
        core_bandwidth_bytes_per_s: capacity of what joins the highest links; none is
            infinitely fast.
        server: the link of each shard of a server, which is joined to the core; with it, the
            parameter server's copies are messages on this network, and not copies on ``link``.
        rails: whether links of the highest level that have one number in their groups meet in a
            switch of their own, so that only messages from one such rail to another pass the core.
    """

    levels: tuple[Level, ...] = setting(())
    sharing: str = setting("fair", one_of=("fair", "fifo"))
    sending: str = setting("rendezvous", one_of=("rendezvous", "buffered"))
    core_bandwidth_bytes_per_s: float | None = rate()
    server: Level | None = setting(None)  # noqa: RUF009
    rails: bool = setting(False, added=True)

    def trouble(self) -> tuple[str, str] | None:
        """Each level's links hold whole links of the level below; the highest leads outside."""
        if self.levels and self.levels[-1].inside:
            key = f"levels[{len(self.levels) - 1}].inside"
            return key, "not allowed at the highest level; allowed: below it"
        if self.rails and (not self.levels or self.core_bandwidth_bytes_per_s is None):
            return "rails", "true is not allowed without levels and core_bandwidth_bytes_per_s"
        for place, (below, above) in enumerate(pairwise(self.levels), start=1):
            if above.workers_per_link % below.workers_per_link or above == below:
                allowed = f"multiples of {below.workers_per_link}, as the level below has"
                key = f"levels[{place}].workers_per_link"
                return key, f"{above.workers_per_link} is not allowed; allowed: {allowed}"
        return None

    @property
    def nearby(self) -> int:
        """Workers behind one link of the lowest level at which any share one; 1 if none do."""
        shared = (x.workers_per_link for x in self.levels if x.workers_per_link > 1)
        return next(shared, 1)


class Wiring(NamedTuple):
    """A network for so many workers and shards, ready for a kernel.

    Links are numbered; a full-duplex link is two of them. Endpoints are the workers, then
    the shards.

    Attributes:
        workers: how many.
        fair: whether links are shared, or carry one message at a time.
        rendezvous: whether a message waits for its receiver.
        group: [L] workers behind each link of a level.
        up, down: [L + 1] number of the first link of a level in either direction; the last
            entry is that of the shards.
        latency_s: [L + 1] likewise.
        core: number of the core's link, or `NO_LINK`.
        rate: [E] bytes a second of each link.
        links: [L] in the place of one at each level; empty where that is one everywhere.
        inside: [L] whether only what stays below the next level passes; empty where none is so.
        rails: whether what stays on its rail does not pass the core.
    """

    workers: int
    fair: bool
    rendezvous: bool
    group: Any
    up: Any
    down: Any
    latency_s: Any
    core: int
    rate: Any
    links: Any
    inside: Any
    rails: bool

    @property
    def longest(self) -> int:
        """Links on the longest way."""
        return 2 * len(self.group) + 2

    @property
    def full_duplex(self) -> bool:
        """Whether between workers no two directions share a link, nor all of them a core."""
        return self.core == NO_LINK and bool((self.up != self.down)[:-1].all())


def wire(network: Network, workers: int, shards: int = 0, own: Any = None) -> Wiring:
    """Number the links that ``workers`` workers and ``shards`` shards need.

    Args:
        network: how they are joined.
        workers: how many.
        shards: likewise.
        own: [2, N] bytes a second of the workers' own links, up and down, in place of those of
            the lowest level; nan where that holds.
    """
    levels = [*network.levels, network.server or Level()]
    below = network.levels
    counts = [-(-workers // level.workers_per_link) * level.links for level in below] + [shards]
    up, down, rates = _numbered(levels, counts)
    if own is not None:
        for first, theirs in ((up[0], own[0]), (down[0], own[1])):
            usual = rates[first : first + workers]
            rates[first : first + workers] = np.where(np.isfinite(theirs), theirs, usual)
    core = NO_LINK
    if network.core_bandwidth_bytes_per_s is not None:
        core = len(rates)
        rates = np.append(rates, network.core_bandwidth_bytes_per_s)
    return Wiring(
        workers=workers,
        fair=network.sharing == "fair",
        rendezvous=network.sending == "rendezvous",
        group=np.array([level.workers_per_link for level in network.levels], np.int64),
        up=np.array(up, np.int64),
        down=np.array(down, np.int64),
        latency_s=np.array([level.latency_s for level in levels]),
        core=core,
        rate=rates,
        links=np.array([x.links for x in below if any(y.links > 1 for y in below)], np.int64),
        inside=np.array([x.inside for x in below if any(y.inside for y in below)], np.bool_),
        rails=network.rails,
    )


def _numbered(levels: Sequence[Level], counts: Sequence[int]) -> tuple[list[int], list[int], Any]:
    """First link of each level upwards and downwards, and [E] every link's rate."""
    up: list[int] = []
    down: list[int] = []
    runs: list[tuple[float, int]] = []
    links = 0
    rates = [(level.away_bytes_per_s, level.towards_bytes_per_s) for level in levels]
    rates[-1] = rates[-1][1], rates[-1][0]  # away from a server is towards the workers
    for level, count, (away, towards) in zip(levels, counts, rates, strict=True):
        back = count if level.duplex == "full" else 0
        up.append(links)
        down.append(links + count if back else links)
        runs += [(away, count), (towards, back)]
        links += count + back
    speeds, counted = zip(*runs, strict=True)
    return up, down, np.repeat(np.array(speeds, np.float64), counted)


@kernel
def route(wiring: Wiring, source: int, target: int, way: Any) -> float:
    """Write the numbers of the links from one endpoint to another into ``way``.

    Args:
        wiring: the network.
        source: a worker, or ``workers`` + a shard.
        target: another.
        way: [P] filled from its start, `NO_LINK` after the last.

    Returns:
        The latency in seconds.
    """
    place, latency_s, levels = 0, 0.0, len(wiring.group)
    from_server, to_server = source >= wiring.workers, target >= wiring.workers
    outside = from_server or to_server
    top = True
    for level in range(levels):
        a, b = source // wiring.group[level], target // wiring.group[level]
        if not outside and a == b:
            top = False
            break
        if leaves(wiring, level, source, target):
            continue
        latency_s += wiring.latency_s[level]
        if len(wiring.links) > 0:
            a, b = link_of(wiring, level, source), link_of(wiring, level, target)
        if not from_server:
            way[place] = wiring.up[level] + a
            place += 1
        if not to_server:
            way[place] = wiring.down[level] + b
            place += 1
    if from_server:
        way[place] = wiring.up[levels] + source - wiring.workers
        place += 1
    if to_server:
        way[place] = wiring.down[levels] + target - wiring.workers
        place += 1
    if outside:
        latency_s += wiring.latency_s[levels]
    if top and wiring.core != NO_LINK and (outside or not one_rail(wiring, source, target)):
        way[place] = wiring.core
        place += 1
    way[place:] = NO_LINK
    return latency_s


@kernel
def link_of(wiring: Wiring, level: int, worker: int) -> int:
    """The number, at its level, of the link that a worker uses."""
    group, links = wiring.group[level], wiring.links[level]
    return worker // group * links + worker % group * links // group


@kernel
def leaves(wiring: Wiring, level: int, source: int, target: int) -> bool:
    """Whether a message goes past a level that only what stays below the next one passes."""
    if len(wiring.inside) == 0 or not wiring.inside[level]:
        return False
    above = wiring.group[level + 1]
    outside = source >= wiring.workers or target >= wiring.workers
    return outside or source // above != target // above


@kernel
def one_rail(wiring: Wiring, source: int, target: int) -> bool:
    """Whether two workers' highest links have one number in their groups."""
    if not wiring.rails:
        return False
    last = len(wiring.group) - 1
    links = wiring.links[last] if len(wiring.links) > 0 else 1
    group = wiring.group[last]
    return source % group * links // group == target % group * links // group
