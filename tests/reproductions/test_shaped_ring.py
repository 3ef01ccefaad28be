"""The ring of TCP streams that a shaper is measured with, on the loopback interface."""

from __future__ import annotations

import socket
import threading

import pytest

from reproductions import shaped_ring
from reproductions.shaped_ring import RANKS, TENSORS, main, plan_steps, run_rank

MIB = 1 << 20


@pytest.mark.parametrize("size", [1024, 262144, 9 * MIB, 51463168])
def test_every_rank_sends_a_rings_bytes(size):
    steps = [step for channel in plan_steps(size, 2) for step in channel]
    sent, received = sum(s for _, s in steps), sum(r for r, _ in steps)
    assert sent == received
    # Parts are rounded up to equal ones, one byte each at most.
    assert 0 <= sent - 2 * (RANKS - 1) / RANKS * size < len(steps)
    assert max(max(step) for step in steps) <= MIB


def test_the_tensors_are_the_models():
    assert sum(TENSORS) == 30_846_720 * 4
    assert len(TENSORS) == 57


@pytest.mark.parametrize(("streams", "channels"), [(1, 1), (3, 2), (16, 2)])
def test_four_ranks_finish_their_rounds(streams, channels, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(shaped_ring, "PORT", free.getsockname()[1])
    addresses = [f"127.0.0.{rank + 1}" for rank in range(RANKS)]
    taken_s = {}

    def work(rank):
        ring = run_rank(addresses, rank, streams, channels, [3 * MIB, 1000])
        taken_s[rank] = [next(ring) for _ in range(2)]

    ranks = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert sorted(taken_s) == list(range(RANKS))
    assert all(0 < each < 60 for times in taken_s.values() for each in times)


def test_without_the_tools_it_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert main(["--limit", "50e6"]) == 2
    assert "needed: root, ip, tc, unshare, nsenter" in capsys.readouterr().err
