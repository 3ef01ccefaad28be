"""A server's state as messages."""

from __future__ import annotations

import torch

from harness.algorithms.stale import ServerDescent
from harness.processes.messages import FrameHeader, Kind, bodies, take_state
from harness.replay.fold_replay import vectors_of


def test_every_part_of_a_servers_state_lands_in_one_of_its_size_and_type():
    ours, theirs = (ServerDescent().start(torch.arange(5.0)) for _ in range(2))
    for vector in vectors_of(theirs).values():
        vector.add_(3.0)
    body_of = bodies(ours)
    for place, vector in enumerate(vectors_of(theirs).values()):
        header = FrameHeader(Kind.STATE, place, version=7)
        body = body_of(header)
        assert (body.shape, body.dtype) == (vector.shape, vector.dtype)
        take_state(ours, header, body.copy_(vector))
    assert ours.version == 7
    for name, vector in vectors_of(theirs).items():
        assert torch.equal(vectors_of(ours)[name], vector), name
