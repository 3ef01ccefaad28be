from types import SimpleNamespace

import numpy as np
import pytest

from harness.fidelity import replay as replaying
from harness.simulator.timeline import Timeline
from harness.simulator.timeline_file import save_timeline


@pytest.mark.parametrize(("moved", "largest"), [(0.0, 0.0), (0.25, 0.25), (-0.5, 0.5)])
def test_a_replay_tells_the_largest_difference_whichever_way_it_is(
    moved, largest, tmp_path, monkeypatch
):
    runs = []
    for name, second in (("stored", 2.0), ("again", 2.0 + moved)):
        (tmp_path / name).mkdir()
        folder, model = tmp_path / name, np.array([1.0, second], np.float32)
        runs.append(SimpleNamespace(dir=folder, config={}, path=folder.joinpath, model=model))
    save_timeline(Timeline(), tmp_path / "stored" / replaying.TIMELINE)
    monkeypatch.setattr(replaying, "load_finished_run", lambda folder: runs[0])
    monkeypatch.setattr(replaying, "_replay_into", lambda run, store, say, file: runs[1])
    found = replaying.replay_run(tmp_path / "stored", print)
    assert found.largest_difference == largest
    assert (found.recorded_sha256 == found.replayed_sha256) == (moved == 0.0)
    assert (found.folds, found.parameters) == (0, 2)
