import math

import torch

from harness.acoustics.rbm import WideRandom
from harness.networks.feedforward import Layout

LAYOUT = Layout((440, 300, 300, 500))


def drawn(seed: int = 0) -> torch.Tensor:
    return WideRandom().parameters(LAYOUT, torch.Generator().manual_seed(seed))


def test_weights_have_the_recipes_spread_and_the_first_layer_a_smaller_one():
    layers = LAYOUT.views(drawn())
    levels = ((440, 300), (300, 300), (300, 500))
    for i, ((m, n), layer) in enumerate(zip(levels, layers, strict=True)):
        spread = 0.1 * 35 * math.sqrt(2 / (m + n)) * (math.sqrt(1 / 12) if i == 0 else 1.0)
        assert math.isclose(float(layer.weight.std()), spread, rel_tol=0.01)
        assert abs(float(layer.weight.mean())) < 0.01 * spread * 3


def test_hidden_biases_are_uniform_from_minus_four_to_zero_and_outputs_have_none():
    *hidden, outputs = LAYOUT.views(drawn())
    for layer in hidden:
        assert -4.0 <= float(layer.bias.min()) < -3.9
        assert -0.1 < float(layer.bias.max()) <= 0.0
        assert math.isclose(float(layer.bias.mean()), -2.0, rel_tol=0.1)
    assert not outputs.bias.any()


def test_equal_seeds_give_equal_bytes_and_others_do_not():
    assert torch.equal(drawn(), drawn())
    assert not torch.equal(drawn(), drawn(1))
