import numpy as np
import pytest
from scipy.stats import norm

from data_synth import align as a
from harness.base.seeds import stream
from tests.stand_in import utterances

LEXICON = {"ab": (1, 2), "bc": (2, 3), "long": (1, 2, 3, 1, 2, 3)}
SILENCE = (0,)


def spoken(seed, count=60, spread=0.4):
    """Utterances of two words whose states are far apart; features, true targets, table."""
    rng = stream(seed, "spoken")
    centres = 3.0 * rng.normal(size=(4, 5))
    words = [("ab",) if rng.random() < 0.5 else ("bc",) for _ in range(count)]
    targets = []
    for (word,) in words:
        states = [0, *LEXICON[word], 0]
        targets.append(np.repeat(states, rng.integers(2, 8, size=len(states))))
    frames = np.array([len(t) for t in targets])
    truth = np.concatenate(targets)
    features = centres[truth] + spread * rng.normal(size=(len(truth), 5))
    table = utterances(["x"] * count, frames, words)
    return features.astype(np.float32), truth, table


def test_gaussian_scores_are_sums_of_one_dimensional_densities():
    rng = stream(0, "gaussians")
    model = a.Gaussians(rng.normal(size=(3, 4)), rng.uniform(0.5, 2.0, size=(3, 4)))
    x = rng.normal(size=(6, 4))
    expected = norm.logpdf(x[:, None], model.mean, np.sqrt(model.variance)).sum(axis=2)
    np.testing.assert_allclose(model.loglik(x), expected, rtol=1e-12)


def test_a_states_gaussian_is_of_its_own_frames_and_of_everybodys_without_any():
    x = np.array([[0.0], [2.0], [10.0], [14.0]], np.float32)
    model = a.refit(x, np.array([0, 0, 2, 2]), 3).parts
    assert model.mean[:, 0].tolist() == [1.0, 6.5, 12.0]
    assert model.variance[:, 0].tolist() == [1.0, 32.75, 4.0]


def test_variances_have_a_floor():
    model = a.refit(np.zeros((3, 2), np.float32), np.zeros(3, np.int32), 1).parts
    assert (model.variance == a.VARIANCE_FLOOR).all()


def test_equal_parts_visit_all_states_about_equally():
    parts = a.equal_parts(10, (4, 5, 6))
    assert parts.tolist() == [4, 4, 4, 4, 5, 5, 5, 6, 6, 6]


def test_a_flat_start_leaves_silence_out_of_an_utterance_too_short_for_it():
    table = utterances(["x", "x"], [4, 3], "ab")
    assert a.flat_start(table, LEXICON, SILENCE).tolist() == [0, 1, 2, 0, 1, 1, 2]


def test_alignment_with_perfect_scores_finds_the_truth():
    _, truth, table = spoken(1)
    likely = np.log(np.eye(4)[truth] + 1e-9)
    found = a.Aligner(LEXICON, SILENCE).align_all(table, lambda s, n: likely[s : s + n])
    assert (found.targets == truth).all()


@pytest.mark.parametrize("seed", range(3))
def test_alignments_in_turns_with_gaussians_get_better_and_find_the_states(seed):
    features, truth, table = spoken(seed)
    aligner, scores = a.Aligner(LEXICON, SILENCE), []
    flat = targets = a.flat_start(table, LEXICON, SILENCE)
    for _ in range(8):
        model = a.refit(features, targets, 4)
        found = aligner.align_all(table, lambda s, n, m=model: m.loglik(features[s : s + n]))
        targets = found.targets
        scores.append(found.score)
    assert (np.diff(scores) >= -1e-9).all()
    assert (targets != truth).mean() < 0.01
    assert (flat != truth).mean() > 0.1
