from pathlib import Path

import pytest

from harness.experiment.experiment import Experiment
from harness.experiment.run_file import load_folds
from harness.fidelity.compare import Comparison, behaviour
from harness.fidelity.validate import REGIMES, markdown
from harness.simulator.timeline import Timeline
from harness.speech.task import Frames

BOUNDS = {
    "compute-bound": (6 / 0.08, 0.02),
    "server-bound": (1 / 0.025, 0.001),
    "averaging in rounds": (1 / (0.06 * (1 + 0.2 * 1.03)), 0.03),  # the slowest of four
    "one straggler": (5.2 / 0.08, 0.01),
}
"""Folds a second by what bounds them, and how near the simulation has to be."""


def simulated(name: str, folder: Path) -> tuple[Experiment[Frames], Timeline]:
    for file, text in REGIMES[name].files(name).items():
        (folder / file).write_text(text, encoding="utf-8")
    config = load_folds(folder / "run.toml")
    return config, config.new_simulation(config.timed).advance(folds=500)


@pytest.mark.parametrize("name", REGIMES)
def test_a_regime_is_as_fast_as_what_bounds_it(name: str, tmp_path: Path) -> None:
    _, timeline = simulated(name, tmp_path)
    bound, near = BOUNDS[name]
    found = behaviour(timeline).throughput_per_s
    assert found == pytest.approx(bound, rel=near)


def test_a_table_has_a_row_for_each_regime(tmp_path: Path) -> None:
    _, timeline = simulated("server-bound", tmp_path)
    found = behaviour(timeline)
    lines = list(markdown({"server-bound": Comparison(found, found)}))
    assert lines[2:] == ["| server-bound | 40.00 | 40.00 | +0.0% | 5.000 | 5.000 | +0.0% | 0.000 |"]
    assert len({line.count("|") for line in lines}) == 1
