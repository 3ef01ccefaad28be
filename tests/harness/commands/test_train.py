"""`lagbench train`: what is printed when a run does not end well."""

from __future__ import annotations

from pathlib import Path

from harness.cli import main
from harness.store import Store

DOCS = Path(__file__).parents[3] / "docs" / "runs"


def test_a_run_that_diverged_is_told_with_its_stage_its_last_loss_and_its_rate(tmp_path, capsys):
    text = (DOCS / "async-averaged.toml").read_text(encoding="utf-8")
    text = text.replace("rate = 0.008", "rate = 1e38").replace('"../..', f'"{DOCS}/../..')
    (file := tmp_path / "wild.toml").write_text(text + "share = 0.05\n", encoding="utf-8")
    assert main(["train", str(file), "--seed", "5", "--out", str(tmp_path / "runs")]) == 3
    (run,) = Store(tmp_path / "runs").runs()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"wild, seed 5 ({run.hash[:12]}) diverged in AveragedSgd at fold ")
    assert " nats a frame at fold 0" in last
    assert last.endswith("rate 1e+38")
