"""What `lagbench simulate` shows: sweeps and the page."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.commands.plot import few_lanes
from harness.commands.timing import points, timing_of
from harness.simulator import Simulation, load_cluster
from tests.harness.test_cli import lagbench

CLUSTERS = Path(__file__).parents[2] / "reproductions" / "clusters"
K20M = CLUSTERS / "k20m-server.toml"
SMALL = [str(K20M), "--folds", "200"]


def test_a_sweep_has_a_row_for_every_combination_in_order(capsys, tmp_path):
    path = tmp_path / "rows.json"
    sweeps = ["--sweep", "server.fold_s=0,0.1", "--sweep", "link.sharing=none,fair"]
    code, out, err = lagbench(capsys, *SMALL, *sweeps, "--workers", "2,4", "--json", str(path))
    assert (code, err) == (0, "")
    rows = [line.split()[:3] for line in out.splitlines()[-8:]]
    assert rows == [
        [fold_s, sharing, workers]
        for fold_s in ("0", "0.1")
        for sharing in ("none", "fair")
        for workers in ("2", "4")
    ]
    records = json.loads(path.read_text())
    assert records[-1]["sweep"] == {"server.fold_s": 0.1, "link.sharing": "fair"}


def test_a_row_of_a_sweep_is_what_a_file_with_that_value_gives(capsys, tmp_path):
    swept, written = tmp_path / "swept.json", tmp_path / "written.json"
    lagbench(capsys, *SMALL, "--sweep", "server.fold_s=0.05,0.2", "--json", str(swept))
    changed = tmp_path / "c.toml"
    changed.write_text(K20M.read_text().replace("fold_s = 0.0", "fold_s = 0.2"))
    arguments = [str(changed), "--folds", "200", "--workers", "4", "--json", str(written)]
    lagbench(capsys, *arguments)
    record = json.loads(swept.read_text())[-1]
    assert record.pop("sweep") == {"server.fold_s": 0.2}
    assert record == json.loads(written.read_text())[0]


def test_a_sweep_reaches_lists_tables_not_there_yet_and_the_catalogue(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "n"\nworkers = [{count = 2, device = "H100"}]\n'
        'jitter = {law = "empirical", values = [1.0, 2.0]}\n'
    )
    sweeps = ["workers[0].count=3,5", "stragglers.probability=0.5", "devices.H100.launch_s=1.5"]
    found = points(path, [*sweeps, "jitter.values[1]=4.0"])
    assert {point.cluster.jitter.values for point in found} == {(1.0, 4.0)}
    assert [point.cluster.size for point in found] == [3, 5]
    assert {point.cluster.stragglers.probability for point in found} == {0.5}
    h100 = found[0].cluster.devices["H100"]
    assert (h100.launch_s, h100.peak_flops_per_s) == (1.5, 989e12)


def test_one_key_is_swept_once():
    with pytest.raises(UserError, match="given twice"):
        points(K20M, ["server.fold_s=0", "server.fold_s=1"])


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.toml")), ids=lambda path: path.stem)
def test_no_line_is_longer_than_a_terminal_is_wide(capsys, path):
    cluster = load_cluster(path)
    asked: list[str] = []
    if cluster.jobs or any(fault.notice_s for fault in cluster.faults):  # of rounds alone
        asked = ["--protocol", "averaging"]
    most = "64" if cluster.jobs else "200"  # each of a job's messages changes the rates of others
    arguments = [str(path), "--folds", "40", *asked, "--workers", f"1,2,10,{most}"]
    code, out, _ = lagbench(capsys, *arguments, "--sweep", "link.sharing=none,fifo")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    _, out, _ = lagbench(capsys, *arguments)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["svg", "png", "pdf"])
def test_the_page_is_drawn_in_the_form_of_its_name_and_always_the_same(capsys, tmp_path, form):
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    one, two = tmp_path / f"1.{form}", tmp_path / f"2.{form}"
    for path in (one, two):
        assert lagbench(capsys, *SMALL, "--plot", str(path))[0] == 0
    assert one.read_bytes().startswith(starts[form])
    assert one.read_bytes() == two.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [one.name, two.name]


def test_the_page_names_its_axes_with_units(tmp_path):
    from harness.commands.plot import page

    cluster = load_cluster(K20M)
    rows = []
    for workers in (1, 2, 4):
        simulation = Simulation(cluster, "parameter_server", cluster.workload, workers)
        timeline = simulation.advance(folds=300)
        rows.append(replace(timing_of(simulation, timeline, 9.0), single_per_s=7.0))
    axes = page("title", rows, timeline).axes
    assert [(a.get_xlabel().split(",")[0].split(";")[0], a.get_ylabel()) for a in axes] == [
        ("virtual time (ms)", ""),
        ("staleness (folds)", "share of contributions"),
        ("lag (ms)", "share of contributions"),
        ("workers", "speed-up over one worker (times)"),
    ]
    bars = {bar.get_x() + 0.5: bar.get_height() for bar in axes[1].patches}
    stale = timeline.staleness()
    assert bars[3.0] == pytest.approx(np.mean(stale == 3))
    curve = axes[3].lines[1].get_xydata().tolist()
    assert curve == [[row.workers, row.speedup] for row in rows]


def test_a_page_shows_few_of_many_workers_and_only_their_folds():
    cluster = load_cluster(K20M)
    timeline = Simulation(cluster, "parameter_server", cluster.workload, 30).advance(folds=900)
    shown = few_lanes(timeline, 12)
    assert set(shown.spans.worker.tolist()) == set(range(-1, 12))
    assert set(shown.contributions.worker.tolist()) == set(range(12))
    server = shown.spans.where(shown.spans.worker == -1)
    assert len(server) == len(shown.contributions)
    assert np.isin(server.end_s, timeline.folds.time_s[shown.contributions.fold]).all()


def test_any_protocol_has_a_page(capsys, tmp_path):
    path = tmp_path / "page.png"
    options = ["--protocol", "averaging", "--plot", str(path)]
    assert lagbench(capsys, *SMALL, *options)[0] == 0
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("lag_s", [0.0, 0.2256, 1e-7, 3e5])
def test_equal_lags_are_one_bar_of_which_nothing_lies_outside(lag_s):
    from harness.commands.plot import page

    rounded = lag_s * (1.0 + 1e-15 * np.arange(-200, 200))
    cluster = load_cluster(K20M)
    simulation = Simulation(cluster, "parameter_server", cluster.workload, 4)
    timeline = simulation.advance(folds=100)
    timing = timing_of(simulation, timeline, 9.0)
    found = SimpleNamespace(single=(np.zeros(400, np.int64), rounded))
    axes = page("title", [replace(timing, long_run=found)], timeline).axes[2]
    heights = [bar.get_height() for bar in axes.patches]
    assert sorted(heights)[-1] == sum(heights) == 1.0
    assert "outside" not in axes.get_xlabel()
