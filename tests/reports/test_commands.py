from __future__ import annotations

from argparse import Namespace

import pytest

from harness.base.errors import UserError
from harness.commands import report, runs
from harness.store import Store


def report_command(folder):
    return report.run(Namespace(folder=folder, site=None))


def runs_command(folder):
    told = {"verify": False, "csv": False, "json": False, "push": None, "pull": None}
    return runs.run(Namespace(folder=folder, light=False, **told))


def test_report_rebuilds_without_training_and_names_the_files(out, capsys):
    assert report_command(out) == 0
    files = [out / "report.pdf", out / "report.html"]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("name", ["nowhere", "runs"])
def test_a_folder_without_results_is_one_clear_line(out, name):
    with pytest.raises(UserError, match=r"holds no results\.json"):
        report_command(out / name)
    assert not (out / name / "report.pdf").exists()


def test_a_damaged_results_file_is_one_clear_line_and_leaves_the_old_report(out):
    report_command(out)
    before = (out / "report.pdf").read_bytes()
    (out / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json: cannot be read as JSON"):
        report_command(out)
    assert (out / "report.pdf").read_bytes() == before


def test_runs_are_plain_lines_where_there_is_no_terminal(built, capsys):
    assert runs_command(built) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    stored = Store(built / "runs").runs()
    assert sorted(line[0] for line in lines) == [run.hash[:12] for run in stored]
    assert {line[1] for line in lines} == {"done", "diverged", "unfinished"}
    assert all(len(line) == 5 for line in lines)
    bad = [(run, line) for run in stored for line in lines if run.note and line[0] == run.hash[:12]]
    assert bad
    assert all(line[2].startswith(run.note) for run, line in bad)


def test_a_store_is_found_itself_or_below(built, capsys):
    for folder in (built / "runs", built, built.parent):
        assert runs_command(folder) == 0
        assert capsys.readouterr().out.count("diverged") >= 1


def test_on_a_terminal_runs_are_a_table(built, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    runs_command(built)
    text = capsys.readouterr().out
    assert "8 runs" in text
    assert "settings that differ" in text


def test_no_store_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="no store in"):
        runs_command(tmp_path / "nowhere")
