from __future__ import annotations

import csv
import json

from harness.cli import main
from harness.store import Store


def execute(writer):
    writer.log("loss", 0.5, fold=1, time_s=0.0, epoch=0.0)
    writer.finish(summary={"loss": 0.5})


def test_a_store_is_verified_on_request(tmp_path, capsys):
    runs = [Store(tmp_path).obtain({"seed": seed}, execute) for seed in (1, 2)]
    assert main(["runs", str(tmp_path), "--verify"]) == 0
    assert capsys.readouterr().err == "0 damaged\n"
    path = runs[1].path("metrics.parquet")
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    assert main(["runs", str(tmp_path)]) == 0
    assert main(["runs", str(tmp_path), "--verify"]) == 3
    told = capsys.readouterr()
    assert told.err == "1 damaged\n"
    assert "damaged, not as written: metrics.parquet" in told.out


def test_a_record_that_cannot_be_believed_is_listed(tmp_path, capsys):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    (run.dir / "run.json").write_text("{")
    assert main(["runs", str(tmp_path)]) == 3
    assert "cannot be read as JSON" in capsys.readouterr().out


def test_runs_are_written_for_programs(tmp_path, capsys):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["hash"], found["status"], found["summary"]) == (run.hash, "done", {"loss": 0.5})
    assert found["config"] == {"seed": 1}
    assert main(["runs", str(tmp_path), "--csv"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (row["hash"], row["status"], row["loss"]) == (run.hash, "done", "0.5")
    assert main(["runs", str(tmp_path), "--csv", "--json"]) == 2
