import json
from dataclasses import fields
from pathlib import Path

import pytest

from harness.base.registry import entries
from harness.base.settings import meanings
from harness.cli import main

K20M = "reproductions/clusters/k20m-server.toml"


def test_every_setting_of_our_protocols_has_a_meaning():
    for kind in (entry.load() for entry in entries("protocols").values() if entry.ours):
        assert {entry.name for entry in fields(kind)} <= meanings(kind).keys()


def test_averaging_is_simulated_with_its_settings(tmp_path, capsys):
    figures = {}
    for every in ("10", "20"):
        out = tmp_path / every
        options = ["--protocol", "averaging", "--every", every, "--collective", "rabenseifner"]
        size = ["--workers", "1,4", "--folds", "200", "--json", str(out)]
        assert main(["simulate", K20M, *options, *size]) == 0
        figures[every] = json.loads(out.read_text())[-1]
    assert "staleness" in capsys.readouterr().out
    assert figures["10"]["folds"] == 200
    assert figures["10"]["staleness"]["max"] == 0
    assert 1.0 < figures["10"]["speedup"] < figures["20"]["speedup"] < 4.0


@pytest.mark.parametrize(
    "names", ["ddp sync", "localsgd:10 averaging:10", "hogwild parameter_server"]
)
def test_the_names_of_algorithms_are_those_of_their_protocols(names, capsys):
    tables = []
    for name in names.split():
        assert main(["simulate", K20M, "--protocol", name, "--workers", "2", "--folds", "20"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    assert main(["simulate", K20M, "--protocol", "localsgd"]) == 2
    assert "allowed: with one, e.g. 'localsgd:10'" in capsys.readouterr().err


def test_a_setting_that_holds_by_default_can_be_turned_off(tmp_path):
    found = []
    for more in ([], ["--shuffled"], ["--no-shuffled"]):
        out = tmp_path / "figures"
        options = ["--protocol", "sequence", "--slots", "8", *more]
        size = ["--workers", "4", "--folds", "200", "--json", str(out)]
        assert main(["simulate", K20M, *options, *size]) == 0
        figures = json.loads(out.read_text())[0]
        assert figures["own"]["outer_lag_s_mean"] > figures["lag_s"]["mean"]
        found.append(figures["timeline_sha256"])
    assert found[0] == found[1] != found[2]


@pytest.mark.nightly
def test_an_epoch_on_stampede_is_as_long_as_paper_2_says(tmp_path):
    out = tmp_path / "figures"
    cluster = "reproductions/clusters/stampede.toml"
    minutes = []
    for workers in (1, 16):
        options = ["--collective", "rabenseifner", "--folds", str(9504 // workers)]
        command = ["simulate", cluster, "--protocol", "averaging", *options]
        assert main([*command, "--workers", str(workers), "--json", str(out)]) == 0
        minutes.append(json.loads(out.read_text())[0]["virtual_s"] / 60)
    assert minutes[1] == pytest.approx(27.3, rel=0.05)
    assert minutes[0] / minutes[1] == pytest.approx(9.32, rel=0.05)


@pytest.mark.parametrize("protocol", ["parameter_server", "averaging"])
def test_workers_that_live_too_short_to_be_folded_are_one_clear_line(protocol, tmp_path, capsys):
    text = Path(K20M).read_text(encoding="utf-8")
    faults = '\n[[faults]]\nkind = "death"\nmean_s = 1e-6\ndown_s = 0.1\n'
    (tmp_path / "frail.toml").write_text(text + faults, encoding="utf-8")
    command = ["simulate", str(tmp_path / "frail.toml"), "--protocol", protocol, "--folds", "9"]
    assert main([*command, "--workers", "1,3"]) == 2
    told = capsys.readouterr().err.strip()
    assert "faults[0].mean_s: 1e-06: by" in told
    assert "\n" not in told
