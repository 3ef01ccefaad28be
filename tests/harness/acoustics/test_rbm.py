from itertools import product

import pytest
import torch
from torch.nn.functional import softplus

from harness.acoustics.rbm import (
    Machine,
    Recipe,
    contrast,
    hidden_mean,
    pretrain,
    statistics,
    step_,
    visible_mean,
)
from harness.networks.feedforward import Dnn, Layout

KINDS = ("gaussian", "bernoulli")
BINARY3 = torch.tensor(list(product([0.0, 1.0], repeat=3)), dtype=torch.float64)


def machine_of(replicas=2, hidden=3, visible=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((replicas, hidden, visible), (replicas, hidden), (replicas, visible))
    return Machine(*(torch.randn(s, dtype=torch.float64, generator=draw) for s in shapes))


def frames_of(kind, replicas=2, frames=5, visible=3, seed=1):
    draw = torch.Generator().manual_seed(seed)
    v = torch.randn(replicas, frames, visible, dtype=torch.float64, generator=draw)
    return v if kind == "gaussian" else (v > 0).double()


def free_energy(machine, v, kind):
    """F(v) = -log Σ_h exp(-E(v, h)), ``[R, B]``, in closed form: hidden units are independent."""
    own = ((v - (a := machine.visible.unsqueeze(1))) ** 2).sum(2) / 2
    own = own if kind == "gaussian" else -(v * a).sum(2)
    field = torch.baddbmm(machine.hidden.unsqueeze(1), v, machine.weight.mT)
    return own - softplus(field).sum(2)


def energy(w, b, a, v, h, kind):
    """E(v, h) of one machine and one pair of vectors, term by term."""
    own = ((v - a) ** 2).sum() / 2 if kind == "gaussian" else -(a @ v)
    return own - b @ h - h @ w @ v


def enumerated_free_energy(w, b, a, v, kind):
    return -torch.logsumexp(torch.stack([-energy(w, b, a, v, h, kind) for h in BINARY3]), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_free_energy_is_the_sum_over_all_hidden_states(kind):
    machine, v = machine_of(), frames_of(kind)
    found = free_energy(machine, v, kind)
    for r, t in product(range(2), range(5)):
        exact = enumerated_free_energy(*(x[r] for x in machine), v[r, t], kind)
        assert float(found[r, t]) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_the_exact_slope_of_the_enumerated_free_energy(kind):
    machine, v = machine_of(), frames_of(kind)
    found = statistics(machine, v, kind)
    for r in range(2):
        leaves = [x[r].clone().requires_grad_() for x in machine]
        sum(-enumerated_free_energy(*leaves, each, kind) for each in v[r]).backward()
        for mine, leaf in zip(found, leaves, strict=True):
            torch.testing.assert_close(mine[r], leaf.grad, rtol=1e-12, atol=1e-12)


def test_data_minus_model_statistics_are_the_gradient_of_the_exact_likelihood():
    """∂ log p(v) = statistics of the data - their mean under the machine, Z enumerated."""
    machine, v = machine_of(1), frames_of("bernoulli", 1)
    leaves = Machine(*(x.clone().requires_grad_() for x in machine))
    every = BINARY3.unsqueeze(0)
    log_z = torch.logsumexp(-free_energy(leaves, every, "bernoulli"), 1)
    (-free_energy(leaves, v, "bernoulli").sum() - 5 * log_z.sum()).backward()
    chance = torch.softmax(-free_energy(machine, every, "bernoulli"), 1)[0]
    data = statistics(machine, v, "bernoulli")
    for part in range(3):
        model = sum(
            p * statistics(machine, BINARY3[i].view(1, 1, 3), "bernoulli")[part]
            for i, p in enumerate(chance)
        )
        torch.testing.assert_close(
            data[part] - 5 * model, leaves[part].grad, rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("kind", KINDS)
def test_contrastive_divergence_collects_probabilities_of_a_sampled_reconstruction(kind):
    machine, v = machine_of(), frames_of(kind)
    uniforms = torch.rand(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gain, again = contrast(machine, v, uniforms, kind)
    for r in range(2):
        w, b, a = (x[r] for x in machine)
        expected = torch.zeros_like(w)
        for t in range(5):
            p = torch.sigmoid(w @ v[r, t] + b)
            h = (uniforms[r, t] < p).double()
            v2 = w.T @ h + a if kind == "gaussian" else torch.sigmoid(w.T @ h + a)
            torch.testing.assert_close(again[r, t], v2)
            expected += torch.outer(p, v[r, t]) - torch.outer(torch.sigmoid(w @ v2 + b), v2)
        torch.testing.assert_close(gain.weight[r], expected)


def test_a_step_is_momentum_rate_and_decay_as_written():
    machine, v = machine_of(1), frames_of("gaussian", 1)
    machine = Machine(*(0.1 * x for x in machine))
    before = Machine(*(x.clone() for x in machine))
    velocity = Machine(*(torch.full_like(x, 0.5) for x in machine))
    uniforms = torch.full((1, 5, 3), 0.5, dtype=torch.float64)
    gain, _ = contrast(machine, v, uniforms, "gaussian")
    rate = torch.tensor([0.2], dtype=torch.float64)
    step_(machine, velocity, rate, 0.75, 0.01, v, uniforms, "gaussian")
    pace = 0.2 * 0.25
    weight = 0.75 * 0.5 + pace * (gain.weight / 5 - 0.01 * before.weight)
    torch.testing.assert_close(machine.weight, before.weight + weight)
    torch.testing.assert_close(machine.hidden, before.hidden + 0.375 + pace * gain.hidden / 5)
    torch.testing.assert_close(machine.visible, before.visible + 0.375 + pace * gain.visible / 5)


def test_a_machine_about_to_diverge_is_scaled_back_and_the_others_go_on():
    v = frames_of("gaussian")
    machine = machine_of()
    for x in machine:
        x[0] *= 50.0
        x[1] *= 0.1
    velocity = Machine(*(torch.ones_like(x) for x in machine))
    uniforms = torch.full((2, 5, 3), 0.5, dtype=torch.float64)
    _, again = contrast(machine, v, uniforms, "gaussian")
    expected = machine.weight[0] * v[0].std() / again[0].std()
    rate = torch.tensor([0.1, 0.1], dtype=torch.float64)
    step_(machine, velocity, rate, 0.5, 0.0, v, uniforms, "gaussian")
    assert rate.tolist() == pytest.approx([0.09, 0.1])
    torch.testing.assert_close(machine.weight[0], expected)
    assert not velocity.weight[0].any()
    assert velocity.weight[1].all()


def patterns(frames=400, dim=12, seed=5):
    """Frames that four hidden causes explain."""
    draw = torch.Generator().manual_seed(seed)
    causes = (torch.rand(frames, 4, generator=draw) < 0.5).float()
    mixing = torch.randn(4, dim, generator=draw)
    x = causes @ mixing + 0.2 * torch.randn(frames, dim, generator=draw)
    return (x - x.mean(0)) / x.std(0)


NET = Dnn(Layout((12, 16, 8, 5)))
X = patterns()


def inputs(epoch, number):
    order = torch.randperm(400, generator=torch.Generator().manual_seed(epoch))
    return X[order[number * 50 : (number + 1) * 50]].unsqueeze(0)


RECIPE = Recipe(gaussian_rate=0.05, gaussian_epochs=30, bernoulli_epochs=30)


def test_the_reconstruction_error_of_every_layer_falls():
    done = pretrain(NET, inputs, 8, (1, 2), RECIPE)
    first, second = done.reconstruction
    assert first.shape == second.shape == (30, 2)
    assert bool((first[-1] < 0.5 * first[0]).all())
    assert bool((second[-1] < 0.7 * second[0]).all())


def test_networks_get_the_machines_weights_and_a_random_output_layer():
    done = pretrain(NET, inputs, 8, (1, 2), RECIPE)
    weight, bias = NET.layout.views(done.stack)[0]
    machine = Machine(weight, bias, torch.zeros(2, 12))
    h = hidden_mean(machine, X.expand(2, -1, -1))
    again = visible_mean(machine, h, "gaussian")
    assert float(((again - X) ** 2).mean()) < 0.5
    output = NET.layout.views(done.stack)[-1]
    assert not output.bias.any()
    assert output.weight.std() == pytest.approx((2 / 13) ** 0.5, rel=0.3)
    assert done.stack.dtype == torch.float32
    assert NET.logits(done.stack, X).isfinite().all()


def test_the_same_seeds_give_the_same_bytes_and_replicas_do_not_disturb_each_other():
    together = pretrain(NET, inputs, 2, (1, 2)).stack
    again = pretrain(NET, inputs, 2, (1, 2)).stack
    assert torch.equal(together, again)
    alone = pretrain(NET, inputs, 2, (2,)).stack
    torch.testing.assert_close(alone[0], together[1], rtol=1e-5, atol=1e-6)
    assert not torch.equal(together[0], together[1])


def test_only_sigmoids_and_some_minibatches_can_be_pretrained():
    with pytest.raises(ValueError, match="allowed: sigmoid"):
        pretrain(Dnn(NET.layout, "relu"), inputs, 8, (1,))
    with pytest.raises(ValueError, match="0 minibatches"):
        pretrain(NET, inputs, 0, (1,))
