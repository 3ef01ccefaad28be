import numpy as np
import pytest
from scipy.stats import multivariate_normal

from data_synth.align import LEAST_FRAMES, Mixtures, refit
from harness.base.seeds import stream

RNG = stream(3, "mixtures")
TWO_HEAPS = np.concatenate([RNG.normal(-4, 1, (300, 2)), RNG.normal(4, 0.5, (100, 2))])


def grown(features, targets, n_targets, rounds=6, components=2):
    model = refit(features, targets, n_targets)
    for _ in range(rounds):
        model = refit(features, targets, n_targets, components, model)
    return model


def test_a_frames_score_is_the_log_of_the_weighted_densities():
    model = grown(TWO_HEAPS, np.zeros(400, int), 1)
    mean, variance, weight = model.mixture_of(0)
    density = sum(
        np.exp(w) * multivariate_normal(m, np.diag(v)).pdf(TWO_HEAPS[:5])
        for m, v, w in zip(mean, variance, weight, strict=True)
    )
    np.testing.assert_allclose(model.loglik(TWO_HEAPS[:5])[:, 0], np.log(density), atol=1e-9)


def test_two_heaps_are_found_by_two_components():
    mean, variance, weight = grown(TWO_HEAPS, np.zeros(400, int), 1, rounds=12).mixture_of(0)
    order = np.argsort(mean[:, 0])
    np.testing.assert_allclose(mean[order], [[-4, -4], [4, 4]], atol=0.3)
    np.testing.assert_allclose(np.exp(weight[order]), [0.75, 0.25], atol=0.01)
    np.testing.assert_allclose(variance[order], [[1, 1], [0.25, 0.25]], atol=0.2)


def test_every_round_makes_the_frames_likelier():
    targets = np.zeros(400, int)
    models = [refit(TWO_HEAPS, targets, 1)]
    for _ in range(5):
        models.append(refit(TWO_HEAPS, targets, 1, 4, models[-1]))
    scores = [float(m.loglik(TWO_HEAPS).mean()) for m in models]
    assert scores == sorted(scores)


@pytest.mark.parametrize("frames", [LEAST_FRAMES, 2 * LEAST_FRAMES, 3 * LEAST_FRAMES + 1])
def test_a_state_gets_only_components_it_has_frames_for(frames):
    model = grown(TWO_HEAPS[:frames], np.zeros(frames, int), 1, components=8)
    assert isinstance(model, Mixtures)
    assert len(model.mixture_of(0)[2]) == frames // LEAST_FRAMES


def test_states_may_have_different_numbers_of_components():
    model = refit(TWO_HEAPS, np.repeat([0, 1], 200), 2, np.array([3, 1]))
    assert model.state.tolist() == [0, 0, 0, 1]
    assert (
        model.loglik(TWO_HEAPS)[:200, 0].mean()
        > refit(TWO_HEAPS, np.repeat([0, 1], 200), 2).loglik(TWO_HEAPS)[:200, 0].mean()
    )
