"""What `lagbench simulate` shows: sweeps."""

import json
from itertools import product
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.commands.timing import points
from harness.simulator.cluster import load_cluster
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
    assert rows == [[*row] for row in product(("0", "0.1"), ("none", "fair"), ("2", "4"))]
    records = json.loads(path.read_text())
    assert records[-1]["sweep"] == {"server.fold_s": 0.1, "link.sharing": "fair"}


def test_a_row_of_a_sweep_is_what_a_file_with_that_value_gives(capsys, tmp_path):
    swept, written = tmp_path / "swept.json", tmp_path / "written.json"
    lagbench(capsys, *SMALL, "--sweep", "server.fold_s=0.05,0.2", "--json", str(swept))
    changed = tmp_path / "c.toml"
    changed.write_text(K20M.read_text().replace("fold_s = 0.0", "fold_s = 0.2"))
    lagbench(capsys, str(changed), *SMALL[1:], "--workers", "4", "--json", str(written))
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
    found = points(path, [*sweeps, "jitter.values.1=4.0"])
    assert {point.cluster.jitter.values for point in found} == {(1.0, 4.0)}
    assert [point.cluster.size for point in found] == [3, 5]
    assert {point.cluster.stragglers.probability for point in found} == {0.5}
    h100 = found[0].cluster.devices["H100"]
    assert (h100.launch_s, h100.peak_flops_per_s) == (1.5, 989e12)


def test_a_terminal_is_told_how_far_a_long_run_is(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("harness.commands.timing.TELL_AFTER_S", 0.0)
    _, _, err = lagbench(capsys, str(K20M), "--workers", "1,2")
    assert "row 1 of 2 (workers 1): 0 folds in 0 s simulated so far\n" in err


def test_one_key_is_swept_once():
    with pytest.raises(UserError, match="given twice"):
        points(K20M, ["server.fold_s=0", "server.fold_s=1"])


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.toml")), ids=lambda path: path.stem)
def test_no_line_is_longer_than_a_terminal_is_wide(capsys, path):
    cluster = load_cluster(path)
    in_rounds = cluster.jobs or any(fault.notice_s for fault in cluster.faults)
    asked = ["--protocol", "averaging"] if in_rounds else []
    most = "64" if cluster.jobs else "200"  # each of a job's messages changes the rates of others
    arguments = [str(path), "--folds", "40", *asked, "--workers", f"1,2,10,{most}"]
    for sweep in (["--sweep", "link.sharing=none,fifo"], []):
        code, out, _ = lagbench(capsys, *arguments, *sweep)
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
