"""What folds would ask of a device, counted where there is none."""

import pytest
import torch

from harness.acoustics.rbm import Machine, step_
from harness.algorithms import catalogue
from harness.algorithms.catalogue import (
    Adam,
    AdamW,
    Algorithm,
    AsyncSgd,
    Int8,
    Momentum,
    Muon,
    PowerSgd,
    TopK,
    TorchOptimizer,
)
from harness.algorithms.descent import LocalOptimizer
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.speech.evaluation import frame_scores
from tests.folds import ALGORITHMS, SIZES, replayed, speech
from tests.logical_device import DEVICE, Counts, LogicalDevice


def waits_of_updates(counts: Counts) -> int:
    """Round trips that torch makes in an eigendecomposition, one for each update of estimates."""
    return sum(
        n for where, n in counts.round_trips.items() if where.startswith("aten._linalg_eigh")
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_host_waits_for_no_value_and_mixes_nothing(name):
    algorithm = ALGORITHMS[name]
    folds, skipped = (2, 3) if algorithm.rounds else (6, 8)  # a round has 16 minibatches
    counts = replayed(algorithm, folds, skipped)
    assert not counts.mixes
    assert not counts.uploads
    assert counts.round_trips.total() == waits_of_updates(counts)
    assert bool(waits_of_updates(counts)) is name.startswith("natural")


def test_no_algorithm_of_the_catalogue_is_missing():
    kinds = {type(each) for each in ALGORITHMS.values()}
    offered = {kind for kind in vars(catalogue).values() if isinstance(kind, type)}
    abstract = {Algorithm, LocalOptimizer}
    optimizers = {Adam, AdamW, Momentum, Muon, TorchOptimizer}
    inside = optimizers | {Int8, PowerSgd, TopK}  # parts of those above
    assert offered - abstract - inside == kinds


def test_gathering_and_splicing_are_three_launches():
    with LogicalDevice() as device:
        frames = speech()
        rows = device.holds(torch.arange(32).view(4, 8))
        device.counts = Counts()
        found = frames.gather(rows)
    assert found.x.shape == (4, 8, 20)
    assert dict(device.counts.launches) == {"aten.index": 2, "aten.index_select": 1}
    assert not device.counts.mixes
    assert not device.counts.round_trips


def test_scoring_frames_waits_for_two_numbers():
    layout = Layout(SIZES)
    with LogicalDevice() as device:
        model = device.holds(random_parameters(layout, torch.Generator().manual_seed(0))[0])
        scores = frame_scores(Dnn(layout), model, speech(), torch.arange(0, 1200, 3))
    assert 0.0 < scores.frame_error < 1.0
    assert device.counts.round_trips.total() == 2
    assert not device.counts.mixes


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_pretraining_waits_for_nothing(kind):
    with LogicalDevice() as device:
        v = device.holds(torch.rand(2, 8, 5))
        machine = Machine(*(v.new_zeros(2, *shape) for shape in ((6, 5), (6,), (5,))))
        velocity = Machine(*(torch.zeros_like(x) for x in machine))
        uniforms = torch.rand(2, 8, 6).to(v)
        step_(machine, velocity, v.new_full((2,), 0.1), 0.5, 1e-4, v, uniforms, kind)
    assert device.has(machine.weight)
    assert not device.counts.round_trips
    assert not device.counts.mixes


class Planted(AsyncSgd):
    """Asynchronous SGD with a fault in every fold."""

    def __init__(self, fault):
        super().__init__()
        object.__setattr__(self, "fault", fault)

    def fold(self, server, fold):
        self.fault(server, fold.contributions)
        super().fold(server, fold)


PLANTED = {  # as what it is counted, and what a fold does besides
    "looks at a value": ("round_trips", lambda server, given: given.norm().item()),
    "branches": ("round_trips", lambda server, given: bool(given.sum() > 0)),
    "goes through the host": (
        "round_trips", lambda server, given: server.model.add_(0.0 * given[0].cpu().to(DEVICE)),
    ),
    "picks by a mask": ("round_trips", lambda server, given: server.model[server.model > 0].sum()),
    "gives from ordinary memory": (
        "uploads", lambda server, _: server.model.add_(torch.zeros(len(server.model)).to(DEVICE)),
    ),
    "writes from the host": (
        "uploads", lambda server, given: server.model[:1].copy_(torch.zeros(1)),
    ),
    "indexes from the host": ("mixes", lambda server, given: server.model[torch.arange(3)]),
    "forgets the device": (
        "mixes", lambda server, given: server.model.add_(torch.zeros(len(server.model))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_counted(name):
    kind, fault = PLANTED[name]
    counts = replayed(Planted(fault), folds=3)
    assert getattr(counts, kind).total() == 3 or (kind == "mixes" and counts.mixes.total() > 3)
    others = {"round_trips": counts.mixes, "uploads": counts.round_trips}
    assert not others.get(kind)
