"""Share of a shaper's limit that an all-reduce over many TCP streams gets: a measurement.

    sudo python -m reproductions.shaped_ring --limit 50e6 [--streams 16] [--rounds 4]

Four processes, each in a network namespace of its own, sum tensors round a ring by the kernel's
real TCP. Every interface is limited like those of docs/wan.md: Linux's token bucket (``tbf`` of
``tc``) with 32 KiB of burst and a queue of 50 ms, frames of 9,001 bytes. The processes send as
NCCL's socket transport does: chunks in slices of 1 MiB, at most four under way per channel; every
slice in pieces of at least 64 KiB over the channel's streams in turn; each of two helper threads
works on one group of pieces until all of them are done. NCCL opens 16 streams per channel on this
kind of machine. Only sizes and order of the bytes matter: their content is zero, and nothing is
added up.

The namespaces need root and `ip`, `tc`, `unshare` and `nsenter`; nothing outside of them changes.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count

from harness.base.errors import EXIT_DONE, UserError
from harness.cli import Parser, exit_code

RANKS = 4
SLICE_BYTES, PIECE_BYTES = 1 << 20, 1 << 16
UNDER_WAY = 4
"""Slices of a channel that a rank may have under way, in either direction."""
THREADS = 2
MTU, BURST_BYTES, QUEUE_MS = 9001, 32768, 50
NETWORK, PORT, INTERFACE = "10.77.0", 4000, "eth0"
BITS = 8.0

VOCABULARY, WIDTH, HIDDEN, LAYERS, FLOAT_BYTES = 50257, 256, 768, 6, 4
_LAYER = [WIDTH * WIDTH] * 4 + [WIDTH * HIDDEN] * 3 + [WIDTH] * 2
_TABLE = VOCABULARY * WIDTH
TENSORS = [FLOAT_BYTES * n for n in (_TABLE, *_LAYER * LAYERS, WIDTH, _TABLE)]
"""Bytes of each tensor of the model of docs/wan.md, which are summed one after the other."""

Steps = list[tuple[int, int]]
"""Bytes of the slices that a rank receives and sends, step by step; 0 for none."""


def plan_steps(size: int, channels: int) -> list[Steps]:
    """The steps of each channel to sum a tensor: every rank has the same.

    Args:
        size: bytes of the tensor.
        channels: number of channels; each sums an equal part.
    """
    parts = [size - (channels - 1) * (size // channels), *[size // channels] * (channels - 1)]
    return [list(_plan_part(part)) for part in parts]


def _plan_part(part: int) -> Iterator[tuple[int, int]]:
    rounds = 2 * (RANKS - 1)
    while part > 0:
        chunk = min(2 * SLICE_BYTES, -(-part // RANKS))
        part -= chunk * RANKS
        half = -(-chunk // 2)
        slices = [each for each in (half, chunk - half) if each]
        for step in range(rounds + 1):
            yield from ((s * (step > 0), s * (step < rounds)) for s in slices)


class Slice:
    """A slice on its way: the number of its pieces that are not done."""

    def __init__(self) -> None:
        self.pieces = 0


class Thread:
    """A helper thread's streams in one direction.

    It works on pieces in groups, one piece for each stream, and on one group at a time.

    Args:
        selector: told which sockets are worked on.
        streams: the sockets.
        event: ``EVENT_WRITE`` to send, ``EVENT_READ`` to receive.
    """

    def __init__(
        self, selector: selectors.BaseSelector, streams: Sequence[socket.socket], event: int
    ) -> None:
        self._selector, self._streams, self._event = selector, streams, event
        self._numbers = count()
        self._groups: dict[int, dict[socket.socket, tuple[int, Slice]]] = {}
        self._buffer = memoryview(bytearray(16 * PIECE_BYTES))

    def post(self, size: int, owner: Slice) -> None:
        """Append a piece."""
        group, place = divmod(next(self._numbers), len(self._streams))
        stream = self._streams[place]
        self._groups.setdefault(group, {})[stream] = size, owner
        if group == self._first:
            self._selector.register(stream, self._event, self)

    @property
    def _first(self) -> int:
        return next(iter(self._groups))

    def move(self, stream: socket.socket) -> None:
        """Send or receive what the kernel takes or has."""
        group = self._groups[self._first]
        left, owner = group[stream]
        sends = self._event == selectors.EVENT_WRITE
        try:
            moved = stream.send(self._buffer[:left]) if sends else self._receive(stream, left)
        except BlockingIOError:
            return
        if moved < left:
            group[stream] = left - moved, owner
            return
        del group[stream]
        self._selector.unregister(stream)
        owner.pieces -= 1
        if not group:
            del self._groups[self._first]
            for each in self._groups[self._first] if self._groups else ():
                self._selector.register(each, self._event, self)

    def _receive(self, stream: socket.socket, most: int) -> int:
        moved = stream.recv_into(self._buffer, most)
        if moved == 0:
            raise UserError("shaped_ring: a process of the ring has ended early")
        return moved


class Channel:
    """One ring of a rank: its streams to the next rank and from the previous one."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        after: Sequence[socket.socket],
        before: Sequence[socket.socket],
    ) -> None:
        self._streams = len(after)
        threads = range(min(THREADS, len(after)))
        each = len(threads)
        self._out = [Thread(selector, after[i::each], selectors.EVENT_WRITE) for i in threads]
        self._in = [Thread(selector, before[i::each], selectors.EVENT_READ) for i in threads]
        self._next = {True: 0, False: 0}
        self.begin([])

    def begin(self, steps: Steps) -> None:
        """Start with the steps of a tensor."""
        self._steps, self._at = steps, 0
        self._awaited = [received for received, _ in steps if received]
        self._posted = 0
        self._receiving: list[Slice] = []
        self._sending: list[Slice] = []

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self._at == len(self._steps) and not self._sending

    def advance(self) -> None:
        """Take every step that can be taken now, and wait for further slices."""
        self._sending = [each for each in self._sending if each.pieces]
        self._wait_for_more()
        while self._at < len(self._steps):
            received, sent = self._steps[self._at]
            if (received and self._receiving[0].pieces) or (sent and self._is_full):
                return
            if received:
                self._receiving.pop(0)
                self._wait_for_more()
            if sent:
                self._sending.append(self._post(sent, sends=True))
            self._at += 1

    @property
    def _is_full(self) -> bool:
        return len(self._sending) >= UNDER_WAY

    def _wait_for_more(self) -> None:
        while self._posted < len(self._awaited) and len(self._receiving) < UNDER_WAY:
            self._receiving.append(self._post(self._awaited[self._posted], sends=False))
            self._posted += 1

    def _post(self, size: int, sends: bool) -> Slice:
        piece, posted = max(PIECE_BYTES, -(-size // self._streams)), Slice()
        threads = self._out if sends else self._in
        while size > 0:
            posted.pieces += 1
            threads[self._next[sends] % len(threads)].post(min(piece, size), posted)
            self._next[sends] = (self._next[sends] + 1) % self._streams
            size -= piece
        return posted


def run_rank(
    addresses: Sequence[str], rank: int, streams: int, channels: int, sizes: Sequence[int]
) -> Iterator[float]:
    """Sum tensors again and again as one rank; yields the seconds of each time.

    Args:
        addresses: of the ranks.
        rank: this one.
        streams: of a channel.
        channels: number of channels.
        sizes: bytes of the tensors.
    """
    selector = selectors.DefaultSelector()
    after, before = _connect(addresses, rank, streams * channels)
    cut = [slice(c * streams, (c + 1) * streams) for c in range(channels)]
    rings = [Channel(selector, after[part], before[part]) for part in cut]
    while True:
        begun_s = time.perf_counter()
        for size in sizes:
            for ring, steps in zip(rings, plan_steps(size, channels), strict=True):
                ring.begin(steps)
                ring.advance()
            while not all(ring.is_over for ring in rings):
                for key, _ in selector.select():
                    if key.fileobj in selector.get_map():  # a group before it may have ended
                        key.data.move(key.fileobj)
                for ring in rings:
                    ring.advance()
        yield time.perf_counter() - begun_s


def _connect(
    addresses: Sequence[str], rank: int, streams: int
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Streams to the next rank, and from the previous one in the same order."""
    with _new_socket() as listener:
        listener.bind((addresses[rank], PORT))
        listener.listen(streams)
        after: list[socket.socket] = []
        while len(after) < streams:
            stream = _new_socket()
            try:
                stream.connect((addresses[(rank + 1) % len(addresses)], PORT))
            except ConnectionRefusedError:  # it does not listen yet
                stream.close()
                time.sleep(0.05)
                continue
            stream.sendall(struct.pack("I", len(after)))
            after.append(stream)
        before: dict[int, socket.socket] = {}
        while len(before) < streams:
            stream, _ = listener.accept()
            before[struct.unpack("I", stream.recv(4, socket.MSG_WAITALL))[0]] = stream
    for stream in (*after, *before.values()):
        stream.setblocking(False)
    return after, [before[number] for number in range(streams)]


def _new_socket() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")  # the default of Linux
    return made


def measure(asked: argparse.Namespace) -> tuple[list[float], int]:
    """Seconds of each round of four ranks behind shaped interfaces, and packets lost by rank 0."""
    hold = [subprocess.Popen(["unshare", "-n", "sleep", "infinity"]) for _ in range(RANKS + 1)]
    inside = [["nsenter", "-t", str(each.pid), "-n"] for each in hold]
    try:
        time.sleep(0.5)  # until they are in their namespaces
        _lay_cables(inside, [each.pid for each in hold], asked.limit)
        command = [sys.executable, "-m", "reproductions.shaped_ring", *sys.argv[1:], "--rank"]
        ranks = [
            subprocess.Popen([*inside[rank], *command, str(rank)], stdout=subprocess.PIPE)
            for rank in range(RANKS)
        ]
        told = [each.communicate()[0] for each in ranks]
        if any(each.returncode for each in ranks):
            raise UserError("shaped_ring: a process of the ring has failed, see above")
        shown = subprocess.run(
            [*inside[0], "tc", "-s", "qdisc", "show", "dev", INTERFACE],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return json.loads(told[0]), int(shown.partition("dropped ")[2].partition(",")[0])
    finally:
        for each in hold:
            each.kill()
            each.wait()


def _lay_cables(inside: Sequence[list[str]], pids: Sequence[int], limit: float) -> None:
    """A switch in the last namespace, and from each other one a shaped interface to it."""

    def say(place: int, command: str) -> None:
        subprocess.run([*inside[place], *command.split()], check=True)

    say(RANKS, f"ip link add switch mtu {MTU} type bridge")
    say(RANKS, "ip link set switch up")
    for rank in range(RANKS):
        ends = f"port{rank} mtu {MTU} type veth peer name {INTERFACE} mtu {MTU}"
        say(RANKS, f"ip link add {ends} netns {pids[rank]}")
        say(RANKS, f"ip link set port{rank} master switch up")
        say(rank, f"ip addr add {NETWORK}.{rank + 1}/24 dev {INTERFACE}")
        say(rank, f"ip link set {INTERFACE} up")
        shaper = f"tbf rate {limit:.0f}bit burst {BURST_BYTES} latency {QUEUE_MS}ms"
        say(rank, f"tc qdisc add dev {INTERFACE} root {shaper}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the seconds of each round, its share of the limit and losses; see the module."""
    parser = Parser(prog="python -m reproductions.shaped_ring", description=__doc__)
    parser.add_argument("--limit", type=float, required=True, help="bits per second of a shaper")
    parser.add_argument("--streams", type=int, default=16, help="TCP streams of a channel")
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return exit_code(lambda: _run(parser.parse_args(arguments)))


def _run(asked: argparse.Namespace) -> int:
    if asked.rank is not None:
        addresses = [f"{NETWORK}.{rank + 1}" for rank in range(RANKS)]
        ring = run_rank(addresses, asked.rank, asked.streams, asked.channels, TENSORS)
        print(json.dumps([next(ring) for _ in range(asked.rounds)]), flush=True)
        time.sleep(1.0)  # the last rank may still read
        return EXIT_DONE
    try:
        taken_s, lost = measure(asked)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"shaped_ring: {error}; needed: root, ip, tc, unshare, nsenter") from None
    sent_bits = BITS * 2 * (RANKS - 1) / RANKS * sum(TENSORS)
    for taken in taken_s:
        print(f"{taken:8.3f} s, {sent_bits / taken / asked.limit:.3f} of the limit")
    print(f"packets dropped by a shaper: {lost / asked.rounds:.0f} a round")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
