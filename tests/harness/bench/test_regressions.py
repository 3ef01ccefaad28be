from __future__ import annotations

import json

import pytest

from harness.base.errors import UserError
from harness.bench.baseline import latest, load, machine, record, same_processor, save
from harness.bench.comparison import (
    ELSEWHERE,
    LEAST_TOLERANCE,
    BaselineEntry,
    Bound,
    Measurement,
    short,
    table,
)
from harness.bench.regressions import AGAIN, check, measure_baseline
from harness.bench.steps import Run, find_skipped
from harness.cli import main

NAME = "tests/benchmarks/test_it.py::test_it[4]"
OTHER = "tests/benchmarks/test_it.py::test_other"
BASE = {NAME: BaselineEntry({"ratio": Bound(1.0, 0.2)}), OTHER: BaselineEntry({}, {"folds": 7})}
HERE = {"renewals": [{"machine": machine()}]}


class Machine:
    """Tells ratios and counts in the order they are given, and remembers what it was asked."""

    def __init__(self, *ratios, folds=7):
        self.ratios, self.folds, self.asked = list(ratios), folds, []

    def __call__(self, names):
        self.asked.append(list(names))
        return Run({name: self.told(name) for name in names or (NAME, OTHER)}, (), {})

    def told(self, name):
        if name == OTHER:
            return Measurement({}, {"folds": self.folds})
        return Measurement({"ratio": self.ratios.pop(0)})


def checked(machine, about=HERE, partly=False):
    return check(machine, BASE, about, partly, lambda line: None)


def test_a_run_within_its_tolerances_is_measured_once():
    quiet = Machine(1.1)
    _, rows = checked(quiet)
    assert quiet.asked == [[]]
    assert not any(row.fails for row in rows)


def test_what_is_flagged_by_a_disturbance_is_run_again_alone_and_passes():
    disturbed = Machine(1.7, 1.1)
    now, rows = checked(disturbed)
    assert disturbed.asked == [[], [NAME]]
    assert now[NAME].ratios == {"ratio": 1.1}
    assert not any(row.fails for row in rows)


def test_a_regression_stays_however_often_it_is_run_and_is_named():
    slower = Machine(*[1.7] * (1 + AGAIN))
    _, rows = checked(slower)
    assert len(slower.asked) == 1 + AGAIN
    assert [row.benchmark for row in rows if row.fails] == [NAME]


def test_a_count_that_differs_is_not_excused_by_another_run():
    _, rows = checked(Machine(1.0, folds=8))
    assert [(row.benchmark, row.verdict) for row in rows if row.fails] == [(OTHER, "DIFFERENT")]


def test_on_another_processor_a_ratio_has_more_room():
    _, rows = checked(
        Machine(0.95 * (1.0 + ELSEWHERE)), {"renewals": [{"machine": {"processor": "another"}}]}
    )
    assert not any(row.fails for row in rows)


def test_a_baseline_is_made_of_several_runs_saved_and_read_again(tmp_path):
    found = measure_baseline(Machine(1.0, 1.2, 1.1), 3, lambda line: None)
    assert found[NAME].ratios["ratio"] == Bound(1.1, LEAST_TOLERANCE)
    save(tmp_path / "baseline.json", found, "because", 3)
    again, about = load(tmp_path / "baseline.json")
    assert again == found
    assert [(each["reason"], each["runs"]) for each in about["renewals"]] == [("because", 3)]
    save(tmp_path / "baseline.json", again, "a part", 3, about["renewals"])
    reasons = [each["reason"] for each in load(tmp_path / "baseline.json")[1]["renewals"]]
    assert reasons == ["because", "a part"]


def test_counts_are_renewed_on_any_machine(tmp_path):
    path, elsewhere = tmp_path / "baseline.json", {"machine": {"processor": "another"}}
    save(path, {NAME: BaselineEntry(counts={"folds": 7})}, "counted", 1, [elsewhere], counted=True)
    about = load(path)[1]
    assert about["renewals"] == [elsewhere, {"reason": "counted", "runs": 1}]
    assert not same_processor(about)
    kept = record(tmp_path / "new", {}, [], about)
    assert json.loads(kept.read_text())["baseline"] == {"processor": "another"}


def test_every_run_is_kept(tmp_path):
    now, rows = checked(Machine(1.0))
    about = {"renewals": [{"machine": {"processor": "the first"}}, {"machine": {"cores": 7}}]}
    path = record(tmp_path / "new", now, rows, about)
    held = json.loads(path.read_text())
    assert held["baseline"] == {"cores": 7}
    assert held["measured"][NAME]["ratios"] == {"ratio": 1.0}
    assert [row["verdict"] for row in held["rows"]] == ["ok", "ok"]


def test_the_latest_record_is_of_everything_and_of_this_processor(tmp_path):
    now, rows = checked(Machine(1.0))
    about = {"renewals": [{"machine": {}}]}
    assert latest(tmp_path) is None
    kept = record(tmp_path, now, rows, about).rename(tmp_path / "20260101T000000.json")
    record(tmp_path, now, rows, about, whole=False)
    elsewhere = json.loads(kept.read_text())
    elsewhere["machine"]["processor"] = "another"
    (tmp_path / "20990101T000000.json").write_text(json.dumps(elsewhere))
    (tmp_path / "notes.json").write_text("none")
    assert latest(tmp_path) == kept


@pytest.mark.parametrize("text", ["", "{", "[]", '{"benchmarks": {"a": {"ratios": {"b": 1}}}}'])
def test_a_baseline_that_is_none_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UserError, match=r"--baseline .*b\.json"):
        load(tmp_path / "b.json")


def test_the_table_has_now_baseline_change_and_verdict():
    head, first, second = table(checked(Machine(*[1.5] * 3))[1])
    assert head.split()[:2] == ["benchmark", "quantity"]
    assert first.split()[-6:] == ["ratio", "1.5", "1", "+50%", "20%", "SLOWER"]
    assert second.split()[-4:] == ["folds", "7", "7", "ok"]
    assert short(NAME) == "it: it[4]"


def test_skipped_benchmarks_are_read_from_the_report_on_the_tests():
    text = """<testsuites><testsuite>
      <testcase classname="tests.benchmarks.test_it" name="test_it[4]"><skipped/></testcase>
      <testcase classname="tests.benchmarks.test_it" name="test_other"/>
    </testsuite></testsuites>"""
    assert list(find_skipped(text)) == [NAME]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--renew", " "], "--renew"),
        (["--runs", "0"], "--runs"),
        (["--renew", "why", "--large"], "--large"),
        (["--baseline", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_usage_is_told_in_one_line_before_anything_runs(options, named, capsys):
    assert main(["bench", *options]) == 2
    told = capsys.readouterr().err
    assert named in told
    assert len(told.splitlines()) == 1
