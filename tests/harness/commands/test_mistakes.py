"""Mistakes in the options of commands that train: one line each."""

import pytest

from harness.cli import main
from tests.run_files import ASYNCHRONOUS, written


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --set workers", "--set: 'workers' is not allowed"),
        ("tolerate --what dealy", "what: unknown 'dealy' (did you mean 'delay'"),
        ("tolerate --margin -1", "margin: -1.0; allowed"),
        ("tolerate --seeds 0", "--seeds: '0' is not allowed"),
        ("tolerate --what staleness --algorithm sync", "GradientAveraging folds in rounds"),
        (
            "compare-algorithms --workers 1,x",
            "--workers: '1,x' is not allowed; allowed: whole numb",
        ),
        ("compare-algorithms --set rate", "--set: 'rate' is not allowed"),
        ("compare-algorithms --set schedule.rtae=3", "rtae"),
        ("compare-algorithms --algorithms asink", "unknown 'asink'"),
        ("compare-algorithms --rates mine", "--rates: 'mine' is not allowed; allowed: sweep, file"),
    ],
)
def test_a_mistake_is_one_line(words, told, tmp_path, capsys):
    command, *options = words.split()
    path = written(tmp_path, ASYNCHRONOUS)
    assert main([command, str(path), "--out", str(tmp_path / "out"), *options]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert told in line
