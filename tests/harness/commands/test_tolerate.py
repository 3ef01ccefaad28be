import csv
import json

from harness import cli
from tests.run_files import ASYNCHRONOUS, written

RUN = ASYNCHRONOUS.replace("Halving", "Constant").replace("evaluations = 4", "evaluations = 2")
FEW = ["--seeds", "2", "--rates", "file", "--algorithm", "async", "--halvings", "1"]


def test_the_break_point_of_a_run_file_is_bracketed_and_found_again_without_training(
    tmp_path, capsys, monkeypatch
):
    path, out = written(tmp_path, RUN, launch_s=0.01), tmp_path / "out"
    words = ["tolerate", str(path), *FEW, "--to", "16", "--margin", "0.03", "--out", str(out)]
    assert cli.main(words) == 0
    first = capsys.readouterr()
    rows = list(csv.DictReader((out / "table.csv").open(encoding="utf-8")))
    told = json.loads((out / "results.json").read_text(encoding="utf-8"))
    broken = {float(row["value"]): row["broken"] == "True" for row in rows}
    assert list(broken) == [1.0, 4.0, 16.0]
    assert not broken[told["tolerated"]]
    assert broken[told["broken"]]
    assert told["points"][0]["ratio"] == 1.0
    assert told["points"][2]["ratio_low"] < told["points"][2]["ratio"]
    assert (out / "tolerance.svg").stat().st_size > 1000
    assert "slow describes 2 workers; 16 are these 8 times over" in first.err
    assert "workers 16: broken" in first.err
    assert first.out.startswith("workers: up to 4 ")
    assert "and at 16 it does not." in first.out
    assert "tolerate: at most 3 values of workers, 2 trainings each;" in first.err
    monkeypatch.setattr("harness.experiment.run.FoldTraining", None)
    assert cli.main(words) == 0
    assert capsys.readouterr().out == first.out


def test_staleness_delay_and_losses_change_the_cluster_of_the_runs(tmp_path, capsys):
    path = written(tmp_path, RUN, launch_s=0.01)
    for what, high in {"staleness": "4", "delay": "0.1", "loss": "0.4"}.items():
        out = tmp_path / what
        words = ["--what", what, "--to", high, "--margin", "9", "--seeds", "1", "--out", str(out)]
        assert cli.main(["tolerate", str(path), *FEW, *words]) == 0
        told = capsys.readouterr().out
        within = "the error stays within 900% of that at 0, the most tried."
        assert told.startswith(f"{what}: up to {float(high):g} {within}\nOne seed has no interval")
        hashes = json.loads((out / "results.json").read_text())["provenance"]["runs"]
        (last,) = (runs for name, runs in hashes.items() if name == f"{what} {float(high):g}")
        config = json.loads((out / "runs" / last[0] / "config.json").read_text())
        cluster = config["cluster"]
        assert (config["workers"], cluster["link"]["latency_s"], len(cluster["faults"])) == {
            "staleness": (5, 0.0, 0),
            "delay": (2, 0.1, 0),
            "loss": (2, 0.0, 1),
        }[what]
