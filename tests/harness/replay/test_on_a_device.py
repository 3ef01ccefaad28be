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
from tests.folds import ALGORITHMS, SIZES, launches_of_natural_steps, replayed, speech
from tests.logical_device import Counts, LogicalDevice


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
    offered = {getattr(catalogue, name) for name in catalogue.__all__}
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


def looks_at_a_value(server, contributions):
    server.numbers["norm"] = contributions.norm().item()


def branches(server, contributions):
    if contributions.sum() > 0:
        server.numbers["positive"] = 1.0


def goes_through_the_host(server, contributions):
    server.model.add_(contributions[0].cpu().to(server.model.device) * 0.0)


def picks_by_a_mask(server, contributions):
    server.model.add_(0.0 * server.model[server.model > 0].sum())


def indexes_from_the_host(server, contributions):
    server.model[torch.arange(3)] += 0.0


def forgets_the_device(server, contributions):
    server.model.add_(torch.zeros(server.model.shape))


@pytest.mark.parametrize(
    "fault", [looks_at_a_value, branches, goes_through_the_host, picks_by_a_mask]
)
def test_a_planted_round_trip_is_counted(fault):
    counts = replayed(Planted(fault), folds=3)
    assert counts.round_trips.total() == 3
    assert not counts.mixes


def gives_from_ordinary_memory(server, contributions):
    server.model.add_(torch.zeros(server.model.shape).to(server.model.device))


def writes_from_the_host(server, contributions):
    server.model[:1].copy_(torch.zeros(1))


@pytest.mark.parametrize("fault", [gives_from_ordinary_memory, writes_from_the_host])
def test_a_planted_upload_is_counted(fault):
    counts = replayed(Planted(fault), folds=3)
    assert counts.uploads.total() == 3
    assert not counts.round_trips


@pytest.mark.parametrize("fault", [indexes_from_the_host, forgets_the_device])
def test_a_planted_mix_is_counted(fault):
    assert replayed(Planted(fault), folds=3).mixes.total() >= 3


def test_layers_apart_ask_for_more_than_layers_together():
    both = "natural", "natural, layers apart"
    joint, apart = (replayed(ALGORITHMS[name], 1, skipped=3) for name in both)
    assert joint.launches.total() < apart.launches.total()


@pytest.mark.parametrize("layers", [3, 5, 9, 24])
def test_natural_gradients_own_launches_do_not_grow_with_layers_of_equal_width(layers):
    gradient, first, later = launches_of_natural_steps(layers)
    assert gradient == 4 * layers + 7, "forwards and backwards, and the loss"
    assert (first, later) == (59, 53)
