"""What sequence training must guarantee, on a corpus of a few hundred frames."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import linear, log_softmax

from harness.acoustics.dnn import Dnn
from harness.acoustics.inner import InnerLoss
from harness.acoustics.mmi import Criterion, SequenceCriterion
from harness.acoustics.numerator import references_of
from harness.acoustics.stack import Layout
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Constant
from harness.errors import UserError
from harness.execution import sequence_training as module
from harness.execution.frames import Frames
from harness.execution.observe import log_prior
from harness.execution.pretraining import MODEL
from harness.execution.run import WORD_ERRORS, train
from harness.execution.sequence import final_model, train_sequence
from harness.execution.sequence_config import Plateau, SequenceConfig
from harness.execution.sequence_decoding import Decoder, Halves, log_posteriors
from harness.execution.sequence_order import orders, parts
from harness.seeds import stream
from harness.simulator import Timeline
from harness.store import Store

LAYOUT = Layout((9, 6, 5))
KEPT = ("run.json", "metrics.parquet", "timeline.parquet", WORD_ERRORS, MODEL)
EVERY_FRAME = Criterion(kappa=0.5, reject_below=0.0, cancel_below=0.0)


def silent(progress):
    del progress


def kept_bytes(run) -> dict[str, bytes]:
    return {name: run.path(name).read_bytes() for name in KEPT}


@pytest.fixture
def start(configure):
    return configure(activation="relu", algorithm=AsyncSgd(), passes=1)


@pytest.fixture
def sequence(start, corpus, unequal):
    def make(**choices):
        standard = {
            "corpus": "tiny",
            "scale": "smoke",
            "corpus_seed": 0,
            "fingerprint": corpus.fingerprint,
            "start": start,
            "criterion": EVERY_FRAME,
            "cluster": unequal,
            "timed_layers": LAYOUT.sizes,
            "seed": 0,
            "device": "cpu",
            "replicas": 3,
            "slots": 2,
            "rate": 0.01,
            "passes": 2,
            "evaluations": 3,
            "held_out": 3,
            "order": 1,
        }
        return SequenceConfig(**{**standard, **choices})

    return make


@pytest.fixture
def run(corpus, tmp_path):
    return lambda config, watch=silent: train_sequence(config, corpus, Store(tmp_path), watch)


def final(run) -> torch.Tensor:
    return torch.from_numpy(load_file(run.path(MODEL))["model"])


# -- written down from the paper, one utterance and one frame at a time ----------------------


class Naive:
    """Outer and inner gradients of single utterances, by autograd."""

    def __init__(self, config, corpus):
        self.config, self.train = config, corpus.split("train")
        self.frames = Frames.of(corpus, "cpu")
        references = references_of(corpus)
        self.criterion = SequenceCriterion(config.criterion, references, log_prior(corpus))

    def inputs(self, utterance):
        first, length = self.train.start[utterance], self.train.frames[utterance]
        return self.frames.gather(torch.arange(first, first + length).unsqueeze(0)).x[0]

    def posteriors(self, model, x):
        first, last = LAYOUT.views(model.unsqueeze(0))
        hidden = torch.relu(linear(x, first.weight[0], first.bias[0]))
        return log_softmax(linear(hidden, last.weight[0], last.bias[0]).double(), 1)

    def decoded(self, model, utterance):
        """Inputs and outer gradients of the frames an utterance keeps."""
        x = self.inputs(utterance)
        words = self.train.words[utterance]
        outer = self.criterion.outer(self.posteriors(model, x).numpy(), words)
        kept = np.flatnonzero(outer.kept)
        return x[kept], torch.from_numpy(outer.gradient[kept])

    def stepped(self, model, read, frames):
        """The model after one step along the gradient of some frames at the parameters read."""
        parameters = read.clone().requires_grad_()
        x = torch.stack([x for x, _ in frames])
        outer = torch.stack([o for _, o in frames])
        (outer * self.posteriors(parameters, x)).sum().backward()
        return model + self.config.rate * parameters.grad


class Plain(Naive):
    """The same with the arithmetic that runs are made of."""

    def posteriors(self, model, x):
        return torch.from_numpy(log_posteriors(Dnn(LAYOUT, "relu"), model, x))

    def stepped(self, model, read, frames):
        x = torch.stack([x for x, _ in frames]).unsqueeze(0)
        outer = torch.stack([o for _, o in frames]).float().unsqueeze(0)
        out = torch.empty_like(read.unsqueeze(0))
        InnerLoss(Dnn(LAYOUT, "relu")).gradient(read.unsqueeze(0), x, outer, out)
        return model.sub(out[0], alpha=self.config.rate)


def close(ours, theirs, moved):
    """Equal up to what single precision loses, compared with how far training went."""
    assert (ours - theirs).abs().max() < 1e-4 * moved
    assert moved > 1e-2


def initial_of(config, corpus, tmp_path):
    return final_model(train(config.start, corpus, Store(tmp_path), silent))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("oracle", [Naive, Plain])
def test_one_replica_with_zero_latency_is_plain_sequential_training(
    slots, oracle, sequence, run, corpus, tmp_path, zero_cost
):
    config = sequence(replicas=1, slots=slots, cluster=zero_cost)
    ours, naive = final(run(config)), oracle(config, corpus)
    model = initial = initial_of(config, corpus, tmp_path)
    utterances = iter(orders(0, len(naive.train), 1, 2)[0].tolist())
    slot, left = [[] for _ in range(slots)], True
    while True:
        for place in range(slots):
            while left and not slot[place]:
                number = next(utterances, None)
                if number is None:
                    left = False
                else:
                    slot[place] = list(zip(*naive.decoded(model, number), strict=True))
        frames = [frames.pop(0) for frames in slot if frames]
        if not frames:
            break
        model = naive.stepped(model, model, frames)
    close(ours, model, (model - initial).abs().max())
    assert oracle is Naive or torch.equal(ours, model)


def test_without_shuffling_minibatches_are_cut_from_one_utterance_after_another(
    sequence, run, corpus, tmp_path, zero_cost
):
    config = sequence(replicas=1, slots=4, cluster=zero_cost, shuffling="none", passes=1)
    ours, naive = final(run(config)), Naive(config, corpus)
    model = initial = initial_of(config, corpus, tmp_path)
    gathered = []
    for number in orders(0, len(naive.train), 1, 1)[0].tolist():
        gathered += zip(*naive.decoded(model, number), strict=True)
        while len(gathered) >= 4:
            model, gathered = naive.stepped(model, model, gathered[:4]), gathered[4:]
    if gathered:
        model = naive.stepped(model, model, gathered)
    close(ours, model, (model - initial).abs().max())


@pytest.mark.parametrize("fetch_s", [None, 0.02])
def test_stale_training_equals_a_walk_along_the_timeline_that_keeps_every_version(
    fetch_s, sequence, run, corpus, tmp_path
):
    criterion = Criterion(kappa=0.1, numerator="sum", cancel_below=0.01)
    config = sequence(fetch_s=fetch_s, criterion=criterion, rate=0.05)
    done, naive = run(config), Naive(config, corpus)
    timeline = Timeline.load(done.path("timeline.parquet"))
    rows, decodes = timeline.folded(), timeline.decodes
    order = orders(0, len(naive.train), 3, 2)
    assert len(decodes) == 2 * len(naive.train)  # none of which nothing was kept
    assert decodes.steps.sum() < 2 * corpus.frames_of("train")  # and not everything
    versions = [initial_of(config, corpus, tmp_path)]
    utterances = {}
    for worker, version, step in zip(
        rows.worker.tolist(), rows.read_version.tolist(), rows.first_step.tolist(), strict=True
    ):
        own = int(((rows.worker == worker) & (rows.first_step < step)).sum())
        frames = []
        for number, row in enumerate(np.flatnonzero(decodes.worker == worker).tolist()):
            first, steps = int(decodes.first_step[row]), int(decodes.steps[row])
            if first <= own < first + steps:
                if row not in utterances:
                    read = versions[int(decodes.decode_version[row])]
                    kept = naive.decoded(read, int(order[worker, number]))
                    utterances[row] = list(zip(*kept, strict=True))
                    assert len(utterances[row]) == steps
                frames.append((int(decodes.slot[row]), utterances[row][own - first]))
        frames = [frame for _, frame in sorted(frames, key=lambda pair: pair[0])]
        versions.append(naive.stepped(versions[-1], versions[version], frames))
    assert timeline.staleness().max() > 1
    assert (rows.read_version - rows.decode_version).max() > 3
    close(final(done), versions[-1], (versions[-1] - versions[0]).abs().max())


def test_full_shuffling_decodes_a_pass_with_the_parameters_it_begins_with(
    sequence, run, corpus, tmp_path
):
    config = sequence(replicas=1, slots=4, shuffling="full", passes=1, rate=0.003)
    done, naive = run(config), Naive(config, corpus)
    initial = initial_of(config, corpus, tmp_path)
    pairs = [naive.decoded(initial, number) for number in range(len(naive.train))]
    frames = [frame for pair in pairs for frame in zip(*pair, strict=True)]
    assert done.summary["folds"] == math.ceil(len(frames) / 4)
    shuffled = stream(0, "sequence frames", 0).permutation(len(frames))
    model = initial
    for at in range(0, len(frames), 4):
        model = naive.stepped(model, model, [frames[i] for i in shuffled[at : at + 4]])
    close(final(done), model, (model - initial).abs().max())
    timeline = Timeline.load(done.path("timeline.parquet"))
    decode = timeline.spans.where(timeline.spans.kind == timeline.kinds.index("decode"))
    assert decode.start_s.tolist() == [0.0]
    assert decode.end_s[0] > 0.0


@pytest.mark.parametrize("layers", ["all", "last"])
def test_utterances_decoded_as_a_batch_give_what_each_gives_alone(
    layers, sequence, corpus, tmp_path
):
    criterion = Criterion(kappa=0.1, cancel_below=0.1)
    config = sequence(layers=layers, criterion=criterion)
    model = initial_of(config, corpus, tmp_path)
    halves, part = Halves.of(Dnn(LAYOUT, "relu"), model, layers)
    single = Naive(config, corpus).criterion
    train, frames = corpus.split("train"), Frames.of(corpus, "cpu")
    decoder = Decoder(config, halves, frames, train, single)
    models, utterances = [part * (1 + 0.1 * k) for k in range(4)], [3, 17, 5, 11]
    alone, batch = decoder.decode(models, utterances), decoder.together(models, utterances)
    for a, b in zip(alone, batch, strict=True):
        torch.testing.assert_close(a.x, b.x, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.outer, b.outer, rtol=1e-5, atol=1e-6)
        assert a.seen._replace(value=0.0) == b.seen._replace(value=0.0)
        assert a.seen.value == pytest.approx(b.seen.value, rel=1e-5)
    assert 0 < sum(len(a.x) for a in alone) < train.frames[utterances].sum()


# -- promises every run makes -------------------------------------------------------------------

WAYS = {
    "on the fly": {"shuffling": "on the fly"},
    "none": {"shuffling": "none", "slots": 3},
    "full": {"shuffling": "full"},
    "last": {"layers": "last", "fetch_s": 0.02},
    "numerator": {"criterion": Criterion("numerator", kappa=0.5), "update_silence": False},
}


def test_two_trainings_of_one_configuration_give_the_same_bytes(sequence, corpus, tmp_path):
    runs = [train_sequence(sequence(), corpus, Store(tmp_path / name), silent) for name in "ab"]
    assert kept_bytes(runs[0]) == kept_bytes(runs[1])


def test_another_seed_gives_another_timeline_and_another_model(sequence, run):
    one, two = (run(sequence(seed=seed)) for seed in (0, 1))
    assert one.hash != two.hash
    assert one.summary["timeline_sha256"] != two.summary["timeline_sha256"]
    assert not torch.equal(final(one), final(two))


class Killed(BaseException):
    """Stands for a process that dies."""


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_dies_and_resumes_gives_the_bytes_of_one_that_did_not(
    way, sequence, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "CHECKPOINT_EVERY_S", -1e9)
    monkeypatch.setattr(module, "CHECKPOINT_SHARE", float("inf"))  # a checkpoint at every stop
    config = sequence(plateau=Plateau(1, 0.5), **WAYS[way])
    whole = train_sequence(config, corpus, Store(tmp_path / "whole"), silent)
    assert whole.status == "done"
    store = Store(tmp_path / "killed")
    train(config.start, corpus, store, silent)
    for death in (2, 1, 3):
        told = 0

        def die(progress, death=death):
            nonlocal told
            told += 1
            if told > death:
                raise Killed

        with pytest.raises(Killed):
            train_sequence(config, corpus, store, die)
        assert (store.path / whole.hash / "checkpoint").is_dir()
    resumed = train_sequence(config, corpus, store, silent)
    assert kept_bytes(resumed) == kept_bytes(whole)


def test_a_finished_run_is_not_trained_again(sequence, run):
    run(sequence())

    def never(progress):
        raise AssertionError("trained again")

    run(sequence(), never)


@pytest.mark.parametrize("way", ["on the fly", "none", "full"])
def test_every_kept_frame_is_trained_on_in_every_pass(way, sequence, run, corpus):
    done = run(sequence(rate=1e-4, **WAYS[way]))
    timeline = Timeline.load(done.path("timeline.parquet"))
    frames = round(done.summary["kept_frames"] * done.summary["decoded_frames"])
    assert done.summary["decoded_frames"] == 2 * corpus.frames_of("train")
    assert done.summary["utterances"] == 2 * len(corpus.split("train"))
    if way != "full":
        assert int(timeline.decodes.steps.sum()) == frames
    assert done.summary["folds"] == len(timeline.folds)
    assert done.summary["epochs"] == 2.0


def test_a_rate_that_is_too_large_ends_as_diverged_with_the_time(sequence, run):
    done = run(sequence(rate=1e38))
    assert done.status == "diverged"
    assert "simulated seconds" in done.note
    assert done.summary["virtual_s"] > 0


def test_a_criterion_that_collapses_ends_the_run_too(sequence, run):
    done = run(sequence(rate=30.0, criterion=Criterion(kappa=0.5)))
    assert done.status == "diverged"


def test_no_pass_measures_the_start(sequence, run, corpus, tmp_path):
    done = run(sequence(passes=0))
    assert done.summary["folds"] == 0
    assert torch.equal(final(done), initial_of(sequence(), corpus, tmp_path))
    assert 0.0 <= done.summary["clean_word_error/iterate"] <= 1.0


def test_the_last_layer_alone_moves_where_only_it_is_updated(sequence, run, corpus, tmp_path):
    ours = final(run(sequence(layers="last")))
    before = initial_of(sequence(), corpus, tmp_path)
    below = Layout(LAYOUT.sizes[:-1]).parameters
    assert torch.equal(ours[:below], before[:below])
    assert not torch.equal(ours[below:], before[below:])


def test_a_trunk_and_a_top_compute_what_the_whole_network_does(corpus, sequence, tmp_path):
    model = initial_of(sequence(), corpus, tmp_path)
    net, x = Dnn(LAYOUT, "relu"), torch.randn(11, 9)
    halves, part = Halves.of(net, model, "last")
    top = halves.net.logits(part.unsqueeze(0), halves.inputs(x).unsqueeze(0))
    assert torch.equal(top, net.logits(model.unsqueeze(0), x))
    assert torch.equal(halves.whole(part), model)


def test_silence_that_is_not_updated_keeps_its_outputs(sequence, run, corpus, tmp_path):
    silent_corpus = replace(corpus, silence=(1,))
    config = sequence(update_silence=False)
    done = train_sequence(config, silent_corpus, Store(tmp_path), silent)
    before, after = initial_of(config, corpus, tmp_path), final(done)
    rows = [LAYOUT.views(model.unsqueeze(0))[-1].weight[0] for model in (before, after)]
    assert torch.equal(rows[0][1], rows[1][1])
    assert not torch.equal(rows[0][2], rows[1][2])


def test_frames_that_are_not_kept_enter_as_zeros_where_all_enter(sequence, run, corpus):
    criterion = Criterion(kappa=0.5, cancel_below=0.5)
    some, every = (run(sequence(criterion=criterion, frames=name)) for name in ("kept", "all"))
    steps = [Timeline.load(r.path("timeline.parquet")).decodes.steps for r in (some, every)]
    assert 0 < steps[0].sum() < steps[1].sum()
    assert set(steps[1].tolist()) <= set(corpus.split("train").frames.tolist())


def test_what_is_wrong_with_an_utterance_is_counted_and_training_goes_on(
    sequence, corpus, tmp_path
):
    table = corpus.utterances
    words = list(table.words)
    words[0] = ("maybe",)  # not in the lexicon
    words[1] = ("no",) * 9  # more states than frames
    strange = replace(corpus, utterances=replace(table, words=tuple(words)))
    config = sequence(passes=1, fingerprint=strange.fingerprint)
    done = train_sequence(config, strange, Store(tmp_path), silent)
    assert done.status == "done"
    assert done.summary["trouble/out of lexicon"] == 1
    assert done.summary["trouble/unreachable"] == 1
    assert len(Timeline.load(done.path("timeline.parquet")).decodes) == len(table.id[:28]) - 2


def test_an_utterance_of_which_nothing_is_kept_enters_no_minibatch(sequence, run):
    done = run(sequence(criterion=Criterion(kappa=0.5, cancel_below=1e9), passes=1))
    assert done.status == "done"
    assert done.summary["folds"] == 0
    assert done.summary["trouble/nothing kept"] == 28
    assert done.summary["cancelled_frames"] == 1.0


def test_older_outer_gradients_come_from_a_longer_fetch_interval(sequence, run):
    often, seldom = (run(sequence(fetch_s=seconds)) for seconds in (0.005, 0.1))
    assert seldom.summary["outer_lag_s_mean"] > 2 * often.summary["outer_lag_s_mean"]
    assert seldom.summary["inner_lag_s_mean"] < 2 * often.summary["inner_lag_s_mean"]


def test_training_raises_the_criterion(sequence, run):
    done = run(sequence(rate=0.003, passes=6))
    values = done.curve("held_out_criterion")[1]
    assert values[-1] > values[0]


def test_errors_of_every_test_utterance_are_kept(sequence, run, corpus):
    found = load_file(run(sequence()).path(WORD_ERRORS))
    for test in corpus.tests:
        assert len(found[f"{test}/iterate/2"]) == len(corpus.split(test))
        assert found[f"{test}/lengths"].tolist() == [1] * len(corpus.split(test))


def test_a_start_that_diverged_ends_the_run_with_a_word_of_why(sequence, run, configure):
    bad = configure(activation="relu", algorithm=AsyncSgd(), schedule=Constant(1e38))
    done = run(sequence(start=bad))
    assert done.status == "diverged"
    assert done.note.startswith("its start, run ")
    assert "simulated seconds" in done.note


def test_a_start_that_kept_no_model_is_refused_in_one_line(sequence, run, corpus, tmp_path):
    start = train(sequence().start, corpus, Store(tmp_path), silent)
    start.path(MODEL).unlink()
    with pytest.raises(UserError, match=r"has kept no model.safetensors; delete"):
        run(sequence())


def test_settings_that_are_none_are_refused(sequence):
    with pytest.raises(UserError, match="on the fly"):
        sequence(shuffling="on the fl")
    with pytest.raises(UserError, match="replicas"):
        sequence(replicas=0)
    with pytest.raises(UserError, match="rate"):
        sequence(rate=0.0)


def test_replicas_have_parts_that_together_are_everything_once_a_pass():
    dealt = parts(3, 29, 4)
    assert sorted(map(len, dealt)) == [7, 7, 7, 8]
    assert sorted(np.concatenate(dealt).tolist()) == list(range(29))
    order = orders(3, 29, 4, 2)
    assert order.shape == (4, 16)
    for replica, part in enumerate(dealt):
        mine = order[replica][order[replica] >= 0]
        assert sorted(mine[: len(part)].tolist()) == sorted(part.tolist())
        assert sorted(mine[len(part) :].tolist()) == sorted(part.tolist())
        assert mine[: len(part)].tolist() != mine[len(part) :].tolist()


def test_the_rate_falls_after_a_plateau_and_no_more_often_than_allowed():
    rule = Plateau(patience=2, least_gain=0.1, factor=0.1, most=2)
    rising = [-10.0, -8.0, -6.0, -5.0, -4.0]
    assert rule.rate(1.0, rising) == 1.0
    assert rule.rate(1.0, [*rising, -3.9]) == 1.0
    assert rule.rate(1.0, [*rising, -3.9, -3.8]) == 0.1
    assert rule.rate(1.0, [*rising, -3.9, -3.8, -3.8]) == 0.1
    assert rule.rate(1.0, [*rising, -3.9, -3.8, -3.8, -3.8]) == pytest.approx(0.01)
    assert rule.rate(1.0, [*rising, *[-3.8] * 50]) == pytest.approx(0.01)
