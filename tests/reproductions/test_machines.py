"""Scans of machines: rates against closed forms, and what is judged over the allowed ones."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from harness.base.settings import load_spec
from harness.judge.claims import rule_near
from harness.simulator.cluster import Jitter, Workload, load_cluster
from harness.simulator.costs import compute_seconds, copy_seconds, fold_seconds
from harness.simulator.protocols.parameter_server import ParameterServer
from reproductions.machine_scan import Machines, minibatches_per_s, simulate
from reproductions.machines import describe_allowed, is_allowed, judge_machines, machine_rows
from reproductions.paper1_async_asgd import machines as paper1
from reproductions.paper1_async_asgd.experiments import CLUSTER as K20M
from reproductions.paper1_async_asgd.experiments import REPORTED
from reproductions.paper3_async_mmi import machines as paper3
from reproductions.paper3_async_mmi.experiments import CLUSTER as DISTBELIEF

SERVER = replace(load_cluster(K20M), jitter=Jitter())
JOB = Workload.of_network(REPORTED["paper"]["layers"], 256)
RUN = {"sharing": 0.0, "minibatch": 256.0, "every": 1.0, "search": 0.0}


def per_s(cluster, workers, every=1):
    protocol = ParameterServer(push_every=every, fetch_every=every)
    return minibatches_per_s(simulate(cluster, protocol, JOB, workers, 40))


def linked(sharing, rate):
    return replace(SERVER, link=replace(SERVER.link, sharing=sharing, bandwidth_bytes_per_s=rate))


def test_one_worker_takes_two_copies_a_gradient_and_a_fold_and_four_no_more():
    copy_s, gradient_s = copy_seconds(SERVER, JOB.parameter_bytes), compute_seconds(SERVER, JOB)
    fixed_s = 2 * (copy_s + SERVER.link.latency_s) + fold_seconds(SERVER, JOB)
    assert per_s(SERVER, 1) == pytest.approx(1 / (gradient_s + fixed_s), rel=1e-6)
    assert 3.92 < per_s(SERVER, 4) / per_s(SERVER, 1) < 4 + 1e-9
    assert per_s(SERVER, 1, 4) == pytest.approx(4 / (4 * gradient_s + fixed_s), rel=1e-6)


def test_a_slow_link_of_all_cards_passes_one_copy_a_minibatch_each_way():
    assert per_s(linked("fifo", 3e8), 4) == pytest.approx(3e8 / JOB.parameter_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("machine", "run", "expected"),
    [
        (SERVER, {}, (6.6, 75, 20, 3.99, 1.73)),
        (linked("none", 3e9), {"sharing": 1.0}, (12.3, 90, 16, 3.15, 0.93)),
        (SERVER, {"minibatch": 1500.0}, (6.6, 75, 20, 3.99, 3.15)),
        (SERVER, {"every": 4.0}, (6.6, 75, 20, 3.99, 3.01)),
    ],
)
def test_one_changed_figure_joins_timings_that_the_cluster_file_does_not(machine, run, expected):
    figures = paper1.time_machine(machine, RUN | run)
    assert list(figures.values()) == pytest.approx(expected, rel=0.02)


def test_a_slow_replica_makes_gradients_a_minute_old_and_no_machine_makes_updates_few():
    file, run = load_cluster(DISTBELIEF), {"kept": 0.15, "decode_cost": 2.0, "frames_cv": 0.5}
    slow = {name: replace(d, achieved_flops_per_s=5e9) for name, d in file.devices.items()}
    fast, late, fewer = (
        [*paper3.time_machine(replace(file, devices=devices), run | {"kept": kept}).values()]
        for devices, kept in ((file.devices, 0.15), (slow, 0.15), (slow, 0.07))
    )
    assert fast[1] == pytest.approx(11.4, rel=0.05)
    assert (late[0], late[1]) == pytest.approx((2.0, 98.0), rel=0.1)
    assert fewer[2] < 900 < 1000 < min(fast[2], late[2])


@pytest.mark.parametrize("paper", [paper1, paper3])
def test_every_unprinted_figure_has_a_source_and_every_band_a_place(paper):
    plan = load_spec(Machines, paper.scan_machines(SimpleNamespace(scale="smoke")).plan)
    assert all(figure.source for figure in plan.unprinted)
    assert all(band.where for band in plan.printed)


def scan(**columns):
    """A finished scan of these figures; printed: hours of 14 to 15, and a price below 2."""
    printed = [{"name": "hours", "low": 14, "high": 15}, {"name": "run.price", "low": 0, "high": 2}]
    plan = {"unprinted": [{"key": "run.price"}], "printed": printed}
    config, of = {"count": 4, "plan": plan}, lambda name: (None, np.array(columns[name]), None)
    return SimpleNamespace(hash="scan", config=config, curve=of)


OTHERS = {"hours": [14.0, 14.5, 15.0, 9.0], "run.price": [1.0, 1.0, 3.0, 1.0]}
CASES = [([3.1, 3.2], "holds"), ([3.1, 3.9], "unclear"), ([1.0, 2.0], "fails")]


@pytest.mark.parametrize(("speedups", "answer"), CASES)
def test_a_claim_holds_where_every_allowed_machine_says_so(speedups, answer):
    run = scan(**OTHERS, speedup=[*speedups, 3.2, 3.2])
    assert is_allowed(run).tolist() == [True, True, False, False]
    assert is_allowed(run, "run.price").tolist() == [True, True, True, False]
    assert is_allowed(run, *OTHERS).all()
    quantity, sentence = judge_machines(run, "speedup", 3.2, rule_near(3.2))
    assert (quantity.rule.judge(quantity.value), *quantity.value.ci95) == (answer, *speedups)
    assert "of 2 allowed machines" in sentence
    rows = machine_rows(run, "hours", "speedup", lambda f: "late" if f["hours"] > 14.2 else "")
    assert [(row.column, row.measured) for row in rows] == [(14.5, speedups[1])]


def test_where_no_machine_is_allowed_nothing_is_judged():
    run = scan(hours=[1.0], **{"run.price": [1.0]}, speedup=[3.2])
    quantity, sentence = judge_machines(run, "speedup", 3.2, rule_near(3.2))
    assert quantity.rule.judge(quantity.value) == "unclear"
    assert sentence.startswith("No machine")
    assert describe_allowed(run) == "0 of 1 machines agree with hours, run.price."
