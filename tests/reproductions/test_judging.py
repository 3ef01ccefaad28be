"""Judging reads finished runs and computes nothing that a run could."""

from __future__ import annotations

from typing import Any

import pytest

from harness.judge.builders import Maker
from harness.networks.feedforward import Dnn
from harness.simulator import Simulation
from harness.simulator.collectives import AllReduce
from harness.store import Store
from reproductions.paper import Paper
from tests.reproductions.book import Book, made, makers

WORK = ((Store, "begin"), (Simulation, "advance"), (AllReduce, "messages"), (Dnn, "logits"))
"""What no run can do without: a place in the store, simulated time, messages, a network."""


def refused(*arguments: object, **choices: object) -> None:
    raise AssertionError("a run was executed while judging")


@pytest.mark.parametrize(
    ("paper", "maker"), [pytest.param(*each, id=each[1].id) for each in makers()]
)
def test_exhibits_and_claims_are_made_while_no_run_can_be_executed(
    paper: Paper, maker: Maker[Any, Any], book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {name: book.group(name) for name in maker.needs}
    for owner, name in WORK:
        monkeypatch.setattr(owner, name, refused)
    assert made(maker, paper, runs).id == maker.id
