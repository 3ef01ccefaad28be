"""Predictions of outer loops: by hand, and the published ones again."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.base.errors import UserError
from harness.base.settings import load_spec
from harness.cli import main
from harness.simulator.network import Shaping
from reproductions.predictions.outer_loops import (
    COLUMNS,
    OuterLoop,
    OuterLoops,
    format_row,
    predict_steps,
)
from reproductions.predictions.uncertain import Uncertain, draws

ROOT = Path(__file__).parents[2]
PLANS, PUBLISHED = ROOT / "reproductions/predictions", ROOT / "reports/published/predictions"
PLAN = """
is = "OuterLoops"
cluster = "cluster.toml"
bandwidths_bits_per_s = [8.0, 80.0]
steps = 8
discarded_steps = 4
draws = 3
[[algorithms]]
name = "DiLoCo"
every = [1, 4]
"""
CLUSTER = """
name = "two"
workers = [{ count = 2, device = "unit" }]
devices.unit.achieved_flops_per_s = 1.0
[[network.levels]]
[workload]
minibatch_frames = 1
flops_per_frame = 1.0
parameter_bytes = 5.0
"""


@pytest.fixture
def plan(tmp_path):
    def write(more="", cluster=CLUSTER):
        (tmp_path / "cluster.toml").write_text(cluster)
        path = tmp_path / "plan.toml"
        path.write_text(PLAN + more)
        return path

    return write


def published(name):
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(file))


def test_a_step_is_computing_and_its_part_of_a_ring(plan):
    """Two workers send the five bytes once: 5 s at 8 bits a second."""
    path = plan()
    cells = list(predict_steps(load_spec(OuterLoops, path), path))
    assert [(cell.every, cell.bandwidth_bits_per_s) for cell in cells] == [
        *((1, 8.0), (1, 80.0), (4, 8.0), (4, 80.0))
    ]
    seconds = [6.0, 1.5, 1.0 + 5 / 4, 1.0 + 0.5 / 4]
    assert [cell.ms_per_step for cell in cells] == pytest.approx([1e3 * s for s in seconds])
    assert [cell.computing_share for cell in cells] == pytest.approx([1 / s for s in seconds])
    assert all(cell.ms_low == pytest.approx(cell.ms_high) for cell in cells)


def test_messages_get_less_than_the_limit_of_a_shaper(plan):
    """Half of 8 bits a second is payload; of 80 a fifth is left unused besides."""
    shaped = "[network.levels.shaping]\npayload = 0.5\n"
    shaped += "limits_bytes_per_s = [1.0, 10.0]\nunused = [0.0, 0.2]\n[workload]"
    path = plan(cluster=CLUSTER.replace("[workload]", shaped))
    cells = list(predict_steps(load_spec(OuterLoops, path), path))
    seconds = [1 + 10, 1 + 1 / 0.8, 1 + 10 / 4, 1 + 1 / 0.8 / 4]
    assert [cell.ms_per_step for cell in cells] == pytest.approx([1e3 * s for s in seconds])


def test_a_broadcast_before_each_synchronisation_takes_its_bytes_and_latencies(plan):
    path = plan(
        "broadcast_bytes = 3.0\n", CLUSTER.replace("levels]]", "levels]]\nlatency_s = 0.25")
    )
    cells = list(predict_steps(load_spec(OuterLoops, path), path))
    without = list(predict_steps(load_spec(OuterLoops, plan()), path))
    more = [c.ms_per_step - w.ms_per_step for c, w in zip(cells, without, strict=True)]
    # Both rounds of the ring of two have a latency too.
    seconds = [3 + 0.75, 0.3 + 0.75, (3 + 0.75) / 4, (0.3 + 0.75) / 4]
    assert more == pytest.approx([1e3 * s for s in seconds])


@pytest.mark.parametrize(
    ("limits", "unused", "said"),
    [((2.0, 1.0), (0.1, 0.2), "ascending"), ((1.0, 2.0), (0.1,), "1 values; allowed: 2")],
)
def test_a_shaping_that_is_no_function_of_the_limit_is_refused(limits, unused, said):
    with pytest.raises(UserError, match=said):
        Shaping(1.0, limits, unused)


def test_an_uncertain_bandwidth_gives_its_own_quantiles(plan):
    factor = (
        '[[uncertain]]\nkey = "network.levels[0].bandwidth_bytes_per_s"\n'
        'law = "uniform"\nlow = 0.5\nhigh = 1.0\nfactor = true\n'
    )
    path = plan(factor)
    cell = next(predict_steps(replace(load_spec(OuterLoops, path), draws=200), path))
    assert cell.ms_low == pytest.approx(1e3 * (1 + 5 / 0.975), rel=2e-3)
    assert cell.ms_high == pytest.approx(1e3 * (1 + 5 / 0.525), rel=2e-3)
    assert cell.ms_per_step == pytest.approx(1e3 * (1 + 5 * np.log(2) / 0.5), rel=1e-3)


def test_what_a_first_synchronisation_costs_is_counted_unless_it_is_discarded(plan):
    first = '[[uncertain]]\nkey = "parallel.first_average_s"\nlaw = "either"\nlow = 0\nhigh = 4.0\n'
    path = plan(first)
    asked = replace(load_spec(OuterLoops, path), draws=2, discarded_steps=2)
    cells = list(predict_steps(asked, path))
    assert cells[0].ms_per_step == pytest.approx(6000.0)  # discarded
    assert cells[2].ms_per_step == pytest.approx(1e3 * (1 + 5 / 4 + 0.5 * 4 / 8))  # one of two


@pytest.mark.parametrize("law", ["uniform", "log-uniform", "normal", "either"])
def test_draws_have_one_value_in_each_part_of_their_law(law):
    figure = Uncertain("link.latency_s", law, 2.0, 6.0)
    values = np.sort(draws([figure, figure], 100, 3)[:, 0])
    laws = {
        "uniform": stats.uniform(2.0, 4.0),
        "log-uniform": stats.loguniform(2.0, 6.0),
        "normal": stats.norm(4.0, 2.0 / stats.norm.ppf(0.95)),
        "either": stats.rv_discrete(values=([2, 6], [0.5, 0.5])),
    }
    assert values == pytest.approx(laws[law].ppf((np.arange(100) + 0.5) / 100))


@pytest.mark.nightly
def test_a_step_without_a_limit_is_predicted_as_it_was_measured():
    """By the page: blocked 128, 132, 320 and 829 ms a synchronisation; a step of 24.55 ms."""
    blocked = {1: 153.9 - 24.55, 8: 132.0, 32: 320.0, 128: 829.0}
    rows = {int(row["H"]): row for row in published("wan-unlimited.csv")}
    for every, blocked_ms in blocked.items():
        measured = 24.55 + blocked_ms / every
        assert float(rows[every]["ms_low"]) < measured < float(rows[every]["ms_high"])


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("name", "algorithm", "every", "bandwidth"),
    [
        ("wan-unlimited", "DiLoCo", 32, 22.575e9), ("wan", "DiLoCo", 8, 5e9),
        ("wan", "DiLoCo", 128, 50e6), ("wan", "LocalSGD", 32, 1e9), ("wan", "DDP", 1, 5e9),
        ("wan-mended", "LocalSGD", 128, 200e6), ("wan-mended", "DDP", 1, 5e9),
    ],
)  # fmt: skip
def test_a_published_prediction_comes_out_again(name, algorithm, every, bandwidth):
    """A row does not depend on the others, so some of them are asked for alone."""
    path = PLANS / f"{name}.toml"
    plan = load_spec(OuterLoops, path)
    loops = tuple(
        replace(loop, every=(every,) if loop.name == algorithm else ()) for loop in plan.algorithms
    )
    asked = replace(plan, algorithms=loops, bandwidths_bits_per_s=(bandwidth,))
    (row,) = (
        dict(zip(COLUMNS, format_row(cell), strict=True)) for cell in predict_steps(asked, path)
    )
    assert row in published(f"{name}.csv")


def test_all_cells_of_the_table_are_published():
    rows = [[row[name] for name in COLUMNS[:3]] for row in published("wan.csv")]
    bandwidths = ["50000000", "200000000", "1000000000", "5000000000"]
    loops = [[name, h] for name in ("DiLoCo", "LocalSGD") for h in ("1", "8", "32", "128")]
    assert rows == [[*loop, b] for loop in [*loops, ["DDP", "1"]] for b in bandwidths]


def test_the_command_writes_the_table_the_same_each_time(plan, tmp_path, capsys):
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for out in files:
        assert main(["predict", str(plan()), "--out", str(out)]) == 0
        assert capsys.readouterr().out == out.read_text()
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_text().splitlines()[:2] == [
        "algorithm,H,bandwidth_bits_per_s,ms_per_step,ms_low,ms_high,computing_share",
        "DiLoCo,1,8,6000,6000,6000,0.1667",
    ]


EITHER = '[[uncertain]]\nlaw = "either"\nlow = 0\nhigh = 1\n'


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (f'{EITHER}key = "a..b"', "is not a key"),
        (f'{EITHER.replace("low = 0", "low = 2")}key = "a"', "at least low"),
        (f'{EITHER}key = "lnk.x"', "did you mean"),
        (f'{EITHER}key = "name"\nfactor = true', "is not a number"),
        ('[[algorithms]]\nname = "slow"\nevery = [9]', "every 9 steps"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(plan, capsys, more, said):
    assert main(["predict", str(plan(more))]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert said in errors[0]


def test_options_of_a_run_are_refused_with_outer_loops(plan, capsys):
    assert main(["predict", str(plan()), "--workers", "3"]) == 2
    assert "--workers" in capsys.readouterr().err
    path = plan(cluster=CLUSTER.split("[workload]")[0])
    with pytest.raises(UserError, match="workload: missing"):
        list(predict_steps(load_spec(OuterLoops, path), path))
    with pytest.raises(UserError, match="every"):
        OuterLoop("DDP", (0,))
