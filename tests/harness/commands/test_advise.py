"""`lagbench advise` on a module of a user's own file."""

import json

import pytest

from harness import cli

RUN = """
cluster = "four.toml"
workers = 1
passes = 2
evaluations = 4
task = { is = "module", model = "mine:mlp", loss = "mine:cross_entropy", data = "mine:points", \
minibatch = 16, metric = "loss" }
algorithm = { is = "AsyncSgd" }
schedule = { is = "Constant", rate = 0.1 }
"""
MINE = """
from torch.nn.functional import cross_entropy
from tests.modules import mlp, points
"""
CLUSTER = """
name = "four"
workers = [{{ count = 4, device = "card" }}]
devices = {{ card = {{ launch_s = 0.01 }} }}
link = {{ latency_s = {latency} }}
"""


@pytest.fixture
def advise(tmp_path, monkeypatch):
    """The command in the user's folder, with few candidates; returns its exit code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    for name, latency in (("four", 1e-4), ("far", 1.0)):
        (tmp_path / f"{name}.toml").write_text(CLUSTER.format(latency=latency), encoding="utf-8")
    few = ["--algorithms", "async", "--workers", "2", "--seeds", "2", "--out", "out"]
    return lambda *words: cli.main(["advise", "run.toml", *few, *words])


def test_the_advice_is_printed_and_written_and_its_runs_are_found_again(
    advise, tmp_path, capsys, monkeypatch
):
    assert advise() == 0
    first = capsys.readouterr()
    told = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    name = first.out.partition(",")[0]
    assert f"{told['workers']} worker" in name
    assert "advise: 2 candidates, at most " in first.err
    stored = {path.name for path in (tmp_path / "out" / "runs").iterdir()}
    assert {name for each in told["provenance"]["runs"].values() for name in each} <= stored
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert told["advice"].split(". ")[0] in page
    assert "<figure" in page
    monkeypatch.setattr("harness.experiment.run.FoldTraining", None)
    assert advise() == 0
    assert capsys.readouterr().out == first.out


@pytest.mark.nightly
def test_where_every_message_takes_a_hundred_steps_one_worker_is_advised(advise, capsys):
    assert advise("--cluster", "far.toml", "--algorithms", "sync") == 0
    told = capsys.readouterr().out
    assert told.startswith("Run 1 worker,")
    assert "more workers gain nothing" in told
    assert "1 passed over by their simulated time" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cluster", "nowhere.toml"), "nowhere.toml"),
        (("--workers", "1"), "no candidate with 1 worker and one with more"),
        (("--intervals", "0"), "--intervals: '0' is not allowed; allowed: whole numbers from 1"),
        (("--machines", "far.toml"), "unknown '--machines' (did you mean '--cluster'?)"),
        (("--algorithms", "asink"), "unknown 'asink'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(advise, words, told, tmp_path, capsys):
    assert advise(*words) == 2
    (line,) = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error")]
    assert told in line
    assert not list(tmp_path.rglob("run.json"))
