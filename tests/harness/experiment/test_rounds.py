"""Runs in rounds: every worker trains on its own part, and all agree on one model."""

from dataclasses import replace

import pytest
from safetensors.numpy import load_file

from harness.algorithms.averaging import (
    BlockMomentum,
    GradientAveraging,
    ModelAveraging,
    OuterNesterov,
)
from harness.algorithms.compression import Compressed, PowerSgd, TopK
from harness.algorithms.schedules import Exponential, Halving, Search
from harness.base.errors import UserError
from harness.experiment.experiment import Stage
from harness.experiment.run import run as train
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.simulator.cluster import Compression, Fault
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.timeline_file import load_timeline
from harness.store.schema import TEST_ERRORS
from tests.killed import check_deaths
from tests.silence import silent

NG = NaturalGradient(Preconditioner(2, 2), Preconditioner(3, 2), PerSample(0.4))
KINDS = {
    "plain": {"algorithm": ModelAveraging()},
    "estimates carried": {"algorithm": ModelAveraging(NG)},
    "estimates carried, overlapped": {
        "algorithm": ModelAveraging(NG),
        "protocol": Averaging(3, overlap=True),
    },
    "estimates restarted, newbob": {
        "algorithm": ModelAveraging(NG, "pass"),
        "schedule": Halving(0.5, halve_below=0.2, stop_below=-1.0),
    },
    "block momentum": {"algorithm": ModelAveraging(NG, outer=BlockMomentum(0.5))},
    "outer Nesterov, overlapped": {
        "algorithm": ModelAveraging(outer=OuterNesterov(0.5)),
        "protocol": Averaging(3, overlap=True),
    },
    "gradients": {"algorithm": GradientAveraging(NG), "protocol": Averaging(1)},
}


@pytest.fixture
def averaged(configure):
    def make(**choices):
        standard = {
            "algorithm": ModelAveraging(), "protocol": Averaging(3),
            "schedule": Exponential(0.5, 3), "stages": (Stage(4, 64),), "passes": 3,
            "evaluations": 3,
        }  # fmt: skip
        return configure(**{**standard, **choices})

    return make


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("death", [2, 5])
def test_a_run_that_dies_and_resumes_gives_the_bytes_of_one_that_did_not(
    kind, death, averaged, corpus, tmp_path, finished
):
    config = averaged(**KINDS[kind])
    whole = train(config, finished, silent)
    assert whole.status == "done"
    check_deaths(lambda *to: train(config, *to), whole, tmp_path, death)


def test_every_kind_learns_and_names_its_model_alone_for_deployment(averaged, corpus, finished):
    for kind, choices in KINDS.items():
        run = train(averaged(**choices), finished, silent)
        losses = run.curve("dev_loss/iterate")[1]
        assert losses[-1] < losses[0], kind
        scored = {name for name in run.summary if name.startswith("dev_loss/")}
        assert scored == {"dev_loss/iterate"}, kind


def test_a_pass_has_the_rounds_that_the_smallest_part_fills(averaged, corpus, finished):
    config = averaged()
    run = train(config, finished, silent)
    rows = load_timeline(run.path("timeline.parquet")).contributions
    rounds = run.summary["folds"] // 3
    assert 3 * rounds * 12 * 3 <= 3 * corpus.frames_of("train") < 3 * (rounds + 1) * 12 * 3 + 500
    assert set(rows.steps.tolist()) == {3}
    for worker in range(3):
        firsts = rows.first_step[rows.worker == worker]
        assert firsts.tolist() == list(range(0, 9 * rounds, 3))


def test_rates_fall_from_pass_to_pass_and_not_within(averaged, corpus, finished):
    run = train(averaged(), finished, silent)
    epochs, rates, _ = run.curve("rate")
    assert epochs.tolist() == pytest.approx([k / 3 for k in range(10)])
    assert rates.tolist() == pytest.approx([0.5] * 4 + [0.05] * 3 + [0.005] * 3)


@pytest.mark.parametrize(
    ("tested", "passes"),
    [("every pass", "012"), ("first pass", "0"), ("at the end", "2"), ("never", "")],
)
def test_the_tests_may_be_made_after_some_passes_alone(averaged, corpus, finished, tested, passes):
    run = train(averaged(tested=tested), finished, silent)
    errors = load_file(run.path(TEST_ERRORS)) if passes else {}
    assert {name for name in errors if name.startswith("clean/iterate")} == {
        f"clean/iterate/{number}" for number in passes
    }
    assert (TEST_ERRORS in run.digests) == bool(passes)


def test_an_early_stop_is_the_end(averaged, corpus, finished):
    stops = Halving(0.5, halve_below=2.0, stop_below=2.0)
    run = train(averaged(schedule=stops, tested="at the end"), finished, silent)
    assert run.summary["passes"] == 2
    assert "clean/iterate/1" in load_file(run.path(TEST_ERRORS))


def test_rounds_of_speech_say_which_share_of_the_frames_they_trained_on(averaged, corpus, finished):
    config = averaged()
    run = train(config, finished, silent)
    minibatches = run.summary["folds"] * config.workers * config.protocol.every
    trained = minibatches * config.stages[0].minibatch
    offered = config.passes * corpus.frames_of("train")
    assert run.summary["trained_share"] == pytest.approx(trained / offered)
    assert run.summary["trained_share"] < 1.0
    assert run.summary["epochs"] == config.passes


def test_settings_that_do_not_go_together_are_refused_in_one_line(configure, averaged):
    with pytest.raises(UserError, match="protocol: of another kind than ModelAveraging"):
        averaged(protocol=None)
    with pytest.raises(UserError, match="protocol: of another kind than AveragedSgd"):
        configure(protocol=Averaging())
    with pytest.raises(UserError, match="schedule: a search needs"):
        averaged(schedule=Search(0.1))
    with pytest.raises(UserError, match="stages: 2"):
        averaged(stages=(Stage(4, 64), Stage(8, 64)))
    with pytest.raises(UserError, match=r"protocol\.fetch_every: 4 can be timed but not trained"):
        configure(protocol=ParameterServer(fetch_every=4))
    with pytest.raises(UserError, match=r"protocol\.shards: 2 is not allowed here"):
        configure(protocol=ParameterServer(shards=2))
    with pytest.raises(UserError, match=r"protocol\.push_every: 2 is not allowed with a search"):
        configure(protocol=ParameterServer(push_every=2), schedule=Search(0.1))
    failing = replace(averaged().cluster, faults=(Fault("death", mean_s=9.0, down_s=1.0),))
    assert averaged(cluster=failing).cluster.faults == configure(cluster=failing).cluster.faults


def test_bytes_that_a_coder_saves_are_not_saved_by_the_cluster_too(averaged, unequal):
    """Its time of encoding may be said, and the ratio of a coder whose share the layers decide."""
    half, all_of = (replace(unequal, compression=Compression(ratio)) for ratio in (0.5, 1.0))
    with pytest.raises(UserError, match=r"cluster.compression.ratio: 0.5; its bytes are those"):
        averaged(algorithm=Compressed(coder=TopK(0.1)), cluster=half)
    averaged(algorithm=Compressed(coder=TopK(0.1)), cluster=all_of)
    averaged(algorithm=Compressed(coder=PowerSgd(1)), cluster=half)
    averaged(cluster=half)
