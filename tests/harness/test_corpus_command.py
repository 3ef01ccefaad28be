from __future__ import annotations

import pytest

from data_synth import parametric
from data_synth.storage import load
from harness.cli import main

TINY = parametric.Recipe(train=30, dev=8, test=10, speakers=5, test_speakers=3)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("LAGBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(parametric.PRESETS, "smoke", TINY)
    return tmp_path


def test_a_corpus_is_made_described_and_validated(tiny, capsys):
    out = tiny / "c"
    assert main(["corpus", "make", "parametric", "--out", str(out)]) == 0
    made = load(out)
    assert f"fingerprint {made.fingerprint}" in capsys.readouterr().out
    quick = ["--frames", "500", "--epochs", "1", "--units", "8", "--layers", "2"]
    assert main(["corpus", "validate", str(out), *quick]) == 0
    said = capsys.readouterr().out
    for row in (
        "chance",
        "linear",
        "shallow",
        "deep",
        "clean",
        "noise",
        "depth pays",
        "confusable",
    ):
        assert row in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", "parametrik", "--out", "x"], "did you mean 'parametric'?"),
        (["make", "parametric", "--scale", "smok", "--out", "x"], "did you mean 'smoke'?"),
        (["make", "parametric"], "--out"),
        (["validate", "nowhere"], "nowhere: not a whole corpus"),
        (["validate", "nowhere", "--epochs", "0"], "--epochs 0: at least 1 is allowed"),
        (["fetch", "fsd"], "did you mean 'fsdd'?"),
        (["knobs", "mandarin"], "did you mean 'mandarin-like'?"),
        (["align", "nowhere", "--out", "o", "--rounds", "0"], "--rounds 0: at least 1 is allowed"),
        (["align", "nowhere", "--out", "o"], "nowhere: not a whole corpus"),
        (["bake"], "invalid choice: 'bake'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tiny, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tiny)
    assert main(["corpus", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_corpus_is_not_made_over_a_folder_that_exists(tiny, capsys):
    assert main(["corpus", "make", "parametric", "--out", str(tiny)]) == 2
    assert "exists already" in capsys.readouterr().err
