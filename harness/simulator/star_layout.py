"""Which links between workers and one server can hold messages up, and which of those are alike.

Links with one own rate of their workers and one rate of their own are of one kind: with equally
many messages they give each the same rate. The kinds are as many as the groups of a cluster file
that have links of their own, for either direction if those differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.simulator.topology import Level, Network

__all__ = ["Layout", "layout_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DOWN, UP = 0, 1


class Layout(NamedTuple):
    """What the links between workers and a server come to.

    Attributes:
        both: whether the directions share the server's link, and so one channel.
        rates: [2] bytes a second of the server's link, down and up.
        numbers: [2, N] which link a worker's messages down and up take; where no level lies
            between, one stands for all of a kind.
        kinds: for each channel [G], the kind of each link.
        rooms: for each channel [G], messages that may be on each at once.
        caps: [K, M] what each of so many messages, from one on, gets of a link of a kind, if the
            server's link is free.
    """

    both: bool
    rates: tuple[float, float]
    numbers: Any
    kinds: tuple[Any, ...]
    rooms: tuple[Any, ...]
    caps: Any


def layout_of(
    network: Network, workers: int, depth: int = 1, own: Floats | None = None
) -> Layout | None:
    """The links that can hold a message up; None where they are not one level below the server's.

    Args:
        network: with a server's link.
        workers: how many.
        depth: contributions a worker may have under way. With one, a link behind which there is
            one worker carries one message, in whatever direction.
        own: [2, N] rates of the workers' own links, as `wire` takes them.
    """
    limited = _limited(network, workers, own)
    unlimited = np.full((2, workers), np.inf)
    own_rate, shared_by = unlimited, list[tuple[Level, Floats]]()
    for level, rates in limited:
        if depth == 1 and level.workers_per_link == 1:
            own_rate = np.minimum(own_rate, rates)
        else:
            shared_by.append((level, rates))
    between = [pair for pair in shared_by if _holds_up(*pair, own_rate, depth)]
    last = _last(network)
    if last is None or len(between) > 1:
        return None
    both, *server = last
    level, shared = between[0] if between else (None, unlimited)
    fastest = np.minimum(own_rate, shared).max(axis=1)
    one_way = level is not None and level.duplex == "half" and not both
    if one_way or np.isinf(np.minimum(fastest, server)).any():
        return None
    return _of_kinds(both, (server[0], server[1]), level, own_rate, shared, depth)


def _limited(network: Network, workers: int, own: Floats | None) -> list[tuple[Level, Floats]]:
    """Every level with a limit that messages to the server pass, and its [2, N] rates."""
    found: list[tuple[Level, Floats]] = []
    for place, level in enumerate(network.levels):
        usual = np.broadcast_to(
            np.array([[level.towards_bytes_per_s], [level.away_bytes_per_s]]), (2, workers)
        )
        if place == 0 and own is not None:
            usual = np.where(np.isfinite(own), own, usual[::-1])[::-1]
        each = replace(level, workers_per_link=level.workers_per_link // level.links, links=1)
        if not level.inside and np.isfinite(usual).any():
            found.append((each, usual))
    return found


def _holds_up(level: Level, rates: Floats, own_rate: Floats, depth: int) -> bool:
    """Whether all that can come to a link, from each of its workers one message, is too much."""
    firsts = np.arange(0, rates.shape[1], level.workers_per_link, dtype=np.int64)
    fastest = np.maximum.reduceat(own_rate, firsts, axis=1)
    most = fastest * (level.workers_per_link if depth == 1 else np.inf)
    return bool((rates[:, firsts] < most).any())


def _last(network: Network) -> tuple[bool, float, float] | None:
    """Whether both directions share the last link before the server, and its rate in each.

    A core is such a link if it is no faster than the server's; if it is as fast as both
    directions together it never holds anything up.
    """
    server = network.server or Level()
    down, up = server.towards_bytes_per_s, server.away_bytes_per_s
    core = network.core_bandwidth_bytes_per_s or np.inf
    if server.duplex == "half" or (core <= min(down, up) and core < np.inf):
        rate = min(down, up, core)
        return True, rate, rate
    return (False, down, up) if core >= down + up else None


def _of_kinds(
    both: bool,
    server: tuple[float, float],
    level: Level | None,
    own_rate: Floats,
    shared: Floats,
    depth: int,
) -> Layout | None:
    """Number the links of each channel by their kinds; None where one link is of two."""
    kind, of_kinds = _kinds(own_rate, shared)
    link = np.zeros_like(kind)
    if level is not None:
        link[:] = np.arange(link.shape[1]) // level.workers_per_link
        link[UP] += link[UP, -1] + 1 if both and level.duplex == "full" else 0
    numbers = np.empty_like(kind)
    kinds, rooms = list[Ints](), list[Ints]()
    for channel in [slice(0, 2)] if both else [slice(0, 1), slice(1, 2)]:
        key = kind[channel] * (link.max() + 1) + link[channel]
        alike, firsts, number = np.unique(key, return_index=True, return_inverse=True)
        if level is not None and len(alike) > len(np.unique(link[channel])):
            return None
        numbers[channel] = number.reshape(key.shape)
        kinds.append(kind[channel].reshape(-1)[firsts])
        rooms.append(_room(numbers[channel], len(alike)) * depth)
    most = max(int(room.max()) for room in rooms) if level is not None else 1
    caps = np.minimum(of_kinds[0][:, None], of_kinds[1][:, None] / np.arange(1, most + 1))
    return Layout(both, server, numbers, tuple(kinds), tuple(rooms), caps)


def _kinds(own_rate: Floats, shared: Floats) -> tuple[Ints, tuple[Floats, Floats]]:
    """[2, N] the kind of each worker's way down and up, and [K] of each kind its two rates."""
    own_values, own = np.unique(own_rate, return_inverse=True)
    values, of = np.unique(shared, return_inverse=True)
    both = own.reshape(own_rate.shape) * len(values) + of.reshape(own_rate.shape)
    used, kind = np.unique(both, return_inverse=True)
    rates = own_values[used // len(values)], values[used % len(values)]
    return kind.reshape(own_rate.shape), rates


def _room(numbers: Ints, links: int) -> Ints:
    """[G] workers that have each link of a channel on their way down or up."""
    room = np.bincount(numbers[0], minlength=links)
    if len(numbers) > 1:
        in_both = numbers[0][numbers[0] == numbers[1]]
        room += np.bincount(numbers[1], minlength=links) - np.bincount(in_both, minlength=links)
    return room
