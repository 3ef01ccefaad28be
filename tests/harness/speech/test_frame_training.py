"""What a run must guarantee, on a corpus of a few hundred frames."""

import math
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.acoustics.rbm import Recipe
from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.schedules import Constant, Halving, Hand, Search
from harness.experiment.experiment import Stage
from harness.experiment.folds import FoldTraining
from harness.experiment.loop import SimulationExecutor
from harness.experiment.run import run as train
from harness.simulator.timeline_file import load_timeline
from harness.speech import task as acoustic
from harness.speech.evaluation import FrameEvaluator, frame_scores, rows_of
from harness.speech.task import initial_parameters
from harness.store import Store
from harness.store.schema import MODEL, TEST_ERRORS
from tests.killed import check_deaths, kept_bytes
from tests.silence import silent

SCHEDULES = {
    "constant": Constant(0.02),
    "hand": Hand(0.05, tests_a_pass=7),
    "search": Search(0.02, least_minibatches=2),
    "halving": Halving(0.05, halve_below=0.2, stop_below=-1.0),
}


def test_another_seed_gives_another_timeline_and_other_measurements(configure, finished):
    one, two = (train(configure(seed=s), finished, silent) for s in (0, 1))
    assert one.hash != two.hash
    assert one.summary["timeline_sha256"] != two.summary["timeline_sha256"]
    assert one.summary["dev_loss/average"] != two.summary["dev_loss/average"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("death", [2, 4, 7])
def test_a_run_that_dies_and_resumes_gives_the_bytes_of_one_that_did_not(
    schedule, death, configure, tmp_path, finished
):
    config = configure(schedule=SCHEDULES[schedule], stages=(Stage(4, 64, 0.5), Stage(8, 256)))
    whole = train(config, finished, silent)
    check_deaths(lambda *to: train(config, *to), whole, tmp_path, death)


def test_a_damaged_checkpoint_costs_time_and_not_the_result(configure, tmp_path, finished):
    whole = train(configure(), finished, silent)
    store = Store(tmp_path / "damaged")
    with store.begin(configure().to_dict()) as writer:
        writer.checkpoint.mkdir()
        (writer.checkpoint / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    assert kept_bytes(train(configure(), store, silent)) == kept_bytes(whole)


def test_a_finished_run_is_not_trained_again(configure, finished):
    train(configure(), finished, silent)

    def never(progress):
        raise AssertionError("trained again")

    train(configure(), finished, never)


def test_a_rate_that_is_too_large_ends_as_diverged_with_the_time(configure, finished):
    run = train(configure(schedule=Constant(1e38)), finished, silent)
    assert run.status == "diverged"
    assert run.summary["virtual_s"] > 0
    at = f"at fold {run.summary['folds']:,} (pass "
    assert run.note.startswith(f"in {run.config['algorithm']['is']} {at}")
    first = run.curve("dev_loss/iterate")[1][0]
    assert f"loss {first:.3g} at fold 0, rate 1e+38" in run.note


def test_initial_parameters_that_are_no_numbers_are_told_as_such(configure, tmp_path, monkeypatch):
    monkeypatch.setattr(
        acoustic, "initial_parameters", lambda *given: initial_parameters(*given) * math.nan
    )
    run = train(configure(), Store(tmp_path), silent)
    assert run.status == "diverged"
    at = "at fold 0 (pass 0, 0.0 s): loss never a number"
    assert run.note.startswith(f"in its initial parameters {at}")


def test_every_fold_of_the_timeline_was_executed(configure, corpus, finished):
    run = train(configure(), finished, silent)
    timeline = load_timeline(run.path("timeline.parquet"))
    steps = corpus.frames_of("train") // 8
    assert run.summary["folds"] == len(timeline.folds) == 2 * steps
    assert sorted(timeline.contributions.first_step.tolist()) == list(range(2 * steps))


def test_word_errors_are_kept_for_every_utterance_set_model_and_pass(configure, finished):
    from safetensors.numpy import load_file

    run = train(configure(), finished, silent)
    errors = load_file(run.path(TEST_ERRORS))
    assert set(errors) == {
        f"{test}/{model}/{stage}"
        for test in ("clean", "noise")
        for model in ("iterate", "average")
        for stage in (0, 1)
    } | {"clean/lengths", "noise/lengths"}
    last = errors["clean/average/1"]
    assert last.shape == (4,)
    assert run.summary["clean_word_error/average"] == last.mean()


def test_the_deployed_candidate_may_be_the_only_one_that_is_tested(configure, finished):
    run = train(configure(tested_models="deployed"), finished, silent)
    kept = load_file(run.path(TEST_ERRORS))
    assert {name.split("/")[1] for name in kept} == {"average", "lengths"}


def test_every_candidate_is_tested_at_an_acoustic_scale_of_its_own(
    configure, corpus, offered, tmp_path
):
    spoken = offered["tiny"] = replace(corpus, lm_text=corpus.split("train").words)
    config = configure(fingerprint=spoken.fingerprint, tested="at the end")
    store = Store(tmp_path)
    with store.begin(config.to_dict()) as writer:
        problem = config.task.open(config, store)
        training = FoldTraining(writer, config, problem, silent, SimulationExecutor)
        training.run()
    for name, model in training.executor.server.candidates().items():
        alone = FrameEvaluator(problem.network, problem.examples, spoken)
        tuned = alone.tune_decoding(model)
        measured = training.last_measured()
        assert measured[f"acoustic_scale/{name}"] == tuned.best.scale
        assert measured[f"acoustic_scale_decided/{name}"] == float(tuned.decided)
        wrong, frame_error = alone.test("clean", model, tuned)
        assert training.test_errors[f"clean/{name}/1"].tolist() == wrong.errors.tolist()
        assert measured[f"clean_frame_error/{name}"] == frame_error
        rows = rows_of(spoken, "clean")
        whole = frame_scores(problem.network, model, problem.examples, rows)
        assert frame_error == whole.frame_error


def test_rate_search_costs_simulated_time(configure, corpus, finished):
    searched = train(configure(schedule=SCHEDULES["search"]), finished, silent)
    timeline = load_timeline(searched.path("timeline.parquet"))
    searches = timeline.spans.kind == timeline.kinds.index("search")
    chunks_a_pass = math.ceil(
        corpus.frames_of("train") // 8 / round(0.25 * corpus.frames_of("train") / 8)
    )
    assert int(searches.sum()) == 2 * chunks_a_pass
    assert bool(np.all(timeline.spans.end_s[searches] > timeline.spans.start_s[searches]))


def test_an_evaluation_may_stand_just_before_a_chunk_ends(configure, finished):
    """Fewer folds are left to the drain than workers have contributions under way."""
    search = Search(0.02, least_minibatches=2)
    for evaluations in range(3, 14):
        config = configure(schedule=search, evaluations=evaluations, workers=3, passes=1)
        assert train(config, finished, silent).status == "done"


def test_halving_stops_when_gains_end(configure, finished):
    config = configure(
        algorithm=AsyncSgd(), schedule=Halving(1e-9, halve_below=0.5, stop_below=0.1), passes=9
    )
    run = train(config, finished, silent)
    assert run.summary["passes"] < 9


def test_the_switch_is_recorded_once_and_only_when_it_happens(configure, finished):
    algorithm = AveragedSgd(eta=0.3, considers=5)
    run = train(configure(algorithm=algorithm, schedule=Constant(0.5)), finished, silent)
    epochs, values, _ = run.curve("switch")
    assert values.tolist() == [1.0]
    iterate, average = (
        dict(zip(*run.curve(f"dev_frame_error/{m}")[:2], strict=True))
        for m in ("iterate", "average")
    )
    assert average[epochs[0]] < iterate[epochs[0]]
    assert not any(average[e] < iterate[e] for e in iterate if e < epochs[0])


def test_how_often_is_read_changes_nothing_of_what_is_trained(configure, finished):
    algorithm = AveragedSgd(eta=0.3, considers=4)
    often, rarely = (
        train(
            configure(algorithm=algorithm, schedule=Constant(0.5), evaluations=times),
            finished,
            silent,
        )
        for times in (20, 2)
    )
    assert often.path(MODEL).read_bytes() == rarely.path(MODEL).read_bytes()
    assert often.curve("switch")[0].tolist() == rarely.curve("switch")[0].tolist() != []
    assert len(often.curve("dev_loss/average")[0]) > len(rarely.curve("dev_loss/average")[0])


def test_settings_of_one_seed_share_one_pretraining(configure, tmp_path):
    store = Store(tmp_path)
    for schedule in (Constant(0.02), Constant(0.03)):
        train(configure(initial=Recipe(), schedule=schedule), store, silent)
    kinds = [run.config["is"] for run in store.runs()]
    assert sorted(kinds) == ["PretrainingConfig", "RunConfig", "RunConfig"]
    trained = [run for run in store.runs() if run.config["is"] == "RunConfig"]
    first = [run.curve("dev_loss/iterate")[1][0] for run in trained]
    assert first[0] == first[1]
