import math

import numpy as np
import pytest
from scipy import stats

from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.scoring import (
    INSERTIONS,
    SCALES,
    Plateau,
    is_clearly_worse,
    plateau,
    recognise,
    tune,
    word_errors,
)
from harness.base.seeds import stream
from tests.stand_in import LEXICON, TEXT, spoken


def noisy(corpus, noise):
    """Log posteriors minus priors that know the target, under noise."""

    def scores_of(utterances):
        for start, frames in zip(utterances.start, utterances.frames, strict=True):
            rows = corpus.targets[start : start + frames]
            draw = stream(5, "noise", int(start)).normal(size=(frames, 4))
            yield 3.0 * np.eye(4)[rows] + noise * draw

    return scores_of


GRAPH = decoding_graph(train(TEXT, 2), Lexicon.from_entries(LEXICON))
CORPUS = spoken([*TEXT * 6, ("no",)], ["dev"] * 30 + ["clean"])
DEV = CORPUS.split("dev")


def test_clean_scores_are_recognised_without_error_and_with_their_times():
    found = recognise(GRAPH, noisy(CORPUS, 0.0)(DEV), 1.0)
    assert [f.words for f in found] == list(DEV.words)
    assert found[0].start == (0, 6)
    assert found[0].end == (6, 12)


def errors_of(rates, utterances=400):
    """Errors of as many utterances at each setting: 0 or 1, drawn once for all settings."""
    draw = stream(6, "errors").random(utterances)
    tried = []

    def errors(setting):
        tried.append(setting)
        return (draw < rates[setting]).astype(np.int64)

    return errors, tried


LADDER = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def test_the_search_goes_on_from_the_middle_until_both_sides_are_clearly_worse():
    errors, tried = errors_of(dict(zip(LADDER, (0.9, 0.1, 0.1, 0.3, 0.5, 0.7, 0.9), strict=True)))
    assert plateau(LADDER, errors) == Plateau(3.0, 2.0, 3.0, decided=True)
    assert tried == [4.0, 3.0, 5.0, 2.0, 1.0]


def test_of_a_plateau_the_middle_is_used_and_not_the_best_by_chance():
    counts = dict.fromkeys(LADDER, [1] * 9 + [0]) | {
        2.0: [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        3.0: [0, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        4.0: [0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    }
    found = plateau(LADDER, lambda setting: np.array(counts[setting]))
    assert found == Plateau(3.0, 2.0, 4.0, decided=True)


def test_of_two_middles_the_one_with_fewer_errors_is_used_then_the_one_nearer_the_beginning():
    bad, good, better = [1] * 9 + [0], [1, 1] + [0] * 8, [1] + [0] * 9
    for two, three, used in ((good, good, 3.0), (better, good, 2.0), (good, better, 3.0)):
        counts = dict.fromkeys(LADDER, bad) | {2.0: two, 3.0: three}
        found = plateau(LADDER, lambda setting, counts=counts: np.array(counts[setting]))
        assert found == Plateau(used, 2.0, 3.0, decided=True)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((0.1, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9), Plateau(2.0, 1.0, 2.0, decided=False)),
        ((0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.1), Plateau(6.0, 6.0, 7.0, decided=False)),
        ((0.0,) * 7, Plateau(4.0, 1.0, 7.0, decided=False)),
    ],
)
def test_a_plateau_that_reaches_the_last_setting_is_called_undecided(rates, expected):
    errors, _ = errors_of(dict(zip(LADDER, rates, strict=True)))
    assert plateau(LADDER, errors) == expected


def test_a_single_setting_leaves_nothing_to_decide():
    assert plateau((0.5,), lambda _: np.zeros(3, np.int64)) == Plateau(0.5, 0.5, 0.5, decided=True)


@pytest.mark.parametrize("share", [0.5, 1.0, 1.5, 2.0])
def test_what_is_clearly_worse_differs_by_two_standard_errors_of_the_pairs(share):
    """Of 400 utterances that all differ much, ``worse`` have one error more and 10 one less."""
    base = stream(7, "utterances").integers(0, 9, 400)
    worse, better = round(10 + share * math.sqrt(60)), 10
    other = base + np.repeat([1, -1, 0], [worse, better, 400 - worse - better])
    t = stats.ttest_rel(other, base).statistic
    assert is_clearly_worse(other, base) == (t > 2.0)
    assert not is_clearly_worse(base, other)


def test_equal_errors_and_a_single_utterance_tell_nothing():
    same = np.array([3, 0, 1])
    assert not is_clearly_worse(same, same)
    assert not is_clearly_worse(np.array([9]), np.array([0]))


def test_models_of_one_task_find_scales_in_proportion_to_their_scores():
    scores = list(noisy(CORPUS, 4.0)(DEV))
    one = tune(DEV.words, scores, GRAPH, insertions=(0.0,))
    softer = tune(DEV.words, [each / 10.0 for each in scores], GRAPH, insertions=(0.0,))
    assert softer.scale.middle == pytest.approx(10.0 * one.scale.middle)
    assert softer.best.rate == one.best.rate
    assert one.decided


def test_every_trial_has_the_error_rate_of_its_own_setting():
    scores = list(noisy(CORPUS, 4.0)(DEV))
    tuned = tune(DEV.words, scores, GRAPH, scales=(0.05, 0.3, 3.0), insertions=(-3.0, 0.0, 3.0))
    for trial in tuned.trials:
        found = recognise(GRAPH.with_insertion_penalty(trial.insertion), scores, trial.scale)
        assert trial.rate == word_errors(DEV.words, [each.words for each in found]).rate
    assert tuned.best in tuned.trials
    assert len({trial.rate for trial in tuned.trials}) > 1


def test_penalties_are_tried_at_the_chosen_scale_and_at_no_other():
    scores = list(noisy(CORPUS, 4.0)(DEV))
    tuned = tune(DEV.words, scores, GRAPH, insertions=(-1.0, 0.0, 1.0))
    tried = [(trial.scale, trial.insertion) for trial in tuned.trials]
    assert [each for each in tried if each[1]] == [(tuned.scale.middle, i) for i in (-1.0, 1.0)]
    assert tuned.scale.low < tuned.scale.middle == tuned.best.scale < tuned.scale.high


def test_scales_are_a_geometric_ladder_that_begins_in_its_middle():
    ratios = np.diff(np.log10(SCALES))
    np.testing.assert_allclose(ratios, 1 / 6, atol=0.02)
    assert SCALES[len(SCALES) // 2] == 0.33
    assert (SCALES[0], SCALES[-1]) == (0.01, 10.0)
    assert INSERTIONS[len(INSERTIONS) // 2] == 0.0
