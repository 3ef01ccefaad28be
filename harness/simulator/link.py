"""Copies over the link between the server and its workers.

Three ways of sharing (see `cluster.Link`). Where every worker has a link of its own, or
copies queue for one link, the end of a copy is known the moment it is asked for. Where
copies under way share the bandwidth equally it depends on those still to come, so it is an
event: a channel counts the service V that each copy under way has received, in seconds on
an idle link; with n copies V grows at rate 1/n, and a copy that joins at V and needs c
seconds is finished when V reaches V + c. Nothing has to be recomputed when others join.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.cluster import Link
from harness.simulator.events import SIZE, Heap, first_s, new_heap, pop, push
from harness.simulator.jit import kernel

__all__ = [
    "DOWN",
    "FAIR",
    "NETWORK",
    "UP",
    "Channels",
    "finish",
    "join",
    "new_channels",
    "occupy",
    "soonest",
]

OWN, FIFO, FAIR, NETWORK = range(4)
"""How copies share the link; the last says that they are messages on a network instead."""
DOWN, UP = 0, 1
_CODES = {"none": OWN, "fifo": FIFO, "fair": FAIR}


CHANNEL = np.dtype([("free_s", np.float64), ("service_s", np.float64), ("updated_s", np.float64)])


class Channels(NamedTuple):
    """The state of the link.

    Attributes:
        sharing: OWN, FIFO or FAIR; NETWORK where there is no such link.
        up: the channel of copies to the server (that of the other direction where the link
            is half duplex).
        channel: [2] of `CHANNEL`: when a FIFO channel is next free; V of a fair one, and
            the instant V was last brought up to date.
        down_flows, up_flows: copies under way on a fair channel, by the V they finish at.
    """

    sharing: int
    up: int
    channel: Any
    down_flows: Heap
    up_flows: Heap


def new_channels(link: Link, workers: int) -> Channels:
    """An idle link."""
    capacity = workers if link.sharing == "fair" else 0
    return Channels(
        sharing=_CODES[link.sharing],
        up=UP if link.duplex == "full" else DOWN,
        channel=np.zeros(2, CHANNEL),
        down_flows=new_heap(capacity),
        up_flows=new_heap(capacity),
    )


@kernel
def occupy(channels: Channels, where: int, now_s: float, copy_s: float) -> float:
    """Start of a copy on a link that is not fair; its end is that plus ``copy_s``."""
    if channels.sharing == OWN:
        return now_s
    channel = channels.channel[where]
    start_s = max(now_s, channel.free_s)
    channel.free_s = start_s + copy_s
    return start_s


@kernel
def flows_on(channels: Channels, where: int) -> Heap:
    """The copies under way on a fair channel."""
    return channels.down_flows if where == DOWN else channels.up_flows


@kernel
def join(channels: Channels, where: int, now_s: float, copy_s: float, kind: int, who: int) -> None:
    """A copy starts on a fair channel; ``kind`` and ``who`` come back when it finishes."""
    flows, channel = flows_on(channels, where), channels.channel[where]
    count = flows.counts[SIZE]
    if count > 0:
        channel.service_s += (now_s - channel.updated_s) / count
    channel.updated_s = now_s
    push(flows, channel.service_s + copy_s, kind, who)


@kernel
def next_finish_s(channels: Channels, where: int) -> float:
    """When the next copy on a fair channel finishes, infinity if there is none."""
    flows, channel = flows_on(channels, where), channels.channel[where]
    count = flows.counts[SIZE]
    if count == 0:
        return np.inf
    return channel.updated_s + max(first_s(flows) - channel.service_s, 0.0) * count


@kernel
def soonest(channels: Channels) -> tuple[float, int]:
    """When and on which channel the next copy of a fair link finishes (infinity if none)."""
    if channels.sharing != FAIR:
        return np.inf, DOWN
    down_s, up_s = next_finish_s(channels, DOWN), next_finish_s(channels, UP)
    return (down_s, DOWN) if down_s <= up_s else (up_s, UP)


@kernel
def finish(channels: Channels, where: int, now_s: float) -> tuple[int, int]:
    """Take the finished copy off a fair channel: its kind and who."""
    service_s, kind, who = pop(flows_on(channels, where))
    channels.channel[where].service_s = service_s
    channels.channel[where].updated_s = now_s
    return kind, who
