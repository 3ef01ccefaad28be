"""A simulation that advances segment by segment and can be saved between segments."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError, name_error
from harness.base.registry import entries, find_own, load_plugins
from harness.base.settings import build, dataclasses_below
from harness.simulator.cluster import MOST_WORKERS, Cluster, Workload
from harness.simulator.costs import copy_seconds, costs_of, server_network
from harness.simulator.network import Network
from harness.simulator.protocols.contract import (
    DYING,
    FULL,
    GONE,
    LOST_ROUNDS,
    STUCK,
    Ability,
    HasEpochs,
    Limits,
    TimingProtocol,
)
from harness.simulator.timeline import KINDS, SERVER, Spans, Timeline, concat

Array = NDArray[Any]
_NEVER = 2**62
_ROOM, _MOST_ROOM = 1 << 16, 1 << 20
"""Folds of a part of a segment, at most if its length is known: few parts are quickly concatenated,
but a short segment that might have had many folds would take 0.3 ms longer."""
_LOST_A_WORKER = 100
"""Contributions lost in a row that mean none will be folded are `LOST_ROUNDS` and so many a worker:
of many workers each has then failed a hundred times while no other handed anything in."""
_WORKLOAD = "workload"
_FINGERPRINT = "fingerprint"

LAUNCH_S = 3e-6
"""Seconds from one empty kernel to the next, on any card: see the head of devices.toml."""

LEAST_STEP_S = 10 * LAUNCH_S
"""Least seconds of a minibatch: two layers and a loss launch ten kernels or more."""


def protocol_named(name: str) -> TimingProtocol:
    """A protocol with its default settings.

    Raises:
        UserError: there is no such protocol, or it has a setting without a default.
    """
    return build(load_protocol(name), {}, f"protocol {name}")


def load_protocol(name: str) -> type[TimingProtocol]:
    """The protocol class of a protocol's or a class's name; imports no other built-in one.

    Raises:
        UserError: there is no such protocol.
    """
    if (entry := find_own("protocols", name)) is not None:
        return entry.load()
    load_plugins("protocols")
    for kind in dataclasses_below(TimingProtocol):
        if name in (kind.name, kind.__name__):
            return kind
    raise name_error("protocol", name, load_protocols())


def load_protocols() -> dict[str, type[TimingProtocol]]:
    """All protocols by name: built-in ones, those of installed packages, and imported classes.

    Of equal names the built-in one counts.
    """
    ours = {name: entry for name, entry in entries("protocols").items() if entry.ours}
    protocols: dict[str, type[TimingProtocol]] = {name: ours[name].load() for name in ours}
    load_plugins("protocols")
    for kind in dataclasses_below(TimingProtocol):
        protocols.setdefault(kind.name, kind)
    return protocols


def _check_abilities(cluster: Cluster, protocol: TimingProtocol) -> None:
    """Reject a cluster that needs an undeclared ability, and name protocols that have it."""
    wired = "network.server" if cluster.network else "workers.up_bytes_per_s"
    needs: dict[str, tuple[Ability, bool]] = {
        "faults": ("faults", bool(cluster.faults)),
        wired: ("network", server_network(cluster) is not None),
        "compression": ("compression", cluster.compression is not None),
        "notice_s": ("notice", any(fault.notice_s for fault in cluster.faults)),
        "checkpoints": ("checkpoints", cluster.checkpoints is not None),
        "jobs": ("jobs", bool(cluster.jobs)),
    }
    for key, (ability, needed) in needs.items():
        if needed and ability not in protocol.can:
            able = [name for name, kind in load_protocols().items() if ability in kind.can]
            raise UserError(
                f"{key}: not simulated in protocol {protocol.name!r}, which does not declare"
                f" {ability!r}; allowed: a cluster file without it, or protocol {' or '.join(able)}"
            )


def describe_doubts(
    cluster: Cluster, protocol: TimingProtocol, workload: Workload, workers: int
) -> list[str]:
    """Lines on what a cluster may lack: workers, rates of its devices, costs of its messages."""
    lines = list[str]()
    if workers > cluster.size:
        described = f"{cluster.size} worker{'' if cluster.size == 1 else 's'}"
        times = f"{workers / cluster.size:.3g} times over"
        lines += [f"{cluster.name} describes {described}; {workers} are these {times}"]
    for name, device in cluster.devices.items():
        if workload.moved_bytes and device.memory_bytes_per_s is None:
            doubt = "moving data in memory takes no time on it without memory_bytes_per_s"
            lines += [f"devices.{name}: {doubt}"]
        us, least = 1e6 * device.minibatch_s(workload), ""
        if not (device.launch_s or workload.operators) and 0.0 < us < 1e6 * LEAST_STEP_S:
            least = f"{1e6 * LEAST_STEP_S:.0f} µs or more, and launch_s is 0"
        elif 0.0 < us < 1e6 * LAUNCH_S:
            least = f"{1e6 * LAUNCH_S:.0f} µs for a single kernel"
        if least:
            lines += [f"devices.{name}: a step takes {us:.2g} µs; its launches take {least}"]
    size, costly = workload.parameter_bytes, cluster.network not in (None, Network())
    is_idle = costly and server_network(cluster) is None
    to_server = protocol.way == "link" and "network" in protocol.can
    if size and is_idle and to_server and copy_seconds(cluster, size) + cluster.link.latency_s == 0:
        idle = "[network] is not used by a parameter server without [network.server]"
        lines += [f"{cluster.name}: {idle}: its messages take no time"]
    return lines


class Simulation:
    """Workers of a cluster training under a protocol, in virtual time.

    The same arguments give the same timeline, byte for byte. Two segments give the timeline
    of one segment of their total length (see `concat`).

    Args:
        cluster: the machine.
        protocol: a timing protocol, or the name of one or of its class.
        workload: operations and bytes of a minibatch.
        workers: number of workers; by default all of the cluster.
        seed: seed of all random durations.
        spans: whether timelines record the busy times of workers and server.

    Example:
        Two workers, minibatches of a tenth of a second, and copies that cost nothing:

        >>> from harness.simulator.cluster import Device, WorkerGroup
        >>> cards = {"card": Device(achieved_flops_per_s=1e9)}
        >>> cluster = Cluster("two cards", cards, (WorkerGroup(2, "card"),))
        >>> workload = Workload(minibatch_frames=100, flops_per_frame=1e6, parameter_bytes=0)
        >>> segment = Simulation(cluster, "parameter_server", workload).advance(folds=4)
        >>> segment.folds.time_s.tolist()
        [0.1, 0.1, 0.2, 0.2]
        >>> segment.staleness().tolist()
        [0, 1, 0, 1]
    """

    def __init__(
        self,
        cluster: Cluster,
        protocol: TimingProtocol | str,
        workload: Workload,
        workers: int | None = None,
        seed: int = 0,
        *,
        spans: bool = True,
    ) -> None:
        self.cluster = cluster
        self.protocol = protocol_named(protocol) if isinstance(protocol, str) else protocol
        self.workers = cluster.size if workers is None else workers
        self.seed = seed
        self.spans = spans
        if not 1 <= self.workers <= MOST_WORKERS:
            allowed = f"a whole number from 1 to {MOST_WORKERS}"
            raise UserError(f"workers: {workers} is not allowed; allowed: {allowed}")
        _check_abilities(cluster, self.protocol)
        self._state = self.protocol.start(cluster, self.workers)
        self.change(workload)

    @property
    def _clock(self) -> Any:
        return self._state.clock[0]

    @property
    def now_s(self) -> float:
        """Present virtual time in seconds."""
        return float(self._clock["now_s"])

    @property
    def version(self) -> int:
        """Folds so far."""
        return int(self._clock["version"])

    @property
    def dispatched(self) -> int:
        """Minibatches handed out so far."""
        return int(self._clock["dispatched"])

    @property
    def drained(self) -> bool:
        """Whether every worker is idle and every contribution has been folded."""
        return int(self._clock["busy"]) == 0

    def change(self, workload: Workload) -> None:
        """Change the job of contributions read from now on; those in flight keep their costs."""
        self.workload = workload
        self._costs = costs_of(self.cluster, workload, self.workers, self.seed, self.protocol.way)

    def begin_epoch(self, minibatches: int) -> None:
        """Begin an epoch of ``minibatches`` per worker, instead of the cluster's own length.

        Its first round pays the epoch's cost, and its last round is shorter if needed. It begins
        with the next round; with overlap, with the one that has begun, whose length and cost are
        still those of the last epoch. Only protocols whose workers count their own minibatches
        have epochs.
        """
        cast(HasEpochs, self.protocol).begin_epoch(self._state, minibatches)

    def advance(
        self,
        *,
        folds: int | None = None,
        seconds: float | None = None,
        drain: bool = False,
        handing_out: int | None = None,
    ) -> Timeline:
        """Run one segment and return its timeline.

        Args:
            folds: end with the completion of this many more folds.
            seconds: end after this much more time; exactly one of the two is given.
            drain: with ``folds``, hand out only as many minibatches as that needs; with
                ``seconds``, hand out none after that time. Either way the segment ends when
                all are folded and every worker is idle; the next segment starts them again.
            handing_out: with ``folds``, hand out minibatches for this many folds from now at
                most. A later segment that drains at that fold then finds no others in flight.

        Raises:
            ValueError: not exactly one of ``folds`` and ``seconds``, or a negative one, or
                more contributions in flight than ``folds`` to drain them in, or fewer
                minibatches to hand out than folds to wait for.
            UserError: time does not advance because nothing costs time.
        """
        limits = self._limits(folds, seconds, drain, handing_out)
        room = _ROOM if limits.version == _NEVER else _MOST_ROOM
        return concat([*self._run(limits, room), self._under_way()])

    def parts(
        self, *, folds: int | None = None, seconds: float | None = None
    ) -> Iterator[Timeline]:
        """A segment in parts, each simulated when the iterator reaches it.

        Together (see `concat`) they equal the result of `advance`. The last one has no folds, but
        the contributions in flight.
        """
        yield from self._run(self._limits(folds, seconds, drain=False), _ROOM)
        yield self._under_way()

    def _under_way(self) -> Timeline:
        """The contributions in flight."""
        return Timeline(contributions=self.protocol.in_flight(self._state))

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Pause all workers, e.g. for a rate search; a span of the server has that kind.

        Raises:
            ValueError: a contribution is in flight, or the time is not finite and at least 0.
        """
        if not self.drained:
            raise ValueError("only a drained simulation can pause")
        _check_amount("seconds", seconds)
        start_s = self.now_s
        self._clock["now_s"] = start_s + seconds
        kinds = tuple(dict.fromkeys((*KINDS, kind)))
        span = Spans(
            worker=np.array([SERVER], np.int32),
            kind=np.array([kinds.index(kind)], np.int32),
            start_s=np.array([start_s]),
            end_s=np.array([self.now_s]),
        )
        return Timeline(spans=span, kinds=kinds)

    def asked(self) -> Any:
        """The open questions of a protocol with ``questions``, in a class of the protocol's own.

        A segment ends before the first event that needs an answer; see `answer`.

        Raises:
            ValueError: the protocol has no questions.
        """
        return self.protocol.asked(self._state)

    def answer(self, who: Array, values: Array) -> None:
        """Answer open questions.

        Args:
            who: [U] workers with a question, from `asked`.
            values: [U] an answer for each.

        Raises:
            ValueError: the protocol has no such question.
        """
        self.protocol.answer(self._state, who, values)

    @property
    def restorable(self) -> int | None:
        """Version to which a restart now would revert, or a later one; None if nothing restarts."""
        restarts = self.cluster.checkpoints or any(f.kind == "server" for f in self.cluster.faults)
        return self.protocol.restorable(self._state) if restarts else None

    def state(self) -> dict[str, np.ndarray]:
        """The whole state for `restore`, as named arrays (copies)."""
        arrays = {name: array.copy() for name, array in _leaves(self._state)}
        return {
            **arrays,
            _WORKLOAD: np.array(astuple(self.workload), np.float64),
            _FINGERPRINT: np.array(self._fingerprint(), np.int64),
        }

    @classmethod
    def restore(
        cls,
        cluster: Cluster,
        protocol: TimingProtocol | str,
        state: Mapping[str, np.ndarray],
        workers: int | None = None,
        seed: int = 0,
        *,
        spans: bool = True,
    ) -> Simulation:
        """Restore a simulation from its `state`; it continues as if never interrupted.

        Raises:
            UserError: the state is of another cluster, protocol, number of workers or seed, or
                another version of this program wrote it.
        """
        frames, *costs = (float(value) for value in state[_WORKLOAD])
        workload = Workload(int(frames), *costs)
        simulation = cls(cluster, protocol, workload, workers, seed, spans=spans)
        if int(state[_FINGERPRINT]) != simulation._fingerprint():
            raise UserError(
                "saved simulation: it is of another cluster, protocol, number of workers or seed"
            )
        for name, array in _leaves(simulation._state):
            if name not in state or state[name].shape != array.shape:
                raise UserError("saved simulation: another version of this program wrote it")
            array[...] = state[name]
        return simulation

    def with_state(self, state: Mapping[str, np.ndarray]) -> Simulation:
        """A simulation with these settings and another `state`.

        Raises:
            UserError: the state belongs to other settings.
        """
        settings = (self.workers, self.seed)
        return Simulation.restore(self.cluster, self.protocol, state, *settings, spans=self.spans)

    def _limits(
        self, folds: int | None, seconds: float | None, drain: bool, handing_out: int | None = None
    ) -> Limits:
        """Absolute limits of a segment."""
        if (folds is None) == (seconds is None):
            raise ValueError("exactly one of folds and seconds is needed")
        if folds is not None:
            _check_amount("folds", folds)
            goal = self.version + folds
            promised = self.protocol.promised(self._state)
            if drain and goal < promised:
                raise ValueError(f"{promised - self.version} contributions are in flight")
            if drain:
                # It ends once all are idle, not at a version.
                return Limits(_NEVER, math.inf, goal, math.inf, _NEVER)
            if handing_out is not None and handing_out < folds:
                raise ValueError(f"{handing_out} minibatches cannot make {folds} folds")
            dispatch = _NEVER if handing_out is None else self.version + handing_out
            return Limits(goal, math.inf, dispatch, math.inf, _NEVER)
        assert seconds is not None
        _check_amount("seconds", seconds)
        end_s = self.now_s + seconds
        standing = 1000 + 100 * self.workers  # an instant has a handful of events per worker
        until_s, dispatch_s = (math.inf, end_s) if drain else (end_s, math.inf)
        return Limits(_NEVER, until_s, _NEVER, dispatch_s, standing)

    def _run(self, limits: Limits, most: int) -> Iterator[Timeline]:
        """Parts of the segment, of at most so many folds each."""
        self.protocol.wake(self._state)
        reason = FULL
        # Failures that leave nothing to fold would keep an endless segment running for ever.
        most_lost = LOST_ROUNDS + _LOST_A_WORKER * self.workers if limits.is_endless else math.inf
        lost = 0
        while reason == FULL and lost < most_lost:
            room = min(most, limits.version - self.version)
            reason, part = self.protocol.advance(self._state, self._costs, limits, room, self.spans)
            lost = 0 if len(part.folds) else lost + len(part.lost())
            yield part
        # A number of folds is out of reach; a segment of time just ends without events.
        if reason == GONE and self.version < min(limits.version, limits.dispatch) < _NEVER:
            raise UserError(f"cluster {self.cluster.name!r}: every worker has left permanently")
        if reason == DYING:
            raise self._dying(f"{LOST_ROUNDS} rounds")
        if lost >= most_lost:
            raise self._dying(f"{lost} contributions")
        if reason == STUCK:
            raise UserError(
                f"cluster {self.cluster.name!r}: nothing costs time, so no time passes;"
                " ask for folds instead of seconds"
            )

    def _dying(self, lost: str) -> UserError:
        """The error for contributions that are all lost; it names the most frequent fault."""
        means = {
            place: fault.mean_s
            for place, fault in enumerate(self.cluster.faults)
            if fault.mean_s is not None and fault.kind != "late"
        }
        place = min(means, key=means.__getitem__, default=None)
        key = "faults" if place is None else f"faults[{place}].mean_s: {means[place]:g}"
        return UserError(
            f"cluster {self.cluster.name!r}: {key}: by {self.now_s:g} s the last {lost} were all"
            " lost to failures and none was folded; allowed: failures so rare that some are folded"
        )

    def _fingerprint(self) -> int:
        """63-bit digest of the simulation's fixed settings."""
        machine, rules = self.cluster.to_dict(), self.protocol.to_dict()
        identity = [machine, self.protocol.name, rules, self.workers, self.seed]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).digest()
        # One bit fewer: it is stored in an array of signed numbers.
        return int.from_bytes(digest[:8], "little") >> 1


def _leaves(state: Any, prefix: str = "state") -> Iterator[tuple[str, np.ndarray]]:
    """Views of the plain arrays inside nested named tuples, with dotted names."""
    for name, value in state._asdict().items():
        dotted = f"{prefix}.{name}"
        if isinstance(value, tuple):
            yield from _leaves(value, dotted)
        elif isinstance(value, np.ndarray):
            array = cast(Array, value)
            if array.dtype.names is None:
                yield dotted, array
            for part in array.dtype.names or ():
                yield f"{dotted}.{part}", array[part]


def _check_amount(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: {value!r} is not allowed; allowed: finite and at least 0")
