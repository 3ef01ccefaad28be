import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.commands import simulate
from harness.simulator.cluster import load_cluster
from harness.simulator.simulation import Simulation

K20M = str(Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml")
SMALL = [K20M, "--folds", "200"]


def lagbench(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["simulate", *arguments])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_simulate_prints_a_row_a_worker_count(capsys):
    code, out, err = lagbench(capsys, *SMALL, "--workers", "1,2,4,8")
    assert (code, err) == (0, "K20m server describes 4 workers; 8 are these 2 times over\n")
    rows = [line.split() for line in out.splitlines()[-4:]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    assert [float(row[4]) for row in rows] == pytest.approx([0, 1, 3, 7], abs=0.2)


def test_the_default_worker_counts_end_with_the_whole_cluster(capsys):
    _, out, _ = lagbench(capsys, *SMALL)
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["1", "2", "4"]


def test_json_has_the_figures_of_the_timeline(capsys, tmp_path):
    path = tmp_path / "figures.json"
    assert lagbench(capsys, *SMALL, "--workers", "4,2", "--seed", "3", "--json", str(path))[0] == 0
    records = json.loads(path.read_text())
    cluster = load_cluster(K20M)
    for record, workers in zip(records, (4, 2), strict=True):
        simulation = Simulation(cluster, "parameter_server", cluster.workload, workers, 3)
        timeline = simulation.advance(folds=200)
        single = Simulation(cluster, "parameter_server", cluster.workload, 1, 3)
        single.advance(folds=200)
        assert list(record) == [
            *("workers", "folds", "virtual_s", "throughput_per_s", "speedup"),
            *("staleness", "lag_s", "timeline_sha256"),
        ]
        assert (record["workers"], record["folds"]) == (workers, 200)
        assert record["virtual_s"] == timeline.folds.time_s[-1]
        assert record["throughput_per_s"] == 200 / record["virtual_s"]
        assert record["speedup"] == pytest.approx(single.now_s / simulation.now_s)
        assert record["timeline_sha256"] == timeline.sha256()
        for name, values in (("staleness", timeline.staleness()), ("lag_s", timeline.lag_s())):
            assert list(record[name]) == ["mean", "p50", "p95", "max"]
            assert record[name]["mean"] == values.mean()
            assert record[name]["max"] == values.max()


def test_a_trace_does_not_change_the_figures(capsys, tmp_path):
    one, two, trace = (tmp_path / name for name in ("1.json", "2.json", "trace.json"))
    lagbench(capsys, *SMALL, "--json", str(one))
    lagbench(capsys, *SMALL, "--json", str(two), "--trace", str(trace))
    assert one.read_bytes() == two.read_bytes()
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_cluster_without_costs_has_no_throughput_and_still_valid_json(capsys, tmp_path):
    cluster, path = tmp_path / "free.toml", tmp_path / "out.json"
    cluster.write_text(
        'name = "free"\nworkers = [{count = 2, device = "d"}]\n'
        "[devices.d]\nachieved_flops_per_s = 1.0\n"
        "[workload]\nminibatch_frames = 1\nflops_per_frame = 0\nparameter_bytes = 0\n"
    )
    assert lagbench(capsys, str(cluster), "--folds", "10", "--json", str(path))[0] == 0
    record = json.loads(path.read_text())[-1]
    assert (record["virtual_s"], record["throughput_per_s"], record["speedup"]) == (0.0, None, None)


def test_another_network_may_be_timed(capsys):
    _, out, _ = lagbench(capsys, *SMALL, "--network", "440-2048x6-8806")
    assert "60.84 GFLOP" in out
    assert "159.7 MB" in out


def test_the_version_names_what_computes(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.match(r"lagbench [\d.]+ \(torch .*, numba .*, numpy .*\)\n", capsys.readouterr().out)


def test_an_interrupt_ends_with_code_130_and_no_traceback(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "run", interrupted)
    assert cli.main(["simulate", K20M]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("words", "most"), [([], set()), (["simulate"], {"numba", "numpy"}), (["train"], {"numpy"})]
)
def test_help_is_quick_because_it_loads_little_that_is_heavy(words, most):
    program = (
        "import sys\nfrom harness.cli import main\n"
        f"try: main([*{words!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print(*{'torch', 'numba', 'numpy', 'pyarrow'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert set(out.splitlines()[-1].split()) <= most


def test_python_dash_m_harness_is_the_command():
    command = [sys.executable, "-m", "harness", "simulate", "missing.toml"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    assert finished.returncode == 2
    assert "missing.toml" in finished.stderr
    assert "Traceback" not in finished.stderr
