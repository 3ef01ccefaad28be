"""Paper 4: its cells, the plans of its hours, and what the folder costs."""

import math
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.base.settings import load_spec
from harness.experiment.run import run as execute
from harness.rollouts.losses import Decoupled, Naive
from harness.store import Store
from reproductions.command import main
from reproductions.paper import NO_CORPUS, Subject, corpus_without_speech
from reproductions.paper4_async_rl.experiments import (
    ETAS,
    FOLDER,
    KEPT,
    LOSSES,
    PLANS,
    RATES,
    cell,
    experiments,
    format_eta,
    hours,
    rate_of,
)
from reproductions.paper4_async_rl.quantities import (
    read_printed_loss,
    read_printed_order,
    read_printed_speed_up,
    speed_up,
)
from reproductions.predictions.allowances import AllowanceConfig, Allowances
from tests.silence import silent

MOST_LINES = 900


@pytest.fixture(scope="module")
def configs():
    subject = Subject("smoke", corpus_without_speech(NO_CORPUS), 0, "cpu")
    return experiments(subject, 0)


def test_the_folder_has_at_most_so_many_lines_of_python():
    lines = sum(len(path.read_text().splitlines()) for path in FOLDER.rglob("*.py"))
    assert lines <= MOST_LINES


def test_a_cell_has_its_loss_and_allowance_and_without_one_the_losses_are_one(configs):
    trained = {cell(loss, eta) for loss in LOSSES for eta in ETAS}
    assert len(trained) == 13
    for eta in ETAS[1:]:
        naive, decoupled = (configs[cell(loss, eta)] for loss in LOSSES)
        assert (naive.task.loss, decoupled.task.loss) == (Naive(), Decoupled())
        assert naive.protocol == decoupled.protocol
        assert naive.protocol.eta == (1e9 if math.isinf(eta) else eta)
        assert naive.schedule.rate == decoupled.schedule.rate == KEPT


def test_a_searched_rate_is_of_a_cell_and_an_equal_one_makes_the_same_run(configs):
    known = {(loss, format_eta(eta)) for loss in LOSSES for eta in ETAS}
    assert all((loss, eta) in known for loss, found in RATES.items() for eta in found)
    for loss in LOSSES:
        for eta in ETAS:
            kept, own = (configs[cell(loss, eta, searched)] for searched in (False, True))
            assert own.schedule.rate == rate_of(loss, eta, True)
            same = identity(kept.to_dict()) == identity(own.to_dict())
            assert same == (own.schedule.rate == KEPT)


def test_printed_figures_as_shares_and_ratios():
    lost = [round(read_printed_loss("naive", eta), 2) for eta in ETAS[1:]]
    assert lost == [0.02, 0.16, 1.47, 0.5, 0.49, 0.63]
    assert round(read_printed_loss("decoupled", math.inf), 2) == 0.40
    assert [round(read_printed_speed_up(plan), 2) for plan in PLANS] == [2.77, 2.27]
    assert -1.0 < read_printed_order("naive") < 0.0  # the column is not monotone


def test_a_plan_of_hours_has_the_synchronous_figure_alone_and_draws_around_it(tmp_path):
    for name, path in PLANS.items():
        plan = load_spec(Allowances, FOLDER / path)
        given = plan.synchronous_s / plan.updates * 1000 / 3600
        assert given == pytest.approx({"1.5": 41.0, "7 B": 57.7}[name[:3]])
        assert plan.generators / plan.shared == 0.75
    text = (FOLDER / PLANS["1.5 B, 16 nodes"]).read_text()
    small = tmp_path / "plan.toml"
    small.write_text(
        text.replace("batch = 128", "batch = 4").replace("updates = 10", "updates = 4")
    )
    run = execute(AllowanceConfig(small, 3, 0), Store(tmp_path), silent)
    found = speed_up({hours("1.5 B, 16 nodes"): [run]}, "1.5 B, 16 nodes")
    assert 0.0 < found.low <= found.estimate <= found.high < 4.0


def test_engines_that_share_both_parts_take_longer_to_train_when_most_generate(tmp_path):
    # without generation's scatter: one generates for 0.75 s, then four times 0.25 s of training
    text = """
is = "Allowances"
synchronous_s = 1.0
updates = 40
generators = 3
shared = 4
allowances = [1]
draws = 1
rollouts = { batch = 12, group = 1, slots = 64, tokens_cv = 0.0 }
shares = { generation = 0.75, reading = 0.001 }
"""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    run = execute(AllowanceConfig(path, 1, 0), Store(tmp_path / "store"), silent)
    # both parts take a second now, side by side, but for the first batch's generation
    assert run.summary["seconds/1"] == pytest.approx(1.0, rel=0.05)
    path.write_text(text.replace("shared = 4", "shared = 3"))
    with pytest.raises(UserError, match="shared: 3 is not allowed; allowed: more than the 3"):
        load_spec(Allowances, path)


def test_a_paper_without_a_corpus_takes_none(capsys, tmp_path):
    out = Path(tmp_path) / "out"
    assert main(["paper4", "--scale", "smoke", "--corpus", "parametric", "--out", str(out)]) == 2
    assert "paper4 needs no corpus" in capsys.readouterr().err
    assert not out.exists()
