from __future__ import annotations

import json
from dataclasses import replace

import kaldialign
import numpy as np
import pytest
from safetensors.numpy import load_file

from data_synth import continuous as c
from data_synth.invented_language import Manner
from data_synth.storage import load, write_chunks
from harness.acoustics.language_model import train
from harness.cli import main
from harness.commands.recognise import System, config_of
from harness.speech.evaluation import Decoding, Transcriber
from harness.speech.recognise import ERRORS, HEARD, Place, run_recognition
from harness.store import Store
from tests.arpa_files import write_arpa
from tests.silence import silent

TINY = c.Recipe(
    train=40,
    dev=6,
    speakers=3,
    test_speakers=2,
    words=12,
    phones=8,
    variants=1,
    mean_state_frames=4.0,
    manner=Manner(sentence_words=(2, 4)),
    snr_db=(30.0, 40.0),
    lm_sentences=40,
    conditions=(c.Condition("near", 8), c.Condition("far", 8, snr_db=(0.0, 5.0))),
)
QUICK = System("tiny", initial="random", hidden=(12,), rate=0.02, minibatch=16, passes=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpora") / "tiny"
    place.mkdir()
    maker = c.Maker(TINY)
    write_chunks(place, maker.card(), c.chunks(maker))
    return place


@pytest.fixture(scope="module")
def corpus(folder):
    return load(folder)


@pytest.fixture(scope="module")
def found(folder, corpus, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    config = config_of(QUICK, Place(str(folder), "smoke", 0), corpus, 11, "cpu")
    return config, store, run_recognition(config, store, silent)


def test_kept_errors_are_those_of_what_was_heard(corpus, found):
    _, _, run = found
    errors = load_file(run.path(ERRORS))
    heard = json.loads(run.path(HEARD).read_text(encoding="utf-8"))
    for test in corpus.tests:
        said = corpus.split(test).words
        pairs = zip(said, heard[test], strict=True)
        theirs = [kaldialign.edit_distance(s, h)["total"] for s, h in pairs]
        assert errors[f"{test}/words/edits"].sum(axis=1).tolist() == theirs
        assert errors[f"{test}/words/lengths"].tolist() == [len(s) for s in said]
        phones = [sum(len(corpus.pronunciations[word]) for word in s) for s in said]
        assert errors[f"{test}/phones/lengths"].tolist() == phones
        letters = [len(" ".join(s)) for s in said]
        assert errors[f"{test}/characters/lengths"].tolist() == letters


def test_a_trained_network_recognises_more_than_half_of_clear_speech(corpus, found):
    errors = load_file(found[2].path(ERRORS))
    wrong = errors["near/words/edits"].sum() / errors["near/words/lengths"].sum()
    assert wrong < 0.5


def test_a_finished_recognition_is_not_made_again(found):
    config, store, run = found
    before = {p: p.stat().st_mtime_ns for p in run.dir.iterdir() if not p.name.startswith(".lease")}
    assert run_recognition(config, store, silent).hash == run.hash
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_another_decoding_takes_the_trained_model_as_it_is(found):
    config, store, run = found
    trained = {r.hash for r in store.runs() if "decoding" not in r.config}
    other = replace(config, decoding=Decoding(order=1, scales=(0.5,), insertions=(0.0,)))
    again = run_recognition(other, store, silent)
    assert again.hash != run.hash
    assert again.summary["trained"] == run.summary["trained"]
    assert {r.hash for r in store.runs() if "decoding" not in r.config} == trained


def test_tuning_asks_for_dev_before_any_test_and_for_nothing_twice(corpus):
    asked = []

    def scores_of(part):
        asked.append(set(part.split.tolist()))
        eye = np.eye(corpus.n_targets)
        return [
            np.log(eye[corpus.targets[s : s + n]] + 1e-3)
            for s, n in zip(part.start, part.frames, strict=True)
        ]

    transcriber = Transcriber(corpus, Decoding(scales=(0.5, 1.0), insertions=(0.0, 2.0)))
    tuned = transcriber.tune_decoding(scores_of)
    for test in corpus.tests:
        heard = transcriber.hear(test, scores_of, tuned)
        assert heard == list(corpus.split(test).words)
    assert asked == [{"dev"}, {"near"}, {"far"}]
    assert len(tuned.trials) > 2


def test_words_outside_the_text_are_counted_unless_the_vocabulary_is_closed(corpus):
    missing = corpus.split("near").words[0][0]
    text = tuple(s for s in corpus.lm_text if missing not in s)
    poor = replace(corpus, lm_text=text)
    words = [w for said in corpus.split("near").words for w in said]
    assert Transcriber(poor, Decoding()).oov_rate("near") >= words.count(missing) / len(words) > 0
    assert Transcriber(poor, Decoding(closed=True)).oov_rate("near") == 0.0


def test_an_arpa_file_takes_the_place_of_the_corpus_text(corpus, tmp_path):
    path = tmp_path / "lm.arpa"
    write_arpa(train(corpus.lm_text[:3], 1), path)
    known = {word for said in corpus.lm_text[:3] for word in said}
    assert Transcriber(corpus, Decoding(), path).vocabulary == known


def test_single_words_are_recognised_without_a_language_model(corpus):
    said = corpus.utterances
    first = tuple((words[0],) for words in said.words)
    alone = replace(corpus, lm_text=(), utterances=replace(said, words=first))
    transcriber = Transcriber(alone, Decoding())
    part = alone.split("near")

    def scores_of(part):
        states = [alone.lexicon[words[0]] for words in part.words]
        eye = np.eye(alone.n_targets)
        return [np.log(eye[np.repeat(s, 2)] + 1e-6) for s in states]

    homophones = {
        w
        for w in alone.lexicon
        for v in alone.lexicon
        if v != w and alone.lexicon[v] == alone.lexicon[w]
    }
    tuned = transcriber.tune_decoding(scores_of)
    assert tuned is None
    heard = transcriber.hear("near", scores_of, tuned)
    for (word,), (answer,) in zip(part.words, heard, strict=True):
        assert answer == word or word in homophones


def test_the_command_compares_two_systems_over_seeds(folder, tmp_path, capsys):
    out, file = tmp_path / "runs", tmp_path / "found.json"
    quick = ["--initial", "random", "--hidden", "12", "--rate", "0.02", "--minibatch", "16"]
    where = ["--passes", "2", "--jobs", "1", "--out", str(out), "--json", str(file)]
    command = ["recognise", str(folder), *quick, *where, "--seeds", "2", "--against", "hidden=none"]
    assert main(command) == 0
    said = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert [s["system"] for s in found["systems"]] == ["random 12", "linear"]
    assert [s["seeds"] for s in found["systems"]] == [[11, 12], [11, 12]]
    near = found["systems"][0]["tests"]["near"]
    assert len(near["words"]["of_seeds"]) == 2
    rates = [one["rate"] for one in near["words"]["of_seeds"]]
    assert near["words"]["rate"] == pytest.approx(np.mean(rates))
    difference = found["difference"]["near"]
    other = found["systems"][1]["tests"]["near"]["words"]["rate"]
    assert difference["difference"] == pytest.approx(near["words"]["rate"] - other)
    low, high = difference["ci95"]
    assert low <= difference["difference"] <= high
    for seed, one in zip((11, 12), near["words"]["of_seeds"], strict=True):
        inserted, deleted, replaced = (
            int(one[kind]) for kind in ("insertions", "deletions", "substitutions")
        )
        wrong, length = inserted + deleted + replaced, near["words"]["length"]
        counted = f"[ {wrong} / {length}, {inserted} ins, {deleted} del, {replaced} sub ]"
        assert one["rate"] == pytest.approx(wrong / length)
        assert f"random 12, near, seed {seed}: %WER {100 * wrong / length:.2f} {counted}" in said
    assert "near: random 12 less linear: " in said
    assert "matched pairs p = " in said
    assert near["phones"]["rate"] <= 1.0
    for system in found["systems"]:
        for seed, tuned in zip(system["seeds"], system["tuned"], strict=True):
            told = f"Dev cannot decide the scale of seed {seed}: {tuned['scale_low']:g} to"
            assert (told in said) == (not tuned["scale_decided"])
    assert main(command) == 0
    assert capsys.readouterr().out == said


def test_a_system_that_diverged_is_told_with_its_stage_and_rate(folder, tmp_path, capsys):
    quick = ["--initial", "random", "--hidden", "12", "--rate", "1e38", "--minibatch", "16"]
    where = ["--passes", "1", "--jobs", "1", "--seeds", "1", "--out", str(tmp_path)]
    assert main(["recognise", str(folder), *quick, *where]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("random 12 seed 11 (")
    assert ") diverged in AsyncSgd at fold " in last
    assert last.endswith("rate 1e+38")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["parametrik"], "did you mean 'parametric'?"),
        (["parametric", "--initial", "rmb"], "did you mean 'rbm'?"),
        (["parametric", "--hidden", "12,x"], "--hidden 'x': a whole number from 1"),
        (["parametric", "--rate", "-1"], "--rate '-1': a positive number"),
        (["parametric", "--against", "hidden"], "KEY=VALUE is allowed"),
        (["parametric", "--against", "hiden=2"], "did you mean 'hidden'?"),
        (["parametric", "--seeds", "0"], "--seeds '0': a whole number from 1"),
        (["parametric", "--lm", "no.arpa"], "--lm no.arpa: no such file"),
        (["parametric", "--closed", "perhaps"], "allowed: no, yes"),
        (["parametric", "--jobs", "0"], "--jobs: '0' is not allowed; allowed: a"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["recognise", *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
