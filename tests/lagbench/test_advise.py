"""Advice on a real module, on a cluster where two workers pay or do not."""

import json

import pytest
from torch.nn import functional

import lagbench
from harness.judge.comparison import reach
from harness.modules.call import Call
from harness.search.advice import make_plan
from harness.search.rates import TUNING_SEEDS
from tests.modules import mlp, points

CLUSTER = """
name = "four"
[[workers]]
count = 4
device = "card"
[devices.card]
launch_s = 0.01
[link]
latency_s = {latency}
"""


@pytest.fixture
def usual(tmp_path) -> dict:
    return {
        **{"store": tmp_path / "store", "minibatch": 8, "passes": 3, "metric": "loss"},
        **{"evaluations": 4, "intervals": [4], "dev": 0.3, "seeds": 2, "target": 0.6},
    }


def machines(tmp_path, latency):
    path = tmp_path / "four.toml"
    path.write_text(CLUSTER.format(latency=latency), encoding="utf-8")
    return path


def test_advice_names_what_to_run_and_the_runs_say_the_same(usual, tmp_path, capsys):
    asked = (mlp, functional.cross_entropy, points(200))
    found = lagbench.advise(*asked, cluster=machines(tmp_path, 1e-4), workers=[2], **usual)
    best, cell = found.rows[0], found.rows[0].cell
    assert (found.algorithm, found.workers, found.rate) == (cell.method, cell.workers, cell.rate)
    times = [reach(run, cell.judged, found.found.target).seconds for run in cell.runs]
    assert [each.seconds for each in best.reaches] == times
    told = found.to_dict()
    assert {each["algorithm"] for each in told["candidates"]} == {"async", "sync", "averaging:4"}
    said = capsys.readouterr().err
    assert "advise: 4 candidates, at most " in said
    assert str(found).startswith(f"Run {cell.name}")
    assert "; one worker (sync) takes " in str(found)
    assert "<table" in found._repr_html_()
    files = {path.name: path for path in found.report(tmp_path / "out")}
    assert json.loads(files["results.json"].read_text(encoding="utf-8"))["advice"] == told["advice"]
    assert {run.config["seed"] for run in found.runs}.isdisjoint(TUNING_SEEDS)
    before = len([*usual["store"].iterdir()])
    again = lagbench.advise(*asked, cluster=machines(tmp_path, 1e-4), workers=[2], **usual)
    assert str(again) == str(found)
    assert len([*usual["store"].iterdir()]) == before


@pytest.mark.parametrize("names", [["averaging:4", "sync"], ["averaging:4", "averaging:2"]])
def test_one_worker_has_the_smallest_interval_in_whatever_order_algorithms_come(names, tmp_path):
    given = machines(tmp_path, 1e-3), {"store": tmp_path}
    call = Call(mlp, functional.cross_entropy, points(99), *given)
    for order in names, names[::-1]:
        assert make_plan(call.grid(order, [1, 2], None), 0.3, None).reference.name[:-10] == names[1]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"seeds": [101]}, "seeds: 101 is what rates are chosen with"),
        ({"target": 9.0}, "target: 9 is met before training, with"),
    ],
)
def test_a_mistake_that_only_a_program_or_a_training_shows_is_one_line(
    setting, told, usual, tmp_path
):
    asked = {"cluster": machines(tmp_path, 1e-4), "workers": [2], **usual, **setting}
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.advise(mlp, functional.cross_entropy, points(200), **asked)
