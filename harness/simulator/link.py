"""Copies over the link between the server and its workers.

There are three ways of sharing (see `cluster.Link`). If every worker has a link of its own, or
copies queue for one link, the end of a copy is known when it starts. If concurrent copies share
the bandwidth equally, the end depends on copies that start later, so it is an event: a channel
counts the service V that each present copy has received, in seconds on an idle link. With n
copies V grows at rate 1/n, and a copy that joins at V₀ and needs c seconds finishes when V reaches
V₀ + c. Nothing has to be recomputed when others join.

V never falls, so copies of one size finish in the order in which they joined: those of each
direction wait in a queue. After a change of size, a copy goes before those that take longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.cluster import Link
from harness.simulator.events import WAIT, Queue, append, head_s, kernel, new_queue, take

__all__ = [
    "DOWN",
    "FAIR",
    "NETWORK",
    "OWN",
    "UP",
    "Channels",
    "finish",
    "join",
    "new_channels",
    "occupy",
    "soonest",
]

OWN, FIFO, FAIR, NETWORK = range(4)
"""Ways of sharing the link; with `NETWORK`, copies are messages on a network instead."""
DOWN, UP = 0, 1
_CODES = {"none": OWN, "fifo": FIFO, "fair": FAIR}


CHANNEL = np.dtype([("free_s", np.float64), ("service_s", np.float64), ("updated_s", np.float64)])


class Channels(NamedTuple):
    """The state of the link.

    Attributes:
        sharing: OWN, FIFO or FAIR; NETWORK where there is no such link.
        up: the channel of copies to the server: UP, or DOWN if the link is half duplex.
        channel: [2] of `CHANNEL`: the instant at which a FIFO channel is free; V of a fair one,
            and the instant of V's last update.
        fetches, pushes: copies from and to the server in flight on fair channels, by the V at
            which they finish.
    """

    sharing: int
    up: int
    channel: Any
    fetches: Queue
    pushes: Queue


def new_channels(link: Link, workers: int) -> Channels:
    """An idle link."""
    # Otherwise the end of a copy is known at its start, and nothing waits here.
    capacity = workers if link.sharing == "fair" else 0
    return Channels(
        sharing=_CODES[link.sharing],
        up=UP if link.sharing == "none" or link.duplex == "full" else DOWN,
        channel=np.zeros(2, CHANNEL),
        fetches=new_queue(capacity),
        pushes=new_queue(capacity),
    )


@kernel
def occupy(channels: Channels, way: int, now_s: float, copy_s: float) -> float:
    """Start of a copy ``way`` (DOWN or UP) on a link that is not fair; it lasts ``copy_s``."""
    if channels.sharing == OWN:
        return now_s
    channel = channels.channel[channels.up if way == UP else DOWN]
    start_s = max(now_s, channel.free_s)
    channel.free_s = start_s + copy_s
    return start_s


@kernel
def count_copies(channels: Channels, side: int) -> int:
    """Number of copies on a fair channel."""
    fetches = channels.fetches.counts[WAIT] if side == DOWN else 0
    return fetches + (channels.pushes.counts[WAIT] if side == channels.up else 0)


@kernel
def join(channels: Channels, way: int, now_s: float, copy_s: float, slot: int) -> None:
    """Start a copy DOWN or UP on a fair link; `finish` returns its slot."""
    side = channels.up if way == UP else DOWN
    channel, count = channels.channel[side], count_copies(channels, side)
    # V up to now, with the copies so far; an idle channel's V stays, which saves a reset.
    if count > 0:
        channel.service_s += (now_s - channel.updated_s) / count
    channel.updated_s = now_s
    append(channels.pushes if way == UP else channels.fetches, channel.service_s + copy_s, slot)


@kernel
def finish_s(channels: Channels, side: int, service_s: float) -> float:
    """Instant at which V of a fair channel reaches ``service_s``, unless other copies join."""
    if service_s == np.inf:
        return np.inf
    # Rounding may leave V just beyond the next end, which is then now and not in the past.
    channel, count = channels.channel[side], count_copies(channels, side)
    return channel.updated_s + max(service_s - channel.service_s, 0.0) * count


@kernel
def soonest(channels: Channels) -> tuple[float, int]:
    """End of the next copy on a fair link (infinity if there is none), and DOWN or UP."""
    if channels.sharing != FAIR:
        return np.inf, DOWN
    fetched, pushed = head_s(channels.fetches), head_s(channels.pushes)
    if channels.up == DOWN:  # half duplex: both directions share one channel
        return finish_s(channels, DOWN, min(fetched, pushed)), UP if pushed <= fetched else DOWN
    down_s, up_s = finish_s(channels, DOWN, fetched), finish_s(channels, UP, pushed)
    return (down_s, DOWN) if down_s <= up_s else (up_s, UP)


@kernel
def finish(channels: Channels, way: int, now_s: float) -> int:
    """Remove the finished copy from a fair link; returns the slot given to `join`."""
    # The V at which a copy ends is fixed when it joins, so the order of ends never changes.
    service_s, slot = take(channels.pushes if way == UP else channels.fetches)
    channel = channels.channel[channels.up if way == UP else DOWN]
    channel.service_s = service_s  # exactly, whatever rounding would have made of V
    channel.updated_s = now_s
    return slot
