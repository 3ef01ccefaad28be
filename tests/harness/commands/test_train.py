"""`lagbench train`: many runs of a file, and what is said when one does not end well."""

from pathlib import Path

from harness.base.registry import find_bundled
from harness.base.settings import format_count
from harness.cli import main
from harness.store import Store
from harness.train import parser as train_parser
from tests.run_files import ASYNCHRONOUS, written

DOCS = Path(__file__).parents[3] / "reproductions" / "runs"


def test_a_run_that_diverged_is_told_with_its_stage_its_last_loss_and_its_rate(tmp_path, capsys):
    text = (DOCS / "async-averaged.toml").read_text(encoding="utf-8")
    text = text.replace("rate = 0.008", "rate = 1e38").replace('"../..', f'"{DOCS}/../..')
    (file := tmp_path / "wild.toml").write_text(text + "share = 0.05\n", encoding="utf-8")
    assert main(["train", str(file), "--seed", "5", "--out", str(tmp_path / "runs")]) == 3
    (run,) = Store(tmp_path / "runs").runs()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"wild, seed 5 ({run.hash[:12]}) diverged in AveragedSgd at fold ")
    assert " at fold 0, rate" in last
    assert last.endswith("rate 1e+38")


def test_lists_of_workers_and_seeds_are_runs_of_one_store(tmp_path, capsys):
    path, out = written(tmp_path, ASYNCHRONOUS.replace("Halving", "Constant")), tmp_path / "runs"
    words = ["train", str(path), "--workers", "1,2", "--seeds", "2", "--out", str(out)]
    assert main([*words, "--set", "schedule.rate=0.005", "--set", "evaluations=1"]) == 0
    configs = [run.config for run in Store(out).runs()]
    asked = {(config["workers"], config["seed"]) for config in configs}
    assert asked == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert {config["schedule"]["rate"] for config in configs} == {0.005}
    said = capsys.readouterr().out
    for told in ("1 worker, seed 0:", "2 workers, seed 1:"):
        assert said.splitlines().count(told) == 1
    assert said.count("dev_frame_error/iterate") == said.count("status") == 4
    ends = said.splitlines()[-4:]  # the answers come last
    for run in Store(out).runs():
        count, seed = run.config["workers"], run.config["seed"]
        name = f"{path.stem}, {format_count(count, 'worker')}, seed {seed}: frame error "
        (end,) = [line for line in ends if line.endswith(f"; stored in {run.dir}")]
        error = run.summary[run.deployed("dev_frame_error")]
        assert end.startswith(f"{name}{error:.2%} after 1 pass, ")
        assert " of simulated time; " in end


def test_processes_are_those_of_harness_train_with_the_same_options(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("harness.train.run", lambda options: asked.append(options) or 0)
    words = ["train", "async-averaged", "--processes", "5", "--seed", "7", "--out", str(tmp_path)]
    assert main([*words, "--paced", "--device", "cpu"]) == 0
    file = str(find_bundled("run")["async-averaged"])
    rest = ["--processes", "5", "--out", str(tmp_path), "--seed", "7", "--device", "cpu", "--paced"]
    assert asked == [train_parser().parse_args([file, *rest])]
