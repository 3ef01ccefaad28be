from harness.store import Store
from reports.provenance import find_failures, settings_of, wall_time


def test_settings_that_share_a_run_are_named_together():
    assert settings_of({"a": ["1", "2"], "b": ["2"]}) == {"1": "a", "2": "a = b"}


def test_a_setting_whose_seeds_share_a_run_is_named_once():
    assert settings_of({"tuned": ["1", "1", "1"], "b": ["1"]}) == {"1": "tuned = b"}


def test_the_time_of_runs_stands_before_that_of_the_command():
    assert wall_time({"wall_s": 5}) == "this command: 5 s"
    facts = {"wall_s": 5, "runs_s": 1260, "reused": 3}
    told = "runs: 21 min 0 s one by one; this command: 5 s, with 3 runs finished before"
    assert wall_time(facts) == told
    assert wall_time({}) == ""


def test_processor_time_is_told_where_every_run_kept_it():
    facts = {"wall_s": 5, "runs_s": 1260, "runs_processor_s": 600}
    assert wall_time(facts) == "runs: 10 min 0 s of a processor; this command: 5 s"


def test_what_a_search_for_the_largest_rate_tried_is_no_failure(make, tmp_path):
    out = make(tmp_path)
    runs = Store(out / "runs").runs()
    (bad,) = (run for run in runs if run.status == "diverged")
    fine = next(run.hash for run in runs if run.status == "done")
    assert find_failures({}, runs) == [bad]
    assert find_failures({"settings": {"hand": [bad.hash]}}, runs) == [bad]
    assert find_failures({"settings": {"largest": [fine]}}, runs) == []
    asked = {"settings": {"map": [bad.hash]}, "divergence_asked_of": [bad.hash]}
    assert find_failures(asked, runs) == []
