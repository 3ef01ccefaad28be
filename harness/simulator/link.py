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
from harness.simulator.events import Heap, new_heap, pop, push
from harness.simulator.jit import kernel

__all__ = ["DOWN", "FAIR", "UP", "Channels", "finish", "join", "new_channels", "occupy", "soonest"]

OWN, FIFO, FAIR = range(3)
DOWN, UP = 0, 1
_CODES = {"none": OWN, "fifo": FIFO, "fair": FAIR}


class Channels(NamedTuple):
    """The state of the link; the first index of the arrays is the channel.

    Attributes:
        sharing: OWN, FIFO or FAIR.
        up: the channel of copies to the server (that of the other direction where the link
            is half duplex).
        free_s: [2] when a FIFO channel is next free.
        service_s: [2] V of a fair channel.
        updated_s: [2] the instant V was last brought up to date.
        down_flows, up_flows: copies under way on a fair channel, by the V they finish at.
    """

    sharing: int
    up: int
    free_s: Any
    service_s: Any
    updated_s: Any
    down_flows: Heap
    up_flows: Heap


def new_channels(link: Link, workers: int) -> Channels:
    """An idle link."""
    capacity = workers if link.sharing == "fair" else 0
    return Channels(
        _CODES[link.sharing],
        UP if link.duplex == "full" else DOWN,
        *(np.zeros(2) for _ in range(3)),
        down_flows=new_heap(capacity),
        up_flows=new_heap(capacity),
    )


@kernel
def occupy(channels: Channels, channel: int, now_s: float, copy_s: float) -> float:
    """Start of a copy on a link that is not fair; its end is that plus ``copy_s``."""
    if channels.sharing == OWN:
        return now_s
    start = max(now_s, channels.free_s[channel])
    channels.free_s[channel] = start + copy_s
    return start


@kernel
def flows_of(channels: Channels, channel: int) -> Heap:
    """The copies under way on a fair channel."""
    return channels.down_flows if channel == DOWN else channels.up_flows


@kernel
def join(
    channels: Channels, channel: int, direction: int, now_s: float, copy_s: float, who: int
) -> None:
    """A copy starts on a fair channel."""
    flows = flows_of(channels, channel)
    count = flows.counts[0]
    if count > 0:
        channels.service_s[channel] += (now_s - channels.updated_s[channel]) / count
    channels.updated_s[channel] = now_s
    push(flows, channels.service_s[channel] + copy_s, direction, who)


@kernel
def soonest(channels: Channels) -> tuple[float, int]:
    """When and on which channel the next copy of a fair link finishes (infinity if none)."""
    best, where = np.inf, DOWN
    for channel in range(2):
        flows = flows_of(channels, channel)
        count = flows.counts[0]
        if count > 0:
            missing = max(flows.time_s[0] - channels.service_s[channel], 0.0)
            end = channels.updated_s[channel] + missing * count
            if end < best:
                best, where = end, channel
    return best, where


@kernel
def finish(channels: Channels, channel: int, now_s: float) -> tuple[int, int]:
    """Take the finished copy off a fair channel: (direction, who)."""
    service, direction, who = pop(flows_of(channels, channel))
    channels.service_s[channel] = service
    channels.updated_s[channel] = now_s
    return direction, who
