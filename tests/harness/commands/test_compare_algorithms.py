import csv

import pytest

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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "1,x"], "--workers: '1,x' is not allowed; allowed: whole numbers"),
        (["--set", "rate"], "--set: 'rate' is not allowed"),
        (["--set", "schedule.rtae=3"], "rtae"),
        (["--algorithms", "asink"], "unknown 'asink'"),
        (["--rates", "mine"], "--rates: 'mine' is not allowed; allowed: sweep, file, or num"),
    ],
)
def test_a_mistake_is_one_line(words, told, tmp_path, capsys):
    path = written(tmp_path, ASYNCHRONOUS)
    assert cli.main(["compare-algorithms", str(path), "--out", str(tmp_path), *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert told in line
