import shutil

import pytest

from harness.base.errors import UserError
from harness.judge.results import read_results
from harness.store import Store
from reports import build, provenance
from reports.provenance import USUAL, lines_from_runs


def found(out, **facts):
    results = read_results(out / "results.json")
    results.provenance.update(facts)
    return lines_from_runs(results, Store(out / "runs").runs())


def schedules(out):
    wanted = {"schedule", "seed"}
    trained = [run for run in Store(out / "runs").runs() if wanted <= run.config.keys()]
    return {(run.config["schedule"]["is"], run.config["seed"]): run.hash for run in trained}


def test_settings_keep_their_order_and_share_the_name_of_a_run_they_share(make, tmp_path):
    out = make(tmp_path)
    runs = schedules(out)
    settings = {
        "search": [runs["Search", 11], runs["Search", 12]],
        "one_pass": [runs["Search", 11], runs["Search", 12]],
        "hand": [runs["Hand", 11], runs["Hand", 12]],
    }
    named = [line for line in found(out, settings=settings) if line.setting not in ("", USUAL)]
    assert [line.setting for line in named] == ["search = one_pass"] * 2 + ["hand"] * 2
    assert [(line.hash, line.seed) for line in named[2:]] == [
        (runs["Hand", seed], str(seed)) for seed in (11, 12)
    ]


def items(told):
    return dict(pair.split(" ", 1) for pair in told.split("; ") if pair)


def test_a_line_and_the_usual_of_its_kind_are_the_whole_configuration(make, tmp_path):
    out = make(tmp_path)
    configs = {run.hash: run.config for run in Store(out / "runs").runs()}
    lines = [line for line in found(out) if line.setting == USUAL or line.hash in configs]
    usual = {line.kind: line.apart for line in lines if line.setting == USUAL}
    for line in lines:
        if line.seed:
            assert "corpus fsdd" in usual[line.kind]
            assert "seed" not in items(line.apart)
            told = items(usual[line.kind]) | items(line.apart) | {"seed": line.seed}
            assert told == provenance.flat(configs[line.hash])
            assert not items(line.apart).items() & items(usual[line.kind]).items()


def test_how_a_run_ended_and_what_it_says_of_that_are_told(make, tmp_path):
    (bad,) = [line for line in found(make(tmp_path)) if line.status == "diverged"]
    assert bad.note == "loss was inf at fold 17"


def test_without_its_runs_a_report_reads_them_from_the_list_it_wrote(out):
    build(out)
    before = (out / provenance.RUNS_CSV).read_bytes(), (out / "report.pdf").read_bytes()
    shutil.rmtree(out / "runs")
    build(out)
    assert ((out / provenance.RUNS_CSV).read_bytes(), (out / "report.pdf").read_bytes()) == before


def test_without_runs_and_list_a_run_has_the_setting_that_the_results_name(out):
    runs = schedules(out)
    results = read_results(out / "results.json")
    results.provenance["settings"] = {"search": [runs["Search", 11], runs["Search", 12]]}
    shutil.rmtree(out / "runs")
    *rest, first, second = provenance.lines(results, out)
    assert {line.status for line in (first, second, *rest)} == {provenance.UNKNOWN}
    assert {first.hash, second.hash} == {runs["Search", 11], runs["Search", 12]}
    assert (first.setting, {line.setting for line in rest}) == ("search", {""})


@pytest.mark.nightly
def test_a_list_with_other_columns_is_named(out):
    shutil.rmtree(out / "runs")
    (out / provenance.RUNS_CSV).write_text("setting,run\na,b\n")
    with pytest.raises(UserError, match=r"runs\.csv: columns setting, run; allowed: kind,"):
        build(out)
