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
    quick = ["--epochs", "1"]
    assert main(["corpus", "validate", str(out), *quick]) == 0
    said = capsys.readouterr().out
    rows = "chance linear shallow deep clean noise", "depth pays", "confusable"
    for row in (*rows[0].split(), *rows[1:]):
        assert row in said
