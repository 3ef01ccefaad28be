from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.base.seeds import identity
from harness.grid import display
from harness.grid.display import Display
from harness.simulator import load_cluster
from harness.store import Store
from reproductions.paper2_ng_averaging.checks import AllReduceConfig

CLUSTERS = Path(__file__).parents[3] / "reproductions" / "clusters"


def test_equal_configurations_run_once_under_all_their_names(tmp_path, monkeypatch):
    small = AllReduceConfig(load_cluster(CLUSTERS / "stampede.toml"), 2, "ring", 1e6)
    configs = {1: small, 2: replace(small, workers=4), 3: replace(small)}
    shown = {}

    def showing(titles, tally):
        shown.update(titles)
        return Display(titles, tally)

    monkeypatch.setattr(display, "Display", showing)
    runs = display.execute_named(configs, "number {}".format, tmp_path, jobs=1)
    assert {key: run.hash for key, run in runs.items()} == {
        key: identity(config.to_dict()) for key, config in configs.items()
    }
    assert len(Store(tmp_path).runs()) == 2
    assert shown == {runs[1].hash: "number 1 = number 3", runs[2].hash: "number 2"}
    display.execute_named(configs, lambda _: "the same", tmp_path, jobs=1)
    assert shown == {runs[1].hash: "the same", runs[2].hash: "the same"}
