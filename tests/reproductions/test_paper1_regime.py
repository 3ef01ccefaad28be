"""The map of paper 1: its cells' settings, and the ratios of runs made by hand."""

from dataclasses import replace

import pytest

from reproductions.paper import Subject, corpus_without_speech
from reproductions.paper1_async_asgd import PAPER, regime
from reproductions.paper1_async_asgd.experiments import PRESETS
from tests.reproductions.by_hand import RunsByHand


def subject(corpus: str, seed: int) -> Subject:
    return Subject("overnight", corpus_without_speech(corpus), seed, "cpu")


def test_cells_have_what_is_registered_and_the_tuned_settings_of_their_scale():
    for size in regime.SCALING.sizes:
        cell, width = size.settings, size.settings["width"]
        runs = regime.configs(subject(size.corpus, 6401), 6401, size)
        assert {run.task.hidden for run in runs.values()} == {(width,) * 3}
        assert runs["multi_pass"].stages[1].minibatch == cell["minibatch"]
        assert runs["search"].schedule.rate == PRESETS[cell["settings"]].chosen["search"].rate
        parameters = 430 * width + 2 * (width + 1) * width + (width + 1) * 355
        frames = size.at * cell["minibatch"]
        assert frames / parameters == pytest.approx(cell["frames_a_parameter"], rel=0.03)
        # A chunk is the paper's 1,406 minibatches, but for the overnight report's own runs.
        assert size.at == 119_000 or cell["chunks"] == pytest.approx(size.at / 1_406, abs=0.5)


def test_the_overnight_reports_own_runs_are_a_cell():
    size = next(size for size in regime.SCALING.sizes if size.at == 119_000)
    speech = subject(size.corpus, 6101)
    own, names = PAPER.experiments(speech, 6101), ("one_pass_hand", "one_pass", "multi_pass")
    assert size.seeds == PAPER.seeds_of("overnight")
    assert [*regime.configs(speech, 6101, size).values()] == [own[name] for name in names]


def test_the_map_has_a_series_for_each_number_of_frames_a_parameter_and_no_diverged_cell(tmp_path):
    book, tests = RunsByHand(tmp_path, 400), regime.TESTS

    def arms(error: float) -> dict:
        rates = {f"{test}/{model}/0": error for test in tests for model in ("average", "iterate")}
        last = book.finish({"passes": 3}, [], {f"{test}/iterate/2": 0.1 for test in tests})
        return {"multi_pass": last, **{a: book.finish({}, [], rates) for a in regime.FALLING}}

    errors = {(28_000, 6401): 0.29, (28_000, 6402): 0.31, (7_000, 6401): 0.9}
    errors |= {(357_000, 6401): 0.14, (357_000, 6402): 0.15, (357_000, 6403): 0.16}
    finished = {key: arms(error) for key, error in errors.items()}
    lost = finished[7_000, 6401]
    lost["search"] = replace(lost["search"], status="diverged")
    rows = {(row.label, row.column): row for row in regime.regime(finished).rows}
    assert rows["3.8 frames a parameter, clean", 28_000].ci95 is None
    whole = rows["194 frames a parameter, noise", 357_000]
    assert whole.ci95[0] < 1.5 < whole.ci95[1]
    assert rows["3.8 frames a parameter, clean", 703_125].paper == 1.034
    assert len(rows) == 2 * 3
