"""What sequence training must guarantee, on a corpus of a few hundred frames."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd, ClippedSgd, Gradients
from harness.algorithms.averaging import Easgd
from harness.algorithms.schedules import Constant, Exponential
from harness.algorithms.stale import (
    DelayCompensated,
    PartialFolds,
    Ringmaster,
    ServerDescent,
    StalenessAware,
)
from harness.base.errors import UserError
from harness.base.seeds import SHORT, identity
from harness.base.settings import dataclasses_below
from harness.experiment.run import run as train
from harness.networks.feedforward import Dnn, Layout
from harness.simulator.timeline_file import load_timeline
from harness.speech.decoding import Halves
from harness.speech.protocol import Sequence
from harness.speech.sequence import Plateau
from harness.speech.sequence_training import has_collapsed
from harness.store import Store
from harness.store.schema import MODEL, TEST_ERRORS
from tests.harness.speech.test_sequence_oracle import LAYOUT, final, initial_of
from tests.killed import check_deaths
from tests.silence import silent

WAYS = {
    "on the fly": {"shuffling": "on the fly"}, "none": {"shuffling": "none", "slots": 3},
    "last": {"layers": "last", "fetch_s": 0.02},
    "compensated": {"algorithm": DelayCompensated(10.0, 16)},
    "numerator": {"criterion": Criterion("numerator", kappa=0.5), "update_silence": False},
}  # fmt: skip


def on(corpus, config):
    """The training on another corpus, from a start on it."""
    name = {"fingerprint": corpus.fingerprint}
    return config.vary(start=config.task.start.vary(**name), **name)


def test_another_seed_gives_another_timeline_and_another_model(sequence, run_sequence):
    one, two = (run_sequence(sequence(seed=seed)) for seed in (0, 1))
    assert one.hash != two.hash
    assert one.summary["timeline_sha256"] != two.summary["timeline_sha256"]
    assert not torch.equal(final(one), final(two))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_dies_and_resumes_gives_the_bytes_of_one_that_did_not(
    way, sequence, tmp_path, finished
):
    config = sequence(schedule=Plateau(0.01, 1, 0.5), **WAYS[way])
    whole = train(config, finished, silent)
    assert whole.status == "done"

    def execute(store, watch):
        train(config.task.start, store, silent)
        return train(config, store, watch)

    check_deaths(execute, whole, tmp_path, 2, 1, 3)


@pytest.mark.parametrize("way", ["on the fly", "none"])
def test_every_kept_frame_is_trained_on_in_every_pass(way, sequence, run_sequence, corpus):
    done = run_sequence(sequence(rate=1e-4, **WAYS[way]))
    timeline = load_timeline(done.path("timeline.parquet"))
    frames = round(done.summary["kept_frames"] * done.summary["decoded_frames"])
    assert done.summary["decoded_frames"] == 2 * corpus.frames_of("train")
    assert done.summary["utterances"] == 2 * len(corpus.split("train"))
    assert int(timeline.decodes.steps.sum()) == frames
    assert done.summary["folds"] == len(timeline.folds)
    assert done.summary["epochs"] == 2.0


def test_a_rate_that_is_too_large_ends_as_diverged_with_the_time(sequence, run_sequence):
    done = run_sequence(sequence(rate=1e38))
    assert done.status == "diverged"
    assert done.note.startswith(f"in MMI at fold {done.summary['folds']} (pass ")
    assert done.summary["virtual_s"] > 0


def test_no_pass_measures_the_start(sequence, run_sequence, corpus, finished):
    done = run_sequence(sequence(passes=0))
    assert done.summary["folds"] == 0
    assert torch.equal(final(done), initial_of(sequence(), corpus, finished))
    assert 0.0 <= done.summary["clean_word_error/iterate"] <= 1.0


def test_the_last_layer_alone_moves_where_only_it_is_updated(
    sequence, run_sequence, corpus, finished
):
    ours = final(run_sequence(sequence(layers="last")))
    before = initial_of(sequence(), corpus, finished)
    below = Layout(LAYOUT.sizes[:-1]).parameters
    assert torch.equal(ours[:below], before[:below])
    assert not torch.equal(ours[below:], before[below:])


def test_a_trunk_and_a_top_compute_what_the_whole_network_does(corpus, sequence, finished):
    model = initial_of(sequence(), corpus, finished)
    net, x = Dnn(LAYOUT, "relu"), torch.randn(11, 9)
    halves, part = Halves.split(net, model, "last")
    top = halves.net.logits(part.unsqueeze(0), halves.inputs(x).unsqueeze(0))
    assert torch.equal(top, net.logits(model.unsqueeze(0), x))
    assert torch.equal(halves.whole(part), model)


def test_silence_that_is_not_updated_keeps_its_outputs(
    sequence, corpus, offered, tmp_path, finished
):
    config = sequence(update_silence=False)
    before = initial_of(config, corpus, finished)
    offered["tiny"] = replace(corpus, silence=(1,))
    after = final(train(on(offered["tiny"], config), Store(tmp_path), silent))
    rows = [LAYOUT.views(model.unsqueeze(0))[-1].weight[0] for model in (before, after)]
    assert torch.equal(rows[0][1], rows[1][1])
    assert not torch.equal(rows[0][2], rows[1][2])


def test_frames_that_are_not_kept_enter_as_zeros_where_all_enter(sequence, run_sequence, corpus):
    criterion = Criterion(kappa=0.5, cancel_below=0.5)
    some, every = (
        run_sequence(sequence(criterion=criterion, frames=name)) for name in ("kept", "all")
    )
    steps = [load_timeline(r.path("timeline.parquet")).decodes.steps for r in (some, every)]
    assert 0 < steps[0].sum() < steps[1].sum()
    assert set(steps[1].tolist()) <= set(corpus.split("train").frames.tolist())


def test_what_is_wrong_with_an_utterance_is_counted_and_training_goes_on(
    sequence, corpus, offered, tmp_path
):
    table = corpus.utterances
    words = list(table.words)
    words[0] = ("maybe",)  # not in the lexicon
    words[1] = ("no",) * 9  # more states than frames
    strange = replace(corpus, utterances=replace(table, words=tuple(words)))
    offered["tiny"] = strange
    done = train(on(strange, sequence(passes=1)), Store(tmp_path), silent)
    assert done.status == "done"
    assert done.summary["trouble/out of lexicon"] == 1
    assert done.summary["trouble/unreachable"] == 1
    assert len(load_timeline(done.path("timeline.parquet")).decodes) == len(table.id[:28]) - 2


def test_an_utterance_of_which_nothing_is_kept_enters_no_minibatch(sequence, run_sequence):
    done = run_sequence(sequence(criterion=Criterion(kappa=0.5, cancel_below=1e9), passes=1))
    assert done.status == "done"
    assert done.summary["folds"] == 0
    assert done.summary["trouble/nothing kept"] == 28
    assert done.summary["cancelled_frames"] == 1.0


def test_training_raises_the_criterion(sequence, run_sequence):
    done = run_sequence(sequence(rate=0.003, passes=6))
    values = done.curve("held_out_criterion")[1]
    assert values[-1] > values[0]


def test_errors_of_every_test_utterance_are_kept(sequence, run_sequence, corpus):
    found = load_file(run_sequence(sequence()).path(TEST_ERRORS))
    for test in corpus.tests:
        assert len(found[f"{test}/iterate/2"]) == len(corpus.split(test))
        assert found[f"{test}/lengths"].tolist() == [1] * len(corpus.split(test))


def test_a_start_that_diverged_ends_the_run_with_a_word_of_why(sequence, run_sequence, configure):
    bad = configure(activation="relu", algorithm=AsyncSgd(), schedule=Constant(1e38))
    done = run_sequence(sequence(start=bad))
    assert done.status == "diverged"
    start = identity(bad.to_dict())[:SHORT]
    assert done.note.startswith(f"in its cross-entropy start, run {start}, in AsyncSgd at fold ")
    assert done.note.endswith("rate 1e+38")


def test_a_criterion_that_collapsed_is_told_with_its_fold_its_value_and_its_rate(
    sequence, run_sequence
):
    done = run_sequence(sequence(rate=1e4))
    assert done.status == "diverged"
    assert done.note.startswith("in MMI at fold ")
    _, values, _ = done.curve("held_out_criterion")
    last = values[np.isfinite(values)][-1]
    assert f"criterion {last:.3g} at fold " in done.note
    assert done.note.endswith("rate 1e+04")


def test_a_start_that_has_lost_its_model_is_trained_again(sequence, tmp_path, capsys):
    start = train(sequence().task.start, Store(tmp_path), silent)
    model = start.path(MODEL).read_bytes()
    (start.dir / MODEL).unlink()
    assert train(sequence(), Store(tmp_path), silent).status == "done"
    assert (start.dir / MODEL).read_bytes() == model
    assert (
        "without its model.safetensors, which is needed; the run is made again"
        in capsys.readouterr().err
    )


def test_settings_that_are_none_are_refused(sequence):
    with pytest.raises(UserError, match="on the fly"):
        sequence(shuffling="on the fl")
    with pytest.raises(UserError, match="schedule: Exponential is not allowed"):
        sequence(schedule=Exponential(0.1, 2))
    with pytest.raises(UserError, match=r"protocol\.kept: not allowed in training"):
        sequence(protocol=Sequence(kept=0.5))


def test_the_rate_falls_after_a_plateau_and_no_more_often_than_allowed():
    rule = Plateau(1.0, patience=2, least_gain=0.1, factor=0.1, most=2)
    rising = [-10.0, -8.0, -6.0, -5.0, -4.0]
    assert rule.rate_after(rising) == 1.0
    assert rule.rate_after([*rising, -3.9]) == 1.0
    assert rule.rate_after([*rising, -3.9, -3.8]) == 0.1
    assert rule.rate_after([*rising, -3.9, -3.8, -3.8]) == 0.1
    assert rule.rate_after([*rising, -3.9, -3.8, -3.8, -3.8]) == pytest.approx(0.01)
    assert rule.rate_after([*rising, *[-3.8] * 50]) == pytest.approx(0.01)


def test_a_rate_that_falls_at_an_evaluation_does_so_whatever_the_criterion_does():
    rule = Plateau(1.0, least_gain=0.5, factor=0.1, at=(2, 4))
    for values in ([-5.0] * 6, [-5.0, -9.0, -9.0, -1.0, -1.0, -1.0]):
        rates = [rule.rate_after(values[: 1 + readings]) for readings in range(6)]
        assert rates == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("kind", "start", "value", "is_so"),
    [
        ("mmi", -0.02, -0.03, False), ("mmi", -0.02, -0.05, True),
        # Lattices that lose the reference lift the criterion above 0: no value is twice as bad.
        ("mmi", 0.006, 0.006, False), ("mmi", 0.006, -0.01, False), ("mmi", 0.006, math.nan, True),
        ("numerator", -5.0, -50.0, False),
    ],
)  # fmt: skip
def test_a_criterion_has_collapsed_at_twice_the_nats(kind, start, value, is_so):
    assert has_collapsed(kind, start, value) == is_so


UNLIKE = StalenessAware(), DelayCompensated(1.0), PartialFolds(), Ringmaster(1)
"""Of every algorithm that sequence training may have, one that is not plain where it is stale."""


def test_all_that_are_allowed_are_tried():
    ours = {kind for kind in dataclasses_below(Gradients) if kind.__module__.startswith("harness.")}
    assert {type(each) for each in UNLIKE} == ours


@pytest.mark.parametrize("algorithm", UNLIKE, ids=lambda each: type(each).__name__)
def test_gradients_are_folded_by_the_algorithm_that_is_asked_for(algorithm, sequence, run_sequence):
    asked = sequence(passes=1)
    done = run_sequence(replace(asked, algorithm=algorithm))
    assert done.status == "done"
    assert not torch.equal(final(done), final(run_sequence(asked)))


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        ({"algorithm": ClippedSgd()}, "algorithm: ClippedSgd is not allowed; allowed: AsyncS"),
        ({"algorithm": Easgd()}, "algorithm: Easgd is not allowed; allowed: AsyncSgd, or what"),
        ({"algorithm": ServerDescent()}, "algorithm: ServerDescent is not allowed; allowed: A"),
        ({"algorithm": Ringmaster(), "shards": 2}, "shards: 2 is not allowed with Ringmaster"),
        ({"shuffling": "full"}, "shuffling: 'full'; allowed: none, on the fly"),
    ],
)
def test_algorithms_without_gradients_and_other_orders_are_refused(choices, line, sequence):
    with pytest.raises(UserError, match=line):
        sequence(**choices)
