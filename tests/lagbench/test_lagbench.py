"""What `import lagbench` offers."""

import csv
import json
import math
import threading
import tomllib
import traceback
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lagbench
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.compression import Compressed, PowerSgd, TopK
from harness.base.errors import ProcessDied
from harness.experiment.methods import method_of
from harness.search.comparison import Grid
from harness.search.rates import TUNING_SEEDS
from harness.store import Store
from tests.lagbench.conftest import CLUSTER
from tests.modules import mlp, points


class Outside(AsyncSgd):
    """An algorithm that is not of the tree."""


@pytest.fixture
def usual(cluster, tmp_path) -> dict:
    return {"cluster": cluster, "store": tmp_path / "store", "minibatch": 8, "passes": 2}


def test_a_comparison_has_a_row_for_each_algorithm_and_number_of_workers(usual, tmp_path, capsys):
    x, y = points()
    result = lagbench.compare(
        mlp, functional.cross_entropy, (x, y), test=(x[:40], y[:40]),
        algorithms=["async", "averaging:4", "sync"], workers=[1, 2],
        rates={"async": 0.1, "averaging:4": 0.1, "sync": 0.2}, seeds=2, **usual,
    )  # fmt: skip
    cells = [(row.cell.method, row.cell.workers) for row in result.rows]
    assert cells == [(name, n) for name in ("async", "averaging:4", "sync") for n in (1, 2)]
    assert all(row.error.estimate < 0.5 and row.test is not None for row in result.rows)
    assert len({run.hash for run in result.runs}) == 12
    files = {path.name: path for path in result.report(tmp_path / "out")}
    rows = list(csv.DictReader(files["table.csv"].open(encoding="utf-8")))
    assert float(rows[1]["error"]) == result.rows[1].error.estimate
    told = json.loads(files["results.json"].read_text(encoding="utf-8"))
    assert told["provenance"]["runs"]["async, 1"] == [r.hash for r in result.rows[0].cell.runs]
    assert files["curves.svg"].stat().st_size > 1000
    assert ">sync<" in files["index.html"].read_text(encoding="utf-8")
    assert "simulated" in str(result)


def test_the_same_call_again_trains_nothing_and_says_the_same(usual, monkeypatch):
    def asked() -> lagbench.Result:
        x, y = points()
        loss = functional.cross_entropy
        return lagbench.train(mlp, loss, (x, y), rate=0.1, seeds=1, workers=2, **usual)

    first = asked()
    monkeypatch.setattr("harness.experiment.run.FoldTraining", None)
    assert str(asked()) == str(first)
    run = lagbench.load(first.runs[0].dir)
    assert run.summary == first.runs[0].summary


def test_a_swept_rate_is_chosen_with_seeds_that_are_not_reported(usual, capsys, monkeypatch):
    monkeypatch.setattr("harness.experiment.display.PLAIN_EVERY_S", 0.0)
    x, y = points()
    loss = functional.cross_entropy
    result = lagbench.compare(
        mlp, loss, (x, y), algorithms=["async"], workers=[1], seeds=1, **usual
    )
    folder = result.runs[0].dir.parent
    seeds = [json.loads((each / "config.json").read_text())["seed"] for each in folder.iterdir()]
    assert seeds.count(0) == 1
    assert set(seeds) == {0, *TUNING_SEEDS}
    assert result.runs[0].config["seed"] == 0
    tried = result.rows[0].cell.tried
    assert sum(map(len, tried.values())) == len(seeds) - 1
    assert result.rows[0].rate in tried
    assert "'schedule'" not in repr(result.rows)
    lines = capsys.readouterr().err
    assert "then 1 seed each: at most 29 trainings, mostly about 9;" in lines
    assert f"\n[training {len(seeds)} of at most {len(seeds)}" in lines


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


def test_the_training_loss_of_a_reading_is_that_of_its_folds(usual):
    usual |= {"cluster": lagbench.Cluster.of(4, step_s=0.1, step_cv=0.3), "metrics": "loss"}
    constant = lambda outputs, _: 0.0 * outputs.mean() + 1.5  # noqa: E731
    result = lagbench.train(mlp, constant, points(), rate=0.1, evaluations=7, workers=4, **usual)
    assert result.runs[0].curve("train_loss")[1].tolist() == [1.5] * 14


def test_model_and_data_may_be_functions_of_the_seed(usual):
    seeds = set()

    def drawn(seed: int):
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(6, generator=generator), seed % 3) for _ in range(60)]

    def made(seed):
        return seeds.add(seed) or mlp()

    found = lagbench.train(made, functional.cross_entropy, drawn, rate=0.01, seeds=2, **usual)
    assert seeds == {0, 1}
    data = [run.config["problem"]["data"]["train"] for run in found.runs]
    assert data[0] != data[1]


@pytest.mark.parametrize("seconds", ["count", 0.25])
def test_a_step_costs_what_is_counted_or_said(seconds, usual, cluster):
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
    else:
        assert each == pytest.approx(0.25)


LINKED = (
    CLUSTER
    + """achieved_flops_per_s = 1e9
[link]
bandwidth_bytes_per_s = 1e6
[workload]
minibatch_frames = 3
flops_per_frame = 1e7
parameter_bytes = 2e4
"""
)


def test_time_is_charged_for_what_is_asked_and_the_answer_says_so(usual, cluster, tmp_path, capsys):
    cluster.write_text(LINKED, encoding="utf-8")
    big = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3))

    def run(model=mlp, **given) -> tuple[float, str]:
        found = lagbench.train(
            model, functional.cross_entropy, points(80), rate=0.1, seeds=1, **given, **usual
        )
        summary = found.runs[0].summary
        return summary["virtual_s"] / summary["folds"], found.to_dict()["charged"]

    run()
    assert "no effect: cluster.workload" in capsys.readouterr().err
    for charged in ("cluster", lagbench.Workload(3, 1e7, 2e4)):
        numbers, said = run(charge_for=charged)
        assert numbers == pytest.approx(0.01 + 3e7 / 1e9 + 2 * 2e4 / 1e6)
        assert "operations and copies of 20 kB" in said
    assert "no effect: cluster.workload" not in capsys.readouterr().err
    timeline = lagbench.simulate(cluster, workers=1, folds=10)
    assert timeline.folds.time_s[-1] / 10 == pytest.approx(numbers)
    assert run(charge_for=big, step_seconds="count")[0] == run(big, step_seconds="count")[0]
    assert "minibatches of 250 ms and copies" in run(step_seconds=0.25)[1]


def test_workers_that_die_before_anything_is_folded_end_the_run(usual, cluster):
    faults = '[[faults]]\nkind = "death"\nmean_s = 1e-4\ndown_s = 0.1\n'
    cluster.write_text(CLUSTER + faults, encoding="utf-8")
    with pytest.raises(
        lagbench.UserError, match=r"faults\[0\]\.mean_s: 0\.0001: .* none was folded"
    ):
        lagbench.train(
            mlp, functional.cross_entropy, points(80), algorithm="averaging:2", rate=0.1, **usual
        )


def test_what_an_algorithm_does_not_send_is_not_charged(usual, cluster):
    cluster.write_text(LINKED, encoding="utf-8")
    kept = Compressed(AsyncSgd(), TopK(0.25))
    factors = Compressed(coder=PowerSgd())  # which add up on their way, as entries do not
    assert [method_of(c).protocol.collective for c in (kept, factors)] == ["gather", "ring"]

    def travelling(algorithm) -> float:
        found = lagbench.train(
            mlp, functional.cross_entropy, points(80), algorithm=algorithm, rate=0.1, seeds=1,
            step_seconds="count", **usual,
        )  # fmt: skip
        return found.runs[0].config["work"]["parameter_bytes"]

    assert travelling(kept) == kept.sent * travelling("async") < travelling("async")


def test_a_loader_s_minibatches_are_not_taken_for_the_workers(usual, capsys):
    x, y = points(80)
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    further = {name: value for name, value in usual.items() if name != "minibatch"}
    found = [
        lagbench.train(mlp, functional.cross_entropy, data, rate=0.1, seeds=1, **further).runs[0]
        for data in (loader, (x, y))
    ]
    assert found[0].hash == found[1].hash
    assert "minibatch is 32, its batch_size 10 (minibatch=10 for" in capsys.readouterr().err
    lagbench.train(mlp, functional.cross_entropy, loader, rate=0.1, seeds=1, **usual)
    assert "DataLoader" not in capsys.readouterr().err


def test_a_comparison_says_where_rows_trained_another_share(usual, tmp_path):
    found = lagbench.compare(
        mlp, functional.cross_entropy, points(90), algorithms=["async", "averaging:4"],
        workers=[2], rates=0.1, seeds=1, **usual,
    )  # fmt: skip
    shares = [row.trained for row in found.rows]
    assert shares == pytest.approx([80 / 81, 11 * 2 * 8 / (2 * 81)])  # of 81, in two passes
    told = "98.8% (async, 2 workers), 108.6% (averaging:4, 2 workers)"
    assert told in str(found)
    files = {path.name: path for path in found.report(tmp_path / "out")}
    assert told in files["index.html"].read_text(encoding="utf-8")
    rows = list(csv.DictReader(files["table.csv"].open(encoding="utf-8")))
    assert [float(row["trained"]) for row in rows] == shares
    assert json.loads(files["results.json"].read_text(encoding="utf-8"))["charged"]


def test_keys_of_the_cluster_without_effect_are_named(usual, cluster, capsys):
    cluster.write_text(f"{CLUSTER}[parallel]\nslowdown = 2.0\n", encoding="utf-8")
    asked = (mlp, functional.cross_entropy, points(80))
    idle = "no effect: cluster.parallel.slowdown\n"
    common = {"seeds": 1, **usual}
    lagbench.train(*asked, rate=0.1, **common)
    assert capsys.readouterr().err.count(idle) == 1
    lagbench.compare(*asked, algorithms=["async", "sync"], workers=[2], rates=0.1, **common)
    assert idle not in capsys.readouterr().err
    lagbench.tolerate(*asked, what="workers", between=(1, 2), rate=0.1, **common)
    assert capsys.readouterr().err.count(idle) == 1
    lagbench.tolerate(*asked, what="staleness", between=(0, 1), rate=0.1, **common)
    assert capsys.readouterr().err.count("no effect: cluster") == 1


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


def test_a_run_that_diverges_is_told_and_not_averaged_away(usual):
    x, y = points()
    found = lagbench.train(mlp, functional.cross_entropy, (x, y), rate=1e38, seeds=2, **usual)
    row = found.rows[0]
    assert (row.diverged, row.error, row.target_s) == (2, None, None)
    assert "2 of 2 diverged" in str(found)
    assert found.table.target is None


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
    assert len(found.runs) == 2 * len(points_)
    assert "the error stays within" in files["index.html"].read_text(encoding="utf-8")
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
    with pytest.raises(lagbench.UserError, match=r"optimizer: unknown 'adm' .*'adam'"):
        lagbench.train(mlp, loss, (x, y), optimizer="adm", rate=0.01, **usual)


def test_what_a_user_may_not_expect_is_said_in_one_line_each(usual, capsys):
    loss = nn.CrossEntropyLoss(reduction="sum")
    small = {**usual, "passes": 1}
    lagbench.train(mlp, loss, points(80), rate=0.01, seeds=1, **small)
    said = capsys.readouterr().err
    assert "loss: summed over a minibatch; what is reported of it is the mean over examples" in said


def test_lists_and_rates_of_a_comparison_are_looked_at_first(usual):
    asked = (mlp, functional.cross_entropy, points())
    for given, told in [
        ({"algorithms": 3}, "algorithm: 3; allowed: a name"),
        ({"workers": 1.5}, "workers: 1.5; allowed: whole numbers"),
        ({"algorithms": ["async", "sync"], "rates": {"sync": 0.1}}, "rates: none for 'async'"),
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

    monkeypatch.setattr(Grid, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        asked(mlp, functional.cross_entropy, points(), **usual)
    lines = "".join(traceback.format_exception(stopped.value)).splitlines()
    assert len(lines) <= 12
    assert f"runs are in {str(usual['store'])!r}, the same call resumes" in lines[-1]


def test_a_killed_process_ends_a_call_as_other_errors_do(usual, monkeypatch):
    lost = ProcessDied("1 of 2 runs lost 4 jobs each, killed")
    monkeypatch.setattr(Grid, "run", Mock(side_effect=lost))
    with pytest.raises(lagbench.UserError, match=r"killed.*the same call resumes") as ended:
        lagbench.train(mlp, functional.cross_entropy, points(), **usual)
    assert len("".join(traceback.format_exception(ended.value)).splitlines()) <= 12


class Undecorated(lagbench.Gradients):
    """An algorithm whose author forgot the decorator."""


def of_size(size):
    return nn.Linear(6, size)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"charge_for": "mlp"}, "charge_for: 'mlp'; allowed: a torch.nn.Module, a Workload, or"),
        ({"charge_for": "cluster"}, "cluster 'two' has no .workload."),
        (
            {"charge_for": lagbench.Workload(3, 1e7, 2e4), "step_seconds": 1.0},
            "step_seconds: 1.0; allowed: without charge_for",
        ),
        ({"minibtach": 3}, "unknown 'minibtach' .did you mean 'minibatch'"),
        ({"algorithm": "asink"}, "algorithm: unknown 'asink'"),
        ({"algorithm": "averaging:x"}, "allowed after the colon"),
        ({"cluster": "nowhere.toml"}, "nowhere.toml: cannot read"),
        ({"step_seconds": "mesure"}, "step_seconds: 'mesure'"),
        ({"minibatch": 500}, "minibatch: a fold takes a minibatch of 500 examples, which 216 do"),
        ({"model": "mlp"}, "model: str; allowed"),
        ({"passes": 0}, "^passes: 0 is not allowed"),
        ({"rate": -1.0}, "rate: -1.0; allowed"),
        ({"rate": math.nan}, "rate: nan; allowed"),
        ({"rate": None, "seeds": [100]}, "seeds: 100 is what rates are chosen with"),
        ({"schedule": 0.1}, "schedule: 0.1; allowed"),
        ({"target": "low"}, "^target: 'low' is not allowed"),
        ({"model": of_size}, r"^model: of_size raised TypeError: of_size\(\) missing 1 required"),
        ({"data": lambda: 1 / 0}, r"^data: .*<lambda> raised ZeroDivisionError"),
        (
            {"algorithm": Undecorated()},
            r"^algorithm: Undecorated is no dataclass; allowed: with @dataclass\(frozen=True\)",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(given, told, usual):
    asked = {"model": mlp, "data": points(), "rate": 0.1, "seeds": 1, **usual, **given}
    model, data = asked.pop("model"), asked.pop("data")
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.train(model, functional.cross_entropy, data, **asked)
    assert not list(usual["store"].glob("*"))


def test_data_may_be_a_function_of_nothing(usual):
    asked = {"rate": 0.1, "seeds": 2, **usual}
    lagbench.train(mlp, functional.cross_entropy, lambda: points(), **asked)
    runs = [path.name for path in usual["store"].iterdir()]
    lagbench.train(mlp, functional.cross_entropy, points(), **asked)
    assert [path.name for path in usual["store"].iterdir()] == runs
    assert len(runs) == 2


class Locked(nn.CrossEntropyLoss):
    """A loss that no other process can be given, and that nothing copies."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_loss_that_cannot_be_sent_trains_in_one_process_and_is_refused_with_two(usual):
    asked = {"rate": 0.1, "seeds": 1, **usual}
    with pytest.raises(lagbench.UserError, match=r"loss: cannot be sent .* allowed: jobs=1"):
        lagbench.train(mlp, Locked(), points(), jobs=2, **asked)
    lagbench.train(mlp, Locked(), points(), **asked)
    assert [run.status for run in Store(usual["store"]).runs()] == ["done"]
    model = mlp()
    model.lock = threading.Lock()
    for jobs in (1, 2):
        with pytest.raises(lagbench.UserError, match=r"model: cannot be (copied|sent).* no lock"):
            lagbench.train(model, functional.cross_entropy, points(), jobs=jobs, **asked)


def test_a_loss_that_has_kept_what_it_was_given_is_the_same_one(usual):
    kept = []

    def loss(outputs, targets):
        kept.append(targets.clone())
        return functional.cross_entropy(outputs, targets)

    # From 16 workers on, whether replicas can be computed at once is tried with `torch.func`.
    asked = {"rate": 0.1, "seeds": 1, **usual, "workers": 16}
    one, two = (lagbench.train(mlp, loss, points(), **asked).runs[0] for _ in range(2))
    assert one.hash == two.hash


def test_the_version_is_that_of_the_project_and_every_name_is_found():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert lagbench.__version__ in (project["project"]["version"], "not installed")
    assert set(lagbench.__all__) < set(dir(lagbench))
    assert all(hasattr(lagbench, name) for name in dir(lagbench))
    with pytest.raises(AttributeError, match="module 'lagbench' has no attribute 'Experimnt'"):
        _ = lagbench.Experimnt
