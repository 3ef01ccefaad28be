import numpy as np
import pytest

from data_synth.corpus import Corpus
from data_synth.validate import Effort, draw_frames, validate
from harness.base.seeds import stream
from tests.stand_in import utterances

EFFORT = Effort(80, 6000, 1000, units=32, layers=2)


def scattered(rule):
    """A corpus of two targets, 9,000 frames in the plane, told apart by ``rule``."""
    rng = stream(0, "plane")
    features = rng.normal(size=(9000, 2)).astype(np.float32)
    splits = np.repeat(["train", "dev", "clean"], 30)
    table = utterances(splits, 100, "w")
    targets = rule(features).astype(np.int32)
    return Corpus("plane", features, targets, table, {"w": (0, 1)}, context=1, tests=("clean",))


def test_depth_pays_where_classes_are_not_linear():
    found = validate(scattered(lambda x: x[:, 0] * x[:, 1] > 0), EFFORT, progress=lambda _: None)
    assert found.linear > 0.35
    assert found.deep < 0.1
    assert found.depth_pays > 3
    assert found.tests["clean"] == pytest.approx(found.deep, abs=0.04)
    assert 1.0 < found.possible < 1.5
    assert found.chance == pytest.approx(0.5, abs=0.05)


def test_depth_pays_nothing_where_a_plane_parts_the_classes():
    found = validate(scattered(lambda x: x[:, 0] > 0), EFFORT, progress=lambda _: None)
    assert found.linear < 0.1
    assert abs(found.deep - found.linear) < 0.1


def test_the_same_seed_gives_the_same_errors():
    corpus, brief = scattered(lambda x: x[:, 0] > x[:, 1] ** 2), Effort(2, 2000, 500, 8, 1)
    found = [validate(corpus, brief, seed, progress=lambda _: None) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_frames_are_drawn_from_whole_utterances_up_to_a_limit():
    corpus = scattered(lambda x: x[:, 0] > 0)
    rows, targets = draw_frames(corpus, corpus.split("train"), 250, 0)
    assert len(rows) == len(targets) == 250
    assert len(set(rows[:, 1] // 100)) == 3
    assert (corpus.targets[rows[:, 1]] == targets).all()
