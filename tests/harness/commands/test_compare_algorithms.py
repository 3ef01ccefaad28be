import csv

from harness import cli
from tests.run_files import ASYNCHRONOUS, written


def test_one_table_has_every_algorithm_and_number_of_workers(tmp_path, capsys):
    run = ASYNCHRONOUS.replace("Halving", "Constant").replace("evaluations = 4", "evaluations = 2")
    run = run.replace('{ is = "AveragedSgd" }', '"localsgd:8"')  # brings a protocol
    path, out = written(tmp_path, run), tmp_path / "out"
    words = ["compare-algorithms", str(path), "--algorithms", "async,sync", "--workers", "1,2"]
    words += ["--seeds", "2", "--rates", "file", "--set", "schedule.rate=0.005", "--out", str(out)]
    assert cli.main(words) == 0
    rows = list(csv.DictReader((out / "table.csv").open(encoding="utf-8")))
    assert [(row["algorithm"], row["workers"]) for row in rows] == [
        *(("async", "1"), ("async", "2"), ("sync", "1"), ("sync", "2"))
    ]
    assert {row["rate"] for row in rows} == {"0.005"}
    assert (out / "curves.svg").exists()
    streams = capsys.readouterr()
    assert "frame error: on development data" in streams.out
    assert "no effect" not in streams.err
