from __future__ import annotations

from dataclasses import replace

from harness.judge import read_results
from harness.store import Store
from reports.provenance import MOST, settings_of, unexpected, wall_time, where_from


def told(out, **facts):
    results = read_results(out / "results.json")
    cited = {run for claim in results.claims for run in claim.runs}
    cited |= {run for exhibit in results.exhibits for row in exhibit.rows for run in row.runs}
    results = replace(results, provenance=results.provenance | facts)
    return where_from(results, Store(out / "runs").runs(), cited)


def test_runs_of_one_setting_share_a_line_and_keep_the_order_of_the_settings(make, tmp_path):
    out = make(tmp_path)
    wanted = {"schedule", "seed"}
    trained = [run for run in Store(out / "runs").runs() if wanted <= run.config.keys()]
    runs = {(run.config["schedule"]["is"], run.config["seed"]): run.hash for run in trained}
    settings = {
        "search": [runs["Search", 11], runs["Search", 12]],
        "one_pass": [runs["Search", 11], runs["Search", 12]],
        "hand": [runs["Hand", 11], runs["Hand", 12]],
    }
    (kind, *_) = told(out, settings=settings)["groups"]
    lines = {line["name"]: line for line in kind["runs"]}
    assert list(lines)[:2] == ["search = one_pass", "hand"]
    hand = lines["hand"]
    assert hand["hash"] == ", ".join(runs["Hand", seed][:12] for seed in (11, 12))
    assert hand["apart"] == "schedule.is Hand"  # the seeds, which differ, are not repeated
    assert kind["named"]


def test_without_settings_every_run_has_a_line_of_its_own(make, tmp_path):
    (trained, *_) = told(make(tmp_path))["groups"]
    assert not trained["named"]
    assert all("," not in line["hash"] for line in trained["runs"])


def test_a_setting_that_differs_in_much_names_the_first_keys_and_counts_the_rest(make, tmp_path):
    out = make(tmp_path)
    results = read_results(out / "results.json")
    store = Store(out / "runs")
    for name in "ab":
        keys = {f"key{i:02}": name for i in range(MOST + 3)}
        with store.begin({"long": keys}) as writer:
            writer.finish("failed", {}, "for the test")
    groups = where_from(results, store.runs(), set())["groups"]
    line = next(line for group in groups for line in group["runs"] if "key00" in line["apart"])
    assert f"long.key{MOST - 1:02}" in line["apart"]
    assert f"long.key{MOST:02}" not in line["apart"]
    assert line["apart"].endswith(" and 3 more in config.json")


def test_what_most_runs_of_a_kind_have_sets_none_of_them_apart(make, tmp_path):
    out = make(tmp_path)
    results = read_results(out / "results.json")
    store = Store(out / "runs")
    fingerprint = "0123456789abcdef" * 4
    for rate, corpus in ((1, "a"), (2, "a"), (3, fingerprint)):
        with store.begin({"rate": rate, "corpus": corpus, "of": "the test"}) as writer:
            writer.finish("failed", {}, "for the test")
    groups = where_from(results, store.runs(), set())["groups"]
    apart = [line["apart"] for group in groups for line in group["runs"]]
    told = [each for each in apart if "rate" in each]
    assert sorted(told) == ["corpus 0123456789ab, rate 3", "rate 1", "rate 2"]


def test_settings_that_share_a_run_are_named_together():
    assert settings_of({"a": ["1", "2"], "b": ["2"]}) == {"1": "a", "2": "a = b"}


def test_a_setting_whose_seeds_share_a_run_is_named_once():
    assert settings_of({"tuned": ["1", "1", "1"], "b": ["1"]}) == {"1": "tuned = b"}


def test_the_wall_time_says_what_was_there_already():
    assert wall_time({"wall_s": 5}) == "5 s"
    facts = {"wall_s": 5, "runs_s": 1260, "reused": 3}
    assert wall_time(facts) == (
        "5 s; its runs one after another 21 min 0 s (3 of them were there already)"
    )
    assert wall_time({}) == ""


def test_what_a_search_for_the_largest_rate_tried_is_no_failure(make, tmp_path):
    out = make(tmp_path)
    runs = Store(out / "runs").runs()
    (bad,) = (run for run in runs if run.status == "diverged")
    fine = next(run.hash for run in runs if run.status == "done")
    assert unexpected({}, runs) == [bad]
    assert unexpected({"settings": {"hand": [bad.hash]}}, runs) == [bad]
    assert unexpected({"settings": {"largest": [fine]}}, runs) == []
    asked = {"settings": {"map": [bad.hash]}, "divergence_asked_of": [bad.hash]}
    assert unexpected(asked, runs) == []
