"""Initial weights of a sigmoid network: restricted Boltzmann machines, or random draws.

Each hidden layer is trained as a machine on the activations of the layer below (Hinton,
Osindero and Teh 2006) by one step of contrastive divergence (Hinton 2002), all replicas at
once. The input layer's visible units are Gaussian with unit variance, the others are binary:

    E(v, h) = |v - a|² / 2 - b·h - h·Wv      (Gaussian)
    E(v, h) = -a·v - b·h - h·Wv              (Bernoulli)

Letters as in ``networks.feedforward``, and V visible and H hidden units. The recipe is that of
Kaldi's nnet1, which paper 2 used; so is `WideRandom`, the start without pretraining.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.base.seeds import stream
from harness.networks.contract import upload
from harness.networks.feedforward import Affine, Dnn, Layout

Kind = Literal["gaussian", "bernoulli"]

CLIP = 1e-4
"""Smallest distance of a mean activation from 0 and 1 before its logit is taken."""

SHRINK = 0.9
"""Factor of a diverging machine's learning rate."""

MEAN_OVER = 100
"""Largest number of minibatches that mean activations are averaged over."""


class Machine(NamedTuple):
    """R machines: weights ``[R, H, V]``, hidden biases ``[R, H]``, visible ones ``[R, V]``."""

    weight: Tensor
    hidden: Tensor
    visible: Tensor


@dataclass(frozen=True)
class Recipe:
    """Settings for training the machines.

    Args:
        gaussian_rate: learning rate of the first layer's machine, for the mean over a minibatch;
            multiplied by 1 - momentum.
        bernoulli_rate: the same for the machines of the other layers.
        gaussian_epochs: number of passes over the frames for the first layer.
        bernoulli_epochs: number of passes over the frames for each other layer.
        momentum: momentum at the first and at the last minibatch of a layer, linear in between.
        decay: λ, the L2 penalty of the weights.
        spread: standard deviation of the initial weights.
    """

    gaussian_rate: float = 0.01
    bernoulli_rate: float = 0.4
    gaussian_epochs: int = 2
    bernoulli_epochs: int = 1
    momentum: tuple[float, float] = (0.5, 0.9)
    decay: float = 2e-4
    spread: float = 0.1


@dataclass(frozen=True, eq=False)
class PretrainingResult:
    """Result of pretraining R networks.

    Attributes:
        stack: parameters ``[R, P]`` of the network, its output layer still random.
        reconstruction: for each hidden layer float64 ``[epochs, R]``, the mean squared
            error of a reconstructed visible unit.
    """

    stack: Tensor
    reconstruction: list[Tensor]


def hidden_mean(machine: Machine, v: Tensor) -> Tensor:
    """p(h = 1 | v) = σ(Wv + b) ``[R, B, H]`` of visible units ``[R, B, V]``."""
    return torch.sigmoid(_pre(machine, v))


def visible_mean(machine: Machine, h: Tensor, kind: Kind) -> Tensor:
    """The visible units' mean ``[R, B, V]`` given hidden ones ``[R, B, H]``; no noise is added."""
    mean = torch.baddbmm(machine.visible.unsqueeze(1), h, machine.weight)
    return mean if kind == "gaussian" else torch.sigmoid(mean)


def statistics(machine: Machine, v: Tensor, kind: Kind) -> Machine:
    """-∂F/∂(W, b, a), F the free energy, summed over the B frames ``v`` ``[R, B, V]``."""
    return _collect_statistics(machine, v, hidden_mean(machine, v), kind)


def contrast(machine: Machine, v: Tensor, uniforms: Tensor, kind: Kind) -> tuple[Machine, Tensor]:
    """CD-1: the statistics of the frames minus those of their reconstruction.

    Args:
        machine: R machines.
        v: visible units ``[R, B, V]``.
        uniforms: uniform draws ``[R, B, H]``; a hidden unit is on where its draw is below p.
        kind: kind of visible units.

    Returns:
        The summed difference, in which hidden units count with their probabilities, not
        their samples; and the reconstruction ``[R, B, V]``.
    """
    p = hidden_mean(machine, v)
    again = visible_mean(machine, (uniforms < p).to(v.dtype), kind)
    data, lost = _collect_statistics(machine, v, p, kind), statistics(machine, again, kind)
    return Machine(*(x - y for x, y in zip(data, lost, strict=True))), again


def step_(
    machine: Machine,
    velocity: Machine,
    rate: Tensor,
    momentum: float,
    decay: float,
    v: Tensor,
    uniforms: Tensor,
    kind: Kind,
) -> Tensor:
    """One minibatch, in place: M ← m M + (ε/N) (kept - lost) - ε λ W, then W ← W + M.

    ε is the learning rate times ``1 - momentum``, N the number of frames. A machine is about to
    diverge if the standard deviation of its reconstruction exceeds twice that of its frames: its
    parameters are scaled by the ratio, its rate shrinks, its velocity is cleared and the minibatch
    is skipped.

    Args:
        machine: R machines, changed.
        velocity: M, of the same shapes, changed.
        rate: learning rates ``[R]``, changed where a machine diverges.
        momentum: m.
        decay: λ, of the weights only.
        v: visible units ``[R, B, V]``.
        uniforms: uniform draws ``[R, B, H]``.
        kind: kind of visible units.

    Returns:
        ``[R]``: mean squared error of a reconstructed unit before the step.
    """
    gain, again = contrast(machine, v, uniforms, kind)
    ratio = v.std((1, 2)) / again.std((1, 2)).clamp_min(torch.finfo(v.dtype).tiny)
    wild = ratio < 0.5  # a mask, not a branch: the host need not wait for the device
    pace = rate * (1.0 - momentum)
    penalty = (decay * machine.weight, 0.0, 0.0)
    for x, m, g, shrunk in zip(machine, velocity, gain, penalty, strict=True):
        shape = (-1,) + (1,) * (x.dim() - 1)
        m.mul_(momentum).add_(pace.view(shape) * (g / v.shape[1] - shrunk))
        m.masked_fill_(wild.view(shape), 0.0)
        x.copy_(torch.where(wild.view(shape), x * ratio.view(shape), x + m))
    rate.copy_(torch.where(wild, rate * SHRINK, rate))
    return ((v - again) ** 2).mean((1, 2))


@torch.no_grad()
def pretrain(
    net: Dnn,
    inputs: Callable[[int, int], Tensor],
    minibatches: int,
    seeds: Sequence[int],
    recipe: Recipe | None = None,
) -> PretrainingResult:
    """Train one machine per hidden layer and copy their weights into networks.

    Visible biases are dropped; the output layer is drawn as ``random_parameters`` draws it,
    biases zero. Draws depend on the seed alone, not on the device or on other replicas.

    Args:
        net: a network with sigmoid hidden units.
        inputs: (epoch, minibatch) -> frames ``[R, B, D]``, or ``[1, B, D]`` shared by all,
            spliced and normalised to mean 0 and variance 1, on the device to train on.
        minibatches: number per epoch; the recipe expects about 100 frames in each.
        seeds: one for each of the R replicas.
        recipe: settings; by default ``Recipe()``.

    Raises:
        ValueError: the network's units are not sigmoids, or there is no minibatch.
    """
    if net.activation != "sigmoid" or minibatches < 1:
        raise ValueError(f"{minibatches} minibatches for {net.activation} units; allowed: sigmoid")
    frames = inputs(0, 0)
    stack = frames.new_zeros(len(seeds), net.layout.parameters)
    layers, reconstruction = net.layout.views(stack), list[Tensor]()
    for depth, layer in enumerate(layers[:-1]):
        below = layers[:depth]

        # the default binds this depth's layers: a closure would see the loop's last value
        def visible(epoch: int, number: int, below: Sequence[Affine] = below) -> Tensor:
            v = inputs(epoch, number).expand(len(seeds), -1, -1)
            for w, b in below:
                v = hidden_mean(Machine(w, b, b), v)
            return v

        machine, errors = _train_layer(
            depth, layer.bias.shape[1], visible, minibatches, seeds, recipe
        )
        layer.weight.copy_(machine.weight)
        layer.bias.copy_(machine.hidden)
        reconstruction.append(errors)
    k, m = layers[-1].weight.shape[1:]
    layers[-1].weight.copy_(_normal(seeds, "rbm output", (k, m), frames) * (2.0 / (m + k)) ** 0.5)
    return PretrainingResult(stack, reconstruction)


def _train_layer(
    depth: int,
    hidden: int,
    visible: Callable[[int, int], Tensor],
    minibatches: int,
    seeds: Sequence[int],
    recipe: Recipe | None,
) -> tuple[Machine, Tensor]:
    """Train the R machines of one layer; also their reconstruction errors ``[epochs, R]``."""
    recipe = recipe or Recipe()
    kind: Kind = "bernoulli" if depth else "gaussian"
    rate, epochs = recipe.gaussian_rate, recipe.gaussian_epochs
    if depth:
        rate, epochs = recipe.bernoulli_rate, recipe.bernoulli_epochs
    machine = _start(depth, hidden, visible, minibatches, seeds, recipe.spread)
    velocity = Machine(*map(torch.zeros_like, machine))
    rates = machine.weight.new_full((len(seeds),), rate)
    errors = torch.zeros(epochs, len(seeds), dtype=torch.float64, device=rates.device)
    low, high = recipe.momentum
    steps = epochs * minibatches
    for step in range(steps):
        epoch, number = divmod(step, minibatches)
        v = visible(epoch, number)
        momentum = low + (high - low) * step / max(1, steps - 1)
        draws = _uniform(seeds, depth, step, (v.shape[1], hidden), v)
        errors[epoch] += step_(machine, velocity, rates, momentum, recipe.decay, v, draws, kind)
    return machine, errors / minibatches


def _start(
    depth: int,
    hidden: int,
    visible: Callable[[int, int], Tensor],
    minibatches: int,
    seeds: Sequence[int],
    spread: float,
) -> Machine:
    """W ~ N(0, spread²), b = 0, a = 0 or the logit of each binary unit's mean activation."""
    v = visible(0, 0)
    weight = spread * _normal(seeds, f"rbm weights {depth}", (hidden, v.shape[2]), v)
    a = v.new_zeros(len(seeds), v.shape[2])
    if depth:
        counted = min(minibatches, MEAN_OVER)
        for number in range(counted):
            a += visible(0, number).mean(1) / counted
        a = torch.logit(a, CLIP)
    return Machine(weight, v.new_zeros(len(seeds), hidden), a)


def _pre(machine: Machine, v: Tensor) -> Tensor:
    return torch.baddbmm(machine.hidden.unsqueeze(1), v, machine.weight.transpose(1, 2))


def _collect_statistics(machine: Machine, v: Tensor, p: Tensor, kind: Kind) -> Machine:
    count = v.shape[1] * machine.visible if kind == "gaussian" else 0.0
    return Machine(torch.bmm(p.transpose(1, 2), v), p.sum(1), v.sum(1) - count)


def _normal(seeds: Sequence[int], purpose: str, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Standard normal draws ``[R, *shape]``, made on the CPU, so equal for all devices."""
    values = np.stack([stream(seed, purpose).normal(size=shape) for seed in seeds])
    return torch.as_tensor(values).to(like)


def _uniform(
    seeds: Sequence[int], depth: int, step: int, shape: tuple[int, int], like: Tensor
) -> Tensor:
    streams = (stream(seed, "rbm samples", depth, step) for seed in seeds)
    values = np.stack([generator.random(shape, dtype=np.float32) for generator in streams])
    return upload(torch.as_tensor(values), like.device).to(like.dtype)


@dataclass(frozen=True)
class WideRandom:
    """Random initialisation of Kaldi's nnet1 for sigmoid networks, which paper 2 used.

    ``W ~ N(0, (gain sqrt(2 / (in + out)))²)``, that of the first layer times ``first``; biases
    of hidden units uniform from ``low_bias`` to 0, of the outputs zero.

    Args:
        gain: factor of Glorot's standard deviation; in nnet1 3.5 (0.1 times 35).
        first: further factor of the first layer; in nnet1 sqrt(1/12).
        low_bias: lowest bias of a hidden unit; in nnet1 -4.
    """

    gain: float = 3.5
    first: float = (1.0 / 12.0) ** 0.5
    low_bias: float = -4.0

    def parameters(self, layout: Layout, generator: torch.Generator) -> Tensor:
        """Draw a ``[1, P]`` stack in float64 on the CPU, rounded to float32."""
        stack = torch.zeros(1, layout.parameters, dtype=torch.float64)
        layers = layout.views(stack)
        for i, ((m, n), layer) in enumerate(zip(pairwise(layout.sizes), layers, strict=True)):
            spread = self.gain * (2.0 / (m + n)) ** 0.5 * (self.first if i == 0 else 1.0)
            layer.weight[0] = spread * torch.randn(n, m, generator=generator, dtype=torch.float64)
            if i < len(layers) - 1:
                uniforms = torch.rand(n, generator=generator, dtype=torch.float64)
                layer.bias[0] = self.low_bias * uniforms
        return stack.float()
