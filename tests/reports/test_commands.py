from argparse import Namespace

import pytest

from harness.base.errors import UserError
from harness.commands import report, runs


def report_command(folder):
    return report.run(Namespace(folder=folder))


def runs_command(folder):
    return runs.run(Namespace(folder=folder, verify=False, json=False))


def test_report_rebuilds_without_training_and_names_the_files(out, capsys):
    assert report_command(out) == 0
    files = [out / "report.pdf", out / "report.html"]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert all(file.exists() for file in files)


def test_a_damaged_results_file_is_one_clear_line_and_leaves_the_old_report(out):
    report_command(out)
    before = (out / "report.pdf").read_bytes()
    (out / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json: cannot be read as JSON"):
        report_command(out)
    assert (out / "report.pdf").read_bytes() == before


def test_a_store_is_found_itself_or_below(built, capsys):
    for folder in (built / "runs", built, built.parent):
        assert runs_command(folder) == 0
        assert capsys.readouterr().out.count("diverged") >= 1
