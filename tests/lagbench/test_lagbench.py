"""What `import lagbench` offers."""

from __future__ import annotations

import csv
import json
import math
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import lagbench
from harness.algorithms.async_sgd import AsyncSgd
from harness.execution.jobs.experiment import Experiment
from harness.execution.jobs.rates import TUNING_SEED
from tests.modules import mlp, points

CLUSTER = """
name = "two"
[[workers]]
count = 2
device = "card"
[devices.card]
launch_s = 0.01
"""


class Outside(AsyncSgd):
    """An algorithm that is not of the tree."""


@pytest.fixture
def cluster(tmp_path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


@pytest.fixture
def usual(cluster, tmp_path) -> dict:
    return {"cluster": cluster, "store": tmp_path / "store", "minibatch": 8, "passes": 2}


def test_a_comparison_has_a_row_for_each_algorithm_and_number_of_workers(usual, tmp_path, capsys):
    x, y = points()
    result = lagbench.compare(
        mlp,
        functional.cross_entropy,
        (x, y),
        test=(x[:40], y[:40]),
        algorithms=["async", "averaging:4", "sync"],
        workers=[1, 2],
        rates={"async": 0.1, "averaging:4": 0.1, "sync": 0.2},
        seeds=2,
        **usual,
    )
    cells = [(row.cell.method, row.cell.workers) for row in result.rows]
    assert cells == [(name, n) for name in ("async", "averaging:4", "sync") for n in (1, 2)]
    assert all(row.error.estimate < 0.5 and row.test is not None for row in result.rows)
    assert len({run.hash for run in result.runs}) == 12
    files = {path.name: path for path in result.report(tmp_path / "out")}
    rows = list(csv.DictReader(files["table.csv"].open(encoding="utf-8")))
    assert float(rows[1]["error"]) == result.rows[1].error.estimate
    told = json.loads(files["results.json"].read_text(encoding="utf-8"))
    assert told["provenance"]["runs"]["async, 1"] == [r.hash for r in result.rows[0].cell.runs]
    assert files["comparison.svg"].stat().st_size > 1000
    assert "| sync | 2 | 0.2 |" in files["report.md"].read_text(encoding="utf-8")
    assert "simulated" in str(result)


def test_the_same_call_again_trains_nothing_and_says_the_same(usual, monkeypatch):
    def asked() -> lagbench.Result:
        x, y = points()
        loss = functional.cross_entropy
        return lagbench.train(mlp, loss, (x, y), rate=0.1, seeds=1, workers=2, **usual)

    first = asked()
    monkeypatch.setattr("harness.execution.training.modules.FrameTraining", None)
    assert str(asked()) == str(first)
    run = lagbench.load(first.runs[0].dir)
    assert run.summary == first.runs[0].summary


def test_a_swept_rate_is_chosen_with_a_seed_that_is_not_reported(usual):
    x, y = points()
    loss = functional.cross_entropy
    result = lagbench.compare(
        mlp, loss, (x, y), algorithms=["async"], workers=[1], seeds=1, **usual
    )
    folder = result.runs[0].dir.parent
    seeds = [json.loads((each / "config.json").read_text())["seed"] for each in folder.iterdir()]
    assert seeds.count(0) == 1
    assert set(seeds) == {0, TUNING_SEED}
    assert len(seeds) >= 4
    assert result.runs[0].config["seed"] == 0


@pytest.mark.parametrize("changed", ["model", "loss", "data", "seed"])
def test_another_model_loss_or_data_is_another_run(changed, usual):
    def run(model, loss, data, seed) -> str:
        found = lagbench.train(model, loss, data, rate=0.1, seeds=[seed], passes=1, **small)
        return found.runs[0].hash

    small = {name: value for name, value in usual.items() if name != "passes"}
    x, y = points(80)
    torch.manual_seed(0)
    given = {"model": mlp(), "loss": functional.cross_entropy, "data": (x, y), "seed": 0}
    others = {
        "model": mlp(),
        "loss": nn.CrossEntropyLoss(label_smoothing=0.1),
        "data": (x + 1e-6, y),
        "seed": 1,
    }
    assert run(**given) == run(**given)
    assert run(**{**given, changed: others[changed]}) != run(**given)


def test_data_may_be_a_function_of_the_seed(usual):
    def drawn(seed: int):
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(6, generator=generator), seed % 3) for _ in range(60)]

    found = lagbench.train(mlp, functional.cross_entropy, drawn, rate=0.01, seeds=2, **usual)
    data = [run.config["problem"]["data"]["train"] for run in found.runs]
    assert data[0] != data[1]


@pytest.mark.parametrize("seconds", ["measure", "count", 0.25])
def test_a_step_costs_what_is_measured_counted_or_said(seconds, usual, cluster):
    cluster.write_text(CLUSTER + "achieved_flops_per_s = 1e9\n", encoding="utf-8")
    x, y = points()
    found = lagbench.train(
        mlp, functional.cross_entropy, (x, y), rate=0.1, seeds=1, step_seconds=seconds, **usual
    )
    run = found.runs[0]
    each = run.summary["virtual_s"] / run.summary["folds"]
    if seconds == "count":  # 6 P of the weights, less what the inputs' derivatives would cost
        weights = 6 * 12 + 12 * 12 + 12 * 3
        assert each == pytest.approx(0.01 + 8 * (6 * weights - 2 * 72) / 1e9)
    elif seconds == "measure":
        assert each > 0.01
        again = lagbench.train(mlp, functional.cross_entropy, (x, y), rate=0.1, seeds=1, **usual)
        assert again.runs[0].hash == run.hash
    else:
        assert each == pytest.approx(0.25)


def test_metrics_go_by_name_and_the_first_one_judges(usual):
    x, _ = points()
    y = x[:, :3].clone()

    def worst(outputs, targets):
        return (outputs - targets).abs().max()

    found = lagbench.train(
        mlp, functional.mse_loss, (x, y), rate=0.01, seeds=1, metric=["mae", worst], **usual
    )
    assert found.table.judged == "dev_mae"
    assert {"dev_mae/iterate", "dev_worst/iterate", "dev_loss/iterate"} <= set(
        found.runs[0].summary
    )


def test_timing_alone_needs_no_model():
    timeline = lagbench.simulate("k20m-server", workers=4, folds=100)
    assert len(timeline.folds) == 100
    assert timeline.staleness()[10:].mean() == 3.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"minibtach": 3}, "unknown 'minibtach' .did you mean 'minibatch'"),
        ({"algorithm": "asink"}, "algorithm: unknown 'asink'"),
        ({"algorithm": "averaging:x"}, "allowed after the colon"),
        ({"cluster": "nowhere.toml"}, "nowhere.toml: cannot read"),
        ({"metric": "eror"}, "metric: unknown 'eror'"),
        ({"dev": 2.0}, "dev: 2.0; allowed: a share"),
        ({"step_seconds": "mesure"}, "step_seconds: 'mesure'"),
        ({"workers": 500, "algorithm": "averaging:4"}, "workers: 500 leave one of them 0 examples"),
        ({"minibatch": 500}, "minibatch: a fold takes a minibatch of 500 examples, which 216 do"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, "running statistics"),
        ({"model": "mlp"}, "model: str; allowed"),
        ({"passes": 0}, "passes: 0; allowed"),
        ({"workers": 1.5}, "workers: .1.5.; allowed"),
        ({"rate": -1.0}, "rate: -1.0; allowed"),
        ({"rate": math.nan}, "rate: nan; allowed"),
        ({"rate": None, "seeds": [100]}, "seeds: 100 is what rates are chosen with"),
        ({"seeds": [1, 1]}, "seeds: .1, 1.; allowed"),
        ({"optimizer": torch.optim.SGD}, "optimizer: .*allowed: 'momentum'"),
        ({"schedule": 0.1}, "schedule: 0.1; allowed"),
        ({"target": "low"}, "target: 'low'; allowed"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(given, told, usual):
    x, y = points()
    asked = {"model": mlp, "rate": 0.1, "seeds": 1, **usual, **given}
    model = asked.pop("model")
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.train(model, functional.cross_entropy, (x, y), **asked)


def test_a_run_that_diverges_is_told_and_not_averaged_away(usual):
    x, y = points()
    found = lagbench.train(mlp, functional.cross_entropy, (x, y), rate=1e38, seeds=2, **usual)
    row = found.rows[0]
    assert (row.diverged, row.error, row.target_s) == (2, None, None)
    assert "2 of 2 diverged" in str(found)
    assert math.isnan(found.table.target)


def test_the_break_point_lies_between_what_was_tolerated_and_what_was_not(usual, tmp_path):
    x, y = points()
    loss = functional.cross_entropy
    found = lagbench.tolerate(
        mlp, loss, (x, y), between=(1, 32), margin=0.5, rate=0.3, seeds=2, halvings=2, **usual
    )
    points_ = {point.value: point for point in found.found.points}
    assert not points_[found.tolerated].broken
    assert points_[found.broken].broken
    assert not any(p.broken for value, p in points_.items() if value < found.tolerated)
    reference = points_[1].errors
    for point in points_.values():
        assert point.broken == (sum(point.errors) > 1.5 * sum(reference))
    files = {path.name: path for path in found.report(tmp_path / "out")}
    told = json.loads(files["results.json"].read_text(encoding="utf-8"))
    assert (told["tolerated"], told["broken"]) == (found.tolerated, found.broken)
    assert "tolerated up to" in files["report.md"].read_text(encoding="utf-8")
    assert files["tolerance.png"].stat().st_size > 1000


def test_the_code_of_an_algorithm_from_outside_is_part_of_the_identity(usual):
    x, y = points(80)

    def run(algorithm) -> dict:
        small = {**usual, "passes": 1}
        found = lagbench.train(
            mlp, functional.cross_entropy, (x, y), algorithm=algorithm, rate=0.1, seeds=1, **small
        )
        return found.runs[0].config

    assert "code" not in run("async")
    assert run(Outside())["code"].keys() == {"algorithm"}


def test_an_optimizer_goes_by_name_and_its_misspelling_in_one_line(usual):
    x, y = points()
    loss = functional.cross_entropy
    found = lagbench.train(
        mlp, loss, (x, y), algorithm="averaging:4", optimizer="adamw", rate=0.01, seeds=1, **usual
    )
    assert found.runs[0].config["algorithm"]["descent"]["is"] == "AdamW"
    with pytest.raises(lagbench.UserError, match="optimizer: unknown 'adam'"):
        lagbench.train(mlp, loss, (x, y), optimizer="adam", rate=0.01, **usual)


def test_what_a_user_may_not_expect_is_said_in_one_line_each(usual, capsys):
    loss = nn.CrossEntropyLoss(reduction="sum")
    small = {**usual, "passes": 1}
    lagbench.train(mlp, loss, points(80), optimizer="ngsgd", rate=0.01, seeds=1, **small)
    said = capsys.readouterr().err
    assert "loss: summed over a minibatch; what is reported of it is the mean over examples" in said
    assert "natural gradient of 3 layers, plain steps for 1.weight, 1.bias\n" in said


def test_lists_and_rates_of_a_comparison_are_looked_at_first(usual):
    asked = (mlp, functional.cross_entropy, points())
    for given, told in [
        ({"algorithms": "async"}, "algorithms: 'async'; allowed: a list"),
        ({"workers": 4}, "workers: 4; allowed: a list"),
        ({"algorithms": ["async", "sync"], "rates": {"sync": 0.1}}, "rates: none for async"),
        ({"algorithms": ["sync", "sync"]}, "algorithms: 'sync' more than once"),
    ]:
        with pytest.raises(lagbench.UserError, match=told):
            lagbench.compare(*asked, **{"workers": [1], **given, **usual})


@pytest.mark.parametrize("between", [(4, 1), (1.5, 8), (1, math.inf)])
def test_the_ends_of_a_search_are_looked_at_before_anything_is_trained(between, usual):
    with pytest.raises(lagbench.UserError, match="tolerate: from"):
        lagbench.tolerate(mlp, functional.cross_entropy, points(), between=between, **usual)
    assert not list(usual["store"].glob("*"))


def test_a_metric_never_spreads_outputs_and_targets_over_each_other(usual):
    x, y = points()
    one = nn.Linear(x.shape[1], 1)

    def loss(outputs, targets):
        return (outputs.squeeze(1) - targets).square().mean()

    for target, metric in ((y, None), (y.float(), "mse"), (y.float(), "mae")):
        with pytest.raises(lagbench.UserError, match=r"metric: .*outputs .* for targets"):
            lagbench.train(one, loss, (x, target), metric=metric, rate=0.1, seeds=1, **usual)


@pytest.mark.parametrize("asked", [lagbench.train, lagbench.compare, lagbench.tolerate])
def test_ctrl_c_ends_a_call_in_a_short_traceback_that_says_where_the_work_is(
    asked, usual, monkeypatch
):
    def interrupted(*_, **__):
        try:
            raise ValueError  # whatever was handled just then
        except ValueError:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(Experiment, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        asked(mlp, functional.cross_entropy, points(), **usual)
    lines = "".join(traceback.format_exception(stopped.value)).splitlines()
    assert len(lines) <= 12
    assert lines[-1].endswith(f"what is done is in {str(usual['store'])!r}, the same call goes on")


def test_a_loss_that_keeps_what_it_is_given_is_refused_before_anything_is_trained(usual):
    kept = []

    def loss(outputs, targets):
        kept.append(targets.clone())
        return functional.cross_entropy(outputs, targets)

    with pytest.raises(lagbench.UserError, match="loss: Tensor in it: it is of a call"):
        lagbench.train(mlp, loss, points(), rate=0.1, seeds=1, **usual)
    assert not list(usual["store"].glob("*"))
