from pathlib import Path

import numpy as np
import pytest

from harness.experiment.run import Runner
from harness.simulator.cluster import load_cluster
from harness.store import Store
from reproductions.paper2_ng_averaging.checks import AllReduceConfig

CLUSTERS = Path(__file__).parents[2] / "reproductions" / "clusters"
SIZE = 8.0e6


@pytest.fixture
def messages(tmp_path):
    config = AllReduceConfig(load_cluster(CLUSTERS / "stampede.toml"), 4, "rabenseifner", SIZE)
    return Runner(Store(tmp_path), 1).run({"": config})[""]


def test_every_worker_sends_what_an_all_reduce_needs_at_least(messages):
    """2 (N - 1) / N of the model: Thakur, Rabenseifner and Gropp (2005)."""
    logged = messages.metrics
    sent = np.bincount(logged["source"].astype(int), weights=logged["value"])
    assert sent.tolist() == [2 * 3 / 4 * SIZE] * 4


def test_halves_and_quarters_are_added_and_then_gathered(messages):
    adds = messages.metrics["adds"].astype(bool)
    parts = messages.metrics["value"] / SIZE
    assert sorted(parts[adds].tolist()) == sorted(parts[~adds].tolist()) == [0.25] * 4 + [0.5] * 4
    assert messages.metrics["time_s"][~adds].min() >= messages.metrics["arrived_s"][adds].max()


def test_a_message_arrives_after_it_was_sent(messages):
    assert (messages.metrics["arrived_s"] > messages.metrics["time_s"]).all()
    assert messages.summary["last_arrival_s"] == messages.metrics["arrived_s"].max()
