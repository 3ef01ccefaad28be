from __future__ import annotations

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
