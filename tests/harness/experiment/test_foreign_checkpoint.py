"""A checkpoint of another run, or whose layout is another version's or unknown, is not taken up."""

import time
from itertools import product

import pytest

from harness.experiment import loop
from harness.experiment.run import run as train
from harness.store import Store
from tests.killed import Killed
from tests.silence import silent

LAYOUTS = {"its own": lambda own: own, "another": lambda own: own + 1, "none": lambda own: None}
RUNS = {"of another run": "0" * 64, "of a run that it does not say": None}
TAKEN_UP = "its own"


def die_later(progress):
    if progress.done > 0.5:  # of two passes; something was evaluated, and saved, before
        raise Killed


def change(path, how):
    """Let every parameter vanish, and the layout or the run be another."""
    arrays, facts = loop.load(path.parent)
    for array in arrays.values():
        if array.dtype == "float32":
            array[...] = 0.0
    changed = {"run": RUNS[how]} if how in RUNS else {"layout": LAYOUTS[how](facts["layout"])}
    facts = {key: value for key, value in (facts | changed).items() if value is not None}
    loop.save(path.parent, arrays, facts)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("way", "how"), [*product(["frames", "sequence"], LAYOUTS), *product(["frames"], RUNS)]
)
def test_a_checkpoint_is_taken_up_only_if_its_layout_is_known_and_the_run_its_own(
    way, how, configure, sequence, finished, tmp_path, monkeypatch
):
    config = configure() if way == "frames" else sequence()
    whole = train(config, finished, silent)
    store = Store(tmp_path / "killed")
    if way != "frames":
        train(config.task.start, store, silent)
    clock = time.monotonic
    with monkeypatch.context() as patch:  # checkpoints are written every few seconds
        patch.setattr(time, "monotonic", lambda: 1e5 * clock())
        with pytest.raises(Killed):
            train(config, store, die_later)
    (path,) = store.path.glob(f"{whole.hash}/checkpoint/*")
    change(path, how)
    resumed = train(config, store, silent)
    same = whole.path("metrics.parquet").read_bytes()
    assert (resumed.path("metrics.parquet").read_bytes() == same) == (how != TAKEN_UP)
