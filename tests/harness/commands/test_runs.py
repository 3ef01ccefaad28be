import json

from harness.base.seeds import TUNING_SEEDS
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


def trained(seed, workers=1, every=1):
    named = {"algorithm": {"is": "ModelAveraging"}, "protocol": {"is": "Averaging", "every": every}}
    return {**named, "workers": workers, "seed": seed, "schedule": {"rate": 0.1}}


def finish(writer):
    # with the last rate, where the table has that of the schedule
    writer.finish(summary={"folds": 3, "dev_error/iterate": 0.25, "virtual_s": 0.5, "rate": 1e-9})


def test_a_table_has_a_header_and_trials_of_learning_rates_stand_apart(tmp_path, capsys):
    store = Store(tmp_path)
    configs = trained(1, 4, 10), trained(0, 4, 10), trained(TUNING_SEEDS[0]), {"seed": 3}
    hashes = [store.obtain(config, finish).hash[:12] for config in configs]
    assert main(["runs", str(tmp_path)]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = ["run", "algorithm", "workers", "rate", "seed", "status", "result", "seconds", "note"]
    result = ["done", "dev_error", "0.25", "500", "ms"]
    assert told == [
        [f"{tmp_path}:", "4", "runs"], [], ["results:", "2"], head,
        [hashes[1], "ModelAveraging:10", "4", "0.1", "0", *result],
        [hashes[0], "ModelAveraging:10", "4", "0.1", "1", *result], [],
        ["trials", "of", "learning", "rates:", "1"], head,
        [hashes[2], "ModelAveraging", "1", "0.1", "100", *result], [], ["others:", "1"], head,
        [hashes[3], "-", "-", "1e-09", "3", *result],
    ]  # fmt: skip


def test_without_a_folder_the_stores_of_programs_and_of_commands_are_listed(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 2
    assert "no store in 'lagbench-runs' and 'reports/out'; allowed" in capsys.readouterr().err
    for place in ("lagbench-runs", "reports/out/comparison/runs"):
        Store(tmp_path / place).obtain(trained(0), finish)
    assert main(["runs"]) == 0
    told = capsys.readouterr().out
    assert "lagbench-runs: 1 run\n" in told
    assert "reports/out/comparison/runs: 1 run\n" in told
