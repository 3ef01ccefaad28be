"""A metric of which more is better: what is chosen, and what the identity of a run has of it."""

import pytest
from torch.nn import functional

import lagbench
from harness.base.log import LOG
from harness.judge.bounds import positive_ci, share_ci
from harness.judge.direction import final_error, is_maximised
from harness.modules.evaluation import METRICS
from harness.search.rates import TUNING_SEEDS
from tests.modules import mlp, points


@pytest.fixture
def usual(tmp_path) -> dict:
    few = {"store": tmp_path / "store", "minibatch": 8, "passes": 2, "workers": 2}
    return {"cluster": "k20m-server", "step_seconds": 0.01, **few}


def hits(outputs, targets):
    return (outputs.argmax(1) == targets).double().mean()


@pytest.mark.nightly
def test_the_rate_of_an_accuracy_is_that_with_the_largest_one(usual):
    found = lagbench.train(
        mlp, functional.cross_entropy, points(), seeds=1, metric=hits, maximise=True, **usual
    )

    (cell,) = (row.cell for row in found.rows)
    assert max(cell.tried.values()) != min(cell.tried.values())
    best = min((e for e in cell.tried.values() if len(e) == len(TUNING_SEEDS)), key=sum)
    pairs = zip(cell.tried[cell.rate], best, strict=True)  # of errors, which are negated
    assert any(mine <= least for mine, least in pairs)
    assert all(-1.0 <= error <= 0.0 for errors in cell.tried.values() for error in errors)
    assert not {*TUNING_SEEDS} & {run.config["seed"] for run in found.runs}
    assert final_error(found.runs[0], cell.judged) == -found.runs[0].summary["dev_hits/iterate"]


def test_our_accuracy_is_one_minus_our_error_and_needs_no_word(usual):
    data = points()
    more, less = (
        lagbench.train(mlp, functional.cross_entropy, data, rate=0.1, seeds=1, metric=name, **usual)
        for name in ("accuracy", "error")
    )

    accuracy = more.runs[0].summary["dev_accuracy/iterate"]
    assert accuracy == pytest.approx(1.0 - less.runs[0].summary["dev_error/iterate"], abs=1e-12)
    assert is_maximised(more.runs[0])
    assert not is_maximised(less.runs[0])


def test_the_direction_is_in_the_identity_only_where_it_is_set(usual):
    data = points()
    plain, less, more = (
        lagbench.train(
            mlp, functional.cross_entropy, data, rate=0.1, seeds=1, metric=hits, **usual, **asked
        ).runs[0]
        for asked in ({}, {"maximise": False}, {"maximise": True})
    )

    assert plain.hash == less.hash != more.hash
    assert "better" not in plain.config["problem"]
    assert more.config["problem"]["better"] == "more"


def named(name):
    def metric(outputs, targets):
        return (outputs.argmax(1) != targets).double().mean() / 10

    metric.__name__ = name
    return metric


def test_a_name_says_nothing_of_the_range_or_direction_of_a_metric(usual, caplog):
    """A line says the direction that a metric has without `maximise`."""
    rows, data = [], points()
    LOG.addHandler(caplog.handler)
    for name in ("error", "accuracy", "frame_error", "dev_error"):
        declared = {"maximise": False} if name in METRICS else {}
        settings = {"rate": 0.1, "seeds": 2, "metric": named(name), **usual, **declared}
        rows += lagbench.train(mlp, functional.cross_entropy, data, **settings).rows
        line = f"metric: less of {name!r} counts as better; for more: maximise=True"
        assert (line in caplog.messages) == (not declared)
    LOG.removeHandler(caplog.handler)

    assert len({(row.error.low, row.error.high) for row in rows}) == 1
    assert not any(row.cell.example_weight for row in rows)


def test_a_share_is_one_because_it_is_declared_one(usual, caplog):
    settings = {"rate": 0.1, "seeds": 2, "metric": named("costs"), "maximise": False, **usual}
    data = points()
    share, other = (
        lagbench.train(mlp, functional.cross_entropy, data, share=is_share, **settings).rows[0]
        for is_share in (True, None)
    )

    values = [run.summary["dev_costs/iterate"] for run in share.cell.runs]
    assert share.error == share_ci(values) != other.error == positive_ci(values)
    assert not [line for line in caplog.messages if "maximise" in line]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"maximise": "yes"}, "^maximise: 'yes' is not allowed"),
        ({"maximise": True, "metric": "loss"}, "maximise: training makes the loss less"),
        ({"metric": ["error", named("error")]}, "metric: two named 'error'; allowed: any other"),
        ({"metric": [named("loss")]}, "metric: a function named 'loss'; allowed: any other"),
        ({"metric": named("accuracy")}, "metric: a function named 'accuracy', as one of ours; al"),
        ({"metric": [named("mse"), "error"]}, "metric: a function named 'mse', as one of ours"),
        ({"share": 1}, "^share: 1 is not allowed"),
    ],
)
def test_a_wrong_direction_is_one_line(asked, told, usual):
    with pytest.raises(lagbench.UserError, match=told):
        lagbench.train(mlp, functional.cross_entropy, points(), rate=0.1, seeds=1, **usual, **asked)
