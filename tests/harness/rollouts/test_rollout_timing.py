"""The protocol as a whole: reproducible, saved, restored, refused, shown on the command line."""

import json

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.base.reads import Reads, watch
from harness.cli import main
from harness.rollouts.protocol import PUBLICATIONS, RULES, Rollouts
from harness.rollouts.records import TRAINED, rollout_rows
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from harness.simulator.timeline_file import load_timeline, save_timeline
from tests.harness.rollouts.test_event_loop import WORKLOAD, advance, answer, cluster_of, simulate

SMALL = {"slots": 4, "group": 2, "batch": 3, "tokens": 20.0, "reward_s": 1.0, "reward_cv": 3.0}
CLUSTER = """
name = "two generators"
workers = [{ count = 2, device = "card" }]
devices.card.achieved_flops_per_s = 1e12
workload = { minibatch_frames = 1, flops_per_frame = 1.0, parameter_bytes = 0.0 }
"""


def run(seed=0, generators=3, **settings):
    """A simulation with drawn lengths."""
    protocol = Rollouts(**{**SMALL, **settings})
    return Simulation(cluster_of(generators), protocol, WORKLOAD, generators, seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("publish", PUBLICATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_segments_and_restored_states_make_the_same_bytes(rule, publish):
    settings = {"rule": rule, "publish": publish, "eta": 1, "environment_s": 2.0}
    whole = run(**settings).advance(folds=40)
    assert " rollouts/s, " in str(whole)
    assert run(**settings).advance(folds=40).sha256() == whole.sha256()
    assert run(seed=1, **settings).advance(folds=40).sha256() != whole.sha256()
    first = run(**settings)
    parts = [first.advance(folds=11), first.advance(seconds=1.0)]
    second = run(**settings).with_state(first.state())
    parts += [second.advance(folds=20)]
    parts += [second.advance(folds=40 - second.version)]
    assert concat(parts).sha256() == whole.sha256()


def test_a_state_with_open_questions_is_restored():
    settings = {"rule": "discard", "publish": "in-flight", "eta": 1, "slots": 2, "length_scale": 3}
    settings |= {"group": 2, "batch": 3}
    whole = advance(simulate(settings, 2), 30)
    first = simulate(settings, 2)
    parts = [advance(first, 10)]
    parts += [first.advance(folds=5)]
    assert len(first.asked().rollout)
    second = simulate(settings, 2).with_state(first.state())
    asked = first.asked()._asdict()
    assert all(np.array_equal(asked[name], it) for name, it in second.asked()._asdict().items())
    answer(second)
    parts += [advance(second, 30 - second.version)]
    assert concat(parts).sha256() == whole.sha256()


def test_a_question_is_answered_once_and_with_more_than_is_kept():
    simulation = simulate({"slots": 2, "group": 2, "batch": 2}, 1)
    simulation.advance(folds=1)
    asked = simulation.asked()
    assert asked.rollout.tolist() == [0, 1]
    assert asked.kept.tolist() == [0, 0]
    wrong = {"one token more": ([0, 1], [1, 0]), "once": ([0, 0], [1, 1]), "asked for": ([5], [1])}
    for told, (who, values) in wrong.items():
        with pytest.raises(ValueError, match=told):
            simulation.answer(np.array(who), np.array(values))
    simulation.answer(asked.rollout, np.array([2, 3]))
    assert not len(simulation.asked().rollout)
    with pytest.raises(ValueError, match="once"):
        simulation.answer(np.array([0]), np.array([4]))


def test_a_saved_timeline_keeps_the_tables_of_the_protocol(tmp_path):
    timeline = run(rule="discard", publish="in-flight").advance(folds=30)
    sha256 = save_timeline(timeline, tmp_path / "t.parquet")
    loaded = load_timeline(tmp_path / "t.parquet")
    assert sha256 == loaded.sha256() == timeline.sha256()
    for table in ("rollouts", "tokens"):
        found = loaded.own[table].columns()
        for name, column in timeline.own[table].columns().items():
            assert np.array_equal(found[name], column, equal_nan=True), name


IDLE = {
    "eta": 3.0, "room": 9, "recompute": False, "prefill_s": 0.5, "prompt_tokens": 7,
    "tokens_law": "gamma", "tokens_cv": 2.0, "reward_law": "gamma", "reward_cv": 2.0,
    "environment_law": "gamma", "environment_cv": 2.0,
}  # fmt: skip
BASES = (
    {"rule": "one-step"},
    {"rule": "discard", "publish": "in-flight", "prefill_s": 0.01, "room": 3, "eta": 1.0},
    {"rule": "admission", "publish": "in-flight", "tokens_cv": 0.0, "recompute": False},
    {"rule": "window", "prefill_s": 0.1, "prompt_tokens": 3, "reward_s": 3.0, "room": 2},
    {"rule": "backpressure", "tokens_law": "constant", "environment_s": 9.0},
)


@pytest.mark.parametrize("base", BASES, ids=lambda base: base["rule"])
def test_a_setting_that_is_not_read_has_no_effect(base):
    usual = {"slots": 3, "group": 2, "batch": 3, "tokens": 20.0, "decode_s": 1.0, "train_s": 40.0}
    usual |= base

    def time_it(**changes):
        with watch(Reads(Rollouts(**usual | changes))) as reads:
            simulation = Simulation(cluster_of(2), reads.root, WORKLOAD)
            return simulation.advance(folds=12).sha256(), reads.unread()

    before, _ = time_it()
    unread = {name for name, value in IDLE.items() if name in time_it(**{name: value})[1]}
    assert unread
    for name in unread:
        assert time_it(**{name: IDLE[name]})[0] == before, name


def test_draining_begins_no_more_than_it_trains_on():
    simulation = run(rule="discard", eta=1)
    simulation.advance(folds=20)
    timeline = simulation.advance(folds=15, drain=True)
    assert simulation.drained
    assert len(timeline.folds) == 15
    assert not len(timeline.in_flight())
    simulation.advance(seconds=30.0, drain=True)
    assert simulation.drained
    assert len(simulation.advance(folds=5).folds) == 5


def test_a_prompt_that_was_thrown_away_comes_back():
    timeline = run(rule="discard", eta=0, tokens_cv=2.0).advance(folds=60)
    rows = rollout_rows(timeline)
    trained, gone = rows.where(rows.fate == TRAINED), rows.where(rows.fate != TRAINED)
    back = np.intersect1d(trained.prompt[trained.attempt > 0], gone.prompt)
    assert len(back) > 5
    kept = np.unique(trained.group, return_index=True)[1]
    assert len(np.unique(trained.prompt[kept])) == len(kept)  # each is trained on once


def test_lengths_do_not_depend_on_the_rule():
    """By prompt, member and attempt, so that rules are compared on the same rollouts."""
    lengths = []
    for rule in ("admission", "backpressure"):
        rows = rollout_rows(run(rule=rule).advance(folds=30))
        names = zip(rows.prompt.tolist(), rows.member.tolist(), strict=True)
        lengths.append(dict(zip(names, rows.tokens.tolist(), strict=True)))
    shared = lengths[0].keys() & lengths[1].keys()
    assert len(shared) > 100
    assert all(lengths[0][each] == lengths[1][each] for each in shared)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"eta": -1}, "eta: -1"),
        ({"eta": 0.5}, "eta: 0.5 is not allowed with admission; allowed: a whole number"),
        ({"slots": 0}, "slots: 0"),
        ({"group": 5000}, "group: 5000 is not allowed with batch = 16; allowed: at most 4096"),
        ({"steps": 17}, "steps: 17 is not allowed; allowed: at most 16"),
        ({"rule": "discard", "eta": 1, "interval": 3}, "eta: 1 is not allowed with discard"),
        ({"rule": "fifo"}, "rule: unknown 'fifo'"),
        ({"reward_law": "shifted-exponential", "reward_cv": 2}, "reward_cv: 2 is not allowed"),
        (
            {"group": 64, "batch": 1024, "room": 100_000, "rule": "window"},
            "rollouts at once are not allowed",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_setting_that_makes_no_sense_is_refused_in_a_line(settings, told, tmp_path, capsys):
    with pytest.raises(UserError, match=r"allowed"):
        Simulation(cluster_of(2), Rollouts(**settings), WORKLOAD)
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER)
    named = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    assert main(["simulate", str(path), "--protocol", "rollouts", "--workers", "2", *named]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line
    assert "allowed" in line


def test_the_command_shows_figures(tmp_path, capsys):
    path, figures = (tmp_path / name for name in ("c.toml", "f.json"))
    path.write_text(CLUSTER)
    options = ["--protocol", "rollouts", "--rule", "discard", "--slots", "4", "--group", "2"]
    options += ["--batch", "4", "--tokens", "50", "--environment-s", "1", "--folds", "60"]
    assert main(["simulate", str(path), "--workers", "1,2", *options, "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    for told in ("rollouts", "staleness of a token, mean", "thrown away, %"):
        assert told in out
    last = json.loads(figures.read_text())[-1]["own"]
    assert 0.0 < last["thrown away, %"] < 100.0


def test_swept_values_head_the_columns_of_figures(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER)
    options = ["--protocol", "rollouts", "--folds", "20", "--sweep", "link.latency_s=0.5,30"]
    assert main(["simulate", str(path), *options]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["latency_s", "0.5", "30"] in lines
    (work,) = [line[-2:] for line in lines if line[:2] == ["trainer", "works,"]]
    assert float(work[0]) < float(work[1])
