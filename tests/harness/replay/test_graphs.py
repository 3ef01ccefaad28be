"""Recorded work, with a stand-in for CUDA that notes what it is asked for, in its order."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from harness.replay import block_replay
from harness.replay.block_replay import capture_graph


class Cuda:
    """Streams and graphs in name only."""

    def __init__(self):
        self.said, self.now = [], "present"

    def work(self):
        self.said.append(f"work on {self.now}")

    @contextmanager
    def on(self, where):
        before, self.now = self.now, where
        yield
        self.now = before

    def stream(self, stream):
        return self.on(stream.name)

    def graph(self, graph):
        return self.on("a graph")

    def Stream(self):  # noqa: N802 (torch's name)
        return Stream(self, "side")

    def current_stream(self):
        return Stream(self, self.now)

    def CUDAGraph(self):  # noqa: N802 (torch's name)
        return Graph(self)


class Stream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other):
        self.cuda.said.append(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, cuda):
        self.cuda = cuda

    def replay(self):
        self.cuda.said.append("played")


@pytest.fixture
def cuda(monkeypatch):
    stand_in = Cuda()
    for name in ("Stream", "stream", "current_stream", "CUDAGraph", "graph"):
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(block_replay.torch.cuda, name, getattr(stand_in, name))
    return stand_in


def test_work_is_executed_on_a_stream_of_its_own_then_recorded_and_played_from_then_on(cuda):
    work = capture_graph(cuda.work, torch.device("cuda", 0))
    work()
    assert cuda.said == ["side waits for present", "work on side", "present waits for side"]
    cuda.said.clear()
    work()
    assert cuda.said == ["work on a graph", "played"]
    cuda.said.clear()
    work()
    assert cuda.said == ["played"]


def test_on_a_processor_work_is_executed(cuda):
    work = capture_graph(cuda.work, torch.device("cpu"))
    work()
    work()
    assert cuda.said == ["work on present", "work on present"]
