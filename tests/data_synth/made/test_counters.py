import pytest
import torch
from scipy import stats

from data_synth.made.sentences import Draws, philox


# kat_vectors of Random123, philox2x32 with ten rounds
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_the_known_answers(counter, key, words):
    low, high = (torch.tensor([word]) for word in counter)
    assert tuple(word.item() for word in philox(low, high, key)) == words


def test_numbers_belong_to_their_utterance_and_place():
    many, one = Draws(0, "train", torch.arange(9)), Draws(0, "train", torch.tensor([4]))
    assert torch.equal(many.uniform("a", 7)[:, 4], one.uniform("a", 7)[:, 0])
    assert torch.equal(many.normal("a", 7, 20)[:, 4], one.normal("a", 7, 33)[:, 0, :20])


def test_purposes_splits_and_seeds_draw_other_numbers():
    where = torch.arange(3)
    drawn = [
        Draws(seed, split, where).uniform(purpose, 1).sum().item()
        for seed, split, purpose in [(0, "a", "b"), (1, "a", "b"), (0, "c", "b"), (0, "a", "d")]
    ]
    assert len(set(drawn)) == 4


def test_uniform_and_normal_numbers_follow_their_laws():
    draws = Draws(0, "train", torch.arange(500))
    assert stats.kstest(draws.uniform("u", 100).flatten(), "uniform").pvalue > 0.01
    normal = draws.normal("n", 5, 40)
    assert stats.kstest(normal.flatten(), "norm").pvalue > 0.01
    together = torch.corrcoef(normal.transpose(1, 2).flatten(1))
    assert (together - torch.eye(5)).abs().max() < 5 / 20_000**0.5


def test_integers_are_equally_likely():
    drawn = Draws(0, "train", torch.arange(1000)).integers("i", 7, 20)
    assert stats.chisquare(torch.bincount(drawn.flatten(), minlength=7)).pvalue > 0.01
