"""What is promised holds for a machine that loses power."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.seeds import identity
from harness.experiment import loop
from harness.store import Store
from tests.harness.store.crashes import Recording, after_a_crash, lay

CONFIG = {"seed": 0}
STEPS = 4
RESULTS = ("config.json", "run.json", "metrics.parquet", "model.bin")


def train(writer):
    """Count to STEPS with a checkpoint after each; returns the step that was gone on from."""
    found = loop.load(writer.checkpoint)
    began = int(found[0]["step"]) if found else 0
    writer.restore_rows(found[1]["rows"] if found else [])
    for step in range(began, STEPS):
        writer.log("step", step, fold=step, time_s=0.0, epoch=0.0)
        facts = {"rows": writer.rows()}
        loop.save(writer.checkpoint, {"step": np.array(step + 1)}, facts)
        yield step + 1
    writer.attach("model.bin", b"parameters" * 20)
    writer.finish(summary={"steps": STEPS})


def went_through(store):
    """Execute the whole run: what was done, one by one."""
    with store.begin(CONFIG) as writer:
        yield from train(writer)
    yield "finished"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run's moments, what had been promised by each, and its files at the end."""
    root = tmp_path_factory.mktemp("store")
    recording = Recording(root)
    with pytest.MonkeyPatch.context() as patch:
        recording.watch(patch)
        promises = []
        for promised in went_through(Store(root / "runs")):
            promises.append((len(recording.moments), promised))
            recording.note()
    folder = root / "runs" / identity(CONFIG)
    return recording, promises, {name: (folder / name).read_bytes() for name in RESULTS}


def kept_by(promises, moment):
    """The last thing that had been promised before a moment; 0 for nothing."""
    return next((what for when, what in reversed(promises) if moment >= when), 0)


@settings(max_examples=80)
@given(data=st.data())
def test_whatever_a_crash_leaves_no_promise_is_broken(tmp_path_factory, recorded, data):
    recording, promises, whole = recorded
    at = data.draw(st.integers(0, len(recording.moments) - 1), label="the power goes at")
    place = tmp_path_factory.mktemp("disk")
    lay(recording.root, after_a_crash(recording.moments[at], data.draw), place)
    store, folder = Store(place / "runs"), place / "runs" / identity(CONFIG)
    promised = kept_by(promises, at)
    if promised == "finished":
        assert store.has(identity(CONFIG))
    if isinstance(promised, int) and not store.has(identity(CONFIG)):
        found = loop.load(folder / "checkpoint")
        assert (int(found[0]["step"]) if found else 0) >= promised
    if not store.has(identity(CONFIG)):
        list(went_through(store))
    assert {name: (folder / name).read_bytes() for name in RESULTS} == whole
    shutil.rmtree(place)
