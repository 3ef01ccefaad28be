"""What is predicted of a run file is what its training takes: there is one way to a timeline."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from harness import cli
from harness.algorithms.schedules import Search
from harness.base.settings import load_toml
from harness.experiment.experiment import Stage
from harness.experiment.run import run as train
from harness.experiment.run_file import load_run
from harness.fidelity.predict import prediction, time_passes
from harness.simulator.cluster import Checkpoints
from harness.simulator.timeline import Restarts
from harness.speech.frames import corpus_of
from harness.store import Store
from tests.run_files import on_few_words
from tests.silence import silent

RUNS = Path(__file__).parents[3] / "reproductions" / "runs"
KINDS = {path: load_toml(path)["task"]["is"] for path in sorted(RUNS.glob("*.toml"))}
FRAMES = [path for path, kind in KINDS.items() if kind == "frames"]
assert FRAMES


def pieces_of(config):
    return config.task.open(config).pieces


@pytest.mark.sampled(6)
@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_run_file_is_predicted_to_the_second_and_fold(path: Path, tmp_path: Path, capsys) -> None:
    text = path.read_text(encoding="utf-8").replace('"clusters/', f'"{RUNS}/clusters/')
    path = tmp_path / path.name
    path.write_text(on_few_words(text, train=200), encoding="utf-8")
    asked = load_run(path)
    run = train(asked, Store(tmp_path), silent)
    predicted = time_passes(asked, pieces_of(asked))
    assert predicted.ends_s[-1] == run.summary["virtual_s"]
    assert sum(predicted.folds) == run.summary["folds"]
    assert predicted.timeline.sha256() == run.summary["timeline_sha256"]
    assert cli.main(["predict", str(path)]) == 0
    assert f"{run.summary['virtual_s']:.6g} s" in capsys.readouterr().out


def test_a_search_for_rates_is_predicted_with_what_it_costs_the_cluster(tmp_path: Path) -> None:
    asked = load_run(RUNS / "async-averaged.toml")
    search = Search(0.008, least_minibatches=5, whole_trials=True)
    config = replace(asked, schedule=search, chunk=0.3)
    run = train(config, Store(tmp_path), silent)
    predicted = time_passes(config, pieces_of(asked))
    assert predicted.ends_s[-1] == run.summary["virtual_s"]
    assert "search" in predicted.timeline.kinds


def test_it_says_that_workers_are_machines_and_what_time_is_charged_for() -> None:
    asked = load_run(RUNS / "async-averaged.toml")
    layers = corpus_of(asked.task).layers(asked.task.hidden)
    for timed in (asked.task.timed_layers, layers):
        lines = list(prediction(asked.vary(timed_layers=timed), pieces_of(asked)))
        assert lines[1].split(maxsplit=1)[1] == "machines of the cluster file, not processes here"
        products = [above * below for above, below in pairwise(timed)]
        operations = 6 * sum(products) - 2 * products[0]  # the inputs need no gradient
        size = 4 * (sum(products) + sum(timed[1:]))
        told = f"minibatches of 256, {operations:.6g} operations an example, {size:.6g} bytes"
        assert lines[2].split(maxsplit=4)[4] == told


def test_a_long_run_goes_on_at_the_rate_of_its_beginning() -> None:
    asked = load_run(RUNS / "async-averaged.toml")
    train_set = pieces_of(asked)
    known, cut = (time_passes(asked, train_set), time_passes(asked, train_set, most=500))
    assert cut.folds == known.folds
    assert len(cut.timeline.folds) == 500
    assert cut.ends_s[-1] == pytest.approx(known.ends_s[-1], rel=0.02)
    assert known.beyond is None
    assert cut.beyond is not None
    assert cut.beyond.low < cut.per_s < cut.beyond.high


def said(capsys: pytest.CaptureFixture[str], name: str) -> float:
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(name)]
    return float(line[28:])


def test_the_speed_up_counts_what_enters_folds(capsys: pytest.CaptureFixture[str]) -> None:
    asked = load_run(RUNS / "backup-workers.toml")
    train_set = pieces_of(asked)
    four, one = (time_passes(replace(asked, workers=n), train_set) for n in (4, 1))
    assert cli.main(["predict", str(RUNS / "backup-workers.toml")]) == 0
    of_three = 3 * four.per_s / one.per_s
    assert said(capsys, "speed-up") == pytest.approx(of_three, rel=0.01)


def test_the_speed_up_counts_a_search_once_a_chunk_also_of_one_worker() -> None:
    asked = load_run(RUNS / "async-averaged.toml")
    config = replace(asked, schedule=Search(0.008), chunk=1.0, stages=(Stage(1, 32),))
    train_set = pieces_of(asked)
    four, one = (time_passes(replace(config, workers=n), train_set) for n in (4, 1))
    (line,) = [line for line in prediction(config, train_set) if line.startswith("speed-up")]
    assert float(line[28:]) == pytest.approx(one.ends_s[-1] / four.ends_s[-1], rel=0.01)


def test_one_worker_is_healthy_where_a_cluster_is_not(tmp_path: Path, capsys) -> None:
    failing = (RUNS / "clusters/failing.toml").read_text()
    (tmp_path / "gone.toml").write_text(
        failing.replace("workers = [1]", "workers = [0]")
        .replace("down_s = 0.6", "")
        .replace("at_s = [0.5, 2.0]", "at_s = [0.5]")
    )
    path = str(RUNS / "averaging-with-deaths.toml")
    assert cli.main(["predict", path, "--cluster", str(tmp_path / "gone.toml")]) == 0
    assert 1.0 < said(capsys, "speed-up") < 4.0


def test_folds_that_restarts_undo_are_said_and_speed_up_nothing() -> None:
    asked = load_run(RUNS / "averaging-with-deaths.toml")
    config = replace(asked, cluster=replace(asked.cluster, checkpoints=Checkpoints(1000)))
    predicted = time_passes(config, pieces_of(asked))
    lines = {line[:28].strip(): line[28:] for line in prediction(config, pieces_of(asked))}
    last = predicted.timeline.restarts.version[-1]  # no checkpoint: all before it is undone
    share = last / sum(predicted.folds)
    assert f"{share:.1%} of the folds" in lines["undone by restarts"]
    healthy = replace(config, cluster=replace(config.cluster, faults=()), workers=1, passes=1)
    alone = time_passes(healthy, pieces_of(asked))
    whole = replace(predicted, timeline=replace(predicted.timeline, restarts=Restarts()))
    speed_up = (1.0 - share) * whole.minibatches_per_s / alone.minibatches_per_s
    assert float(lines["speed-up over one worker"].split()[0]) == pytest.approx(speed_up, rel=0.05)
