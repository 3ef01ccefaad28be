import numpy as np
import pytest
import torch

from harness.algorithms.averaging import GradientAveraging, ModelAveraging, OuterNesterov
from harness.algorithms.compression import OWN, RESIDUE, Compressed, Int8, PowerSgd, TopK
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout

LAYOUT = Layout((6, 9, 5))
NET = Dnn(LAYOUT)
WORKERS, RATE = 3, 0.05
DILOCO = ModelAveraging(outer=OuterNesterov())


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def minibatches(round_, steps=1):
    draw = torch.Generator().manual_seed(1000 + round_)
    targets = [torch.randint(0, 5, (WORKERS, 8), generator=draw) for _ in range(steps)]
    return [Minibatch(drawn(WORKERS, 8, 6, seed=round_ * 10 + s), t) for s, t in enumerate(targets)]


def trained(algorithm, rounds=12):
    """The server after so many rounds, each round's contributions [R, W, P], and the memory."""
    server, memory, sent = algorithm.start(drawn(LAYOUT.parameters)), Memory(), []
    for number in range(rounds):
        out = torch.empty(WORKERS, LAYOUT.parameters, dtype=torch.float64)
        replicas = server.model.repeat(WORKERS, 1)
        algorithm.contribute(LocalWork(NET, replicas, minibatches(number), out, RATE, memory))
        sent.append(out.clone())
        algorithm.fold(server, Fold(out, [0] * WORKERS, RATE))
    return server, torch.stack(sent), memory


class Recording:
    """A coder that notes what it is given, without the residue of the round before."""

    sent = 1.0

    def __init__(self, coder):
        self.coder, self.wanted = coder, []

    def compress(self, network, vectors, known):
        self.wanted.append(vectors - known.get(RESIDUE, 0.0))
        return self.coder.compress(network, vectors, known)


@pytest.mark.parametrize(
    "coder", [TopK(0.1), Int8(16), PowerSgd(1)], ids=lambda c: type(c).__name__
)
@pytest.mark.parametrize("averaging", [GradientAveraging(), DILOCO], ids=["gradients", "models"])
def test_what_is_sent_and_the_residue_are_what_would_have_been_sent(coder, averaging):
    noting = Recording(coder)
    _, sent, memory = trained(Compressed(averaging, noting))
    whole = torch.stack(noting.wanted).sum(0)
    together = sent.sum(0) + memory.tensors[OWN + RESIDUE]
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-14)
    assert float(memory.tensors[OWN + RESIDUE].abs().max()) > 1e-6


@pytest.mark.parametrize("averaging", [GradientAveraging(), ModelAveraging(), DILOCO])
def test_a_coder_that_keeps_all_is_none(averaging):
    plain, _, _ = trained(averaging)
    through, _, _ = trained(Compressed(averaging, TopK(1.0)))
    torch.testing.assert_close(through.model, plain.model, rtol=0, atol=1e-14)


def test_the_largest_entries_are_kept_as_numpy_finds_them():
    vectors = drawn(4, 200)
    kept = TopK(0.1).compress(NET, vectors, {}).numpy()
    for row, found in zip(vectors.numpy(), kept, strict=True):
        largest = np.argsort(-np.abs(row))[:20]
        expected = np.zeros(200)
        expected[largest] = row[largest]
        assert (found == expected).all()


def test_an_entry_is_at_most_half_a_step_of_its_block_away():
    vectors = drawn(4, 103) * torch.logspace(-6, 3, 103, dtype=torch.float64)
    found = Int8(10).compress(NET, vectors, {})
    for begin in range(0, 103, 10):
        block, coded = vectors[:, begin : begin + 10], found[:, begin : begin + 10]
        step = block.abs().amax(1, keepdim=True) / 127
        assert ((block - coded).abs() <= step / 2 * (1 + 1e-12)).all()
        assert torch.allclose(coded / step, (coded / step).round(), atol=1e-9)
    assert (Int8(10).compress(NET, torch.zeros(2, 33), {}) == 0.0).all()


def test_factors_of_full_rank_leave_nothing_out_and_thin_ones_find_the_best():
    vectors, known = drawn(2, LAYOUT.parameters), {}
    torch.testing.assert_close(PowerSgd(9).compress(NET, vectors, {}), vectors)
    for _ in range(300):
        found = PowerSgd(2).compress(NET, vectors, known)
    for (weight, bias), (coded, same) in zip(
        LAYOUT.views(vectors.clone()), LAYOUT.views(found), strict=True
    ):
        assert (bias == same).all()
        left, values, right = np.linalg.svd(weight.numpy(), full_matrices=False)
        best = (left[..., :2] * values[:, None, :2]) @ right[:, :2]
        assert coded.numpy() == pytest.approx(best, abs=1e-4)


def test_feedback_lets_a_tenth_of_the_gradient_train_as_far_as_all_of_it():
    """On one minibatch, over and over: the loss that is left after 400 steps."""
    (minibatch,) = minibatches(3)
    losses = {}
    for name, algorithm in {
        "whole": GradientAveraging(),
        "fed back": Compressed(coder=TopK(0.1)),
        "left out": Compressed(coder=TopK(0.1), feedback=False),
    }.items():
        server, memory = algorithm.start(drawn(LAYOUT.parameters)), Memory()
        for _ in range(400):
            out = torch.empty(WORKERS, LAYOUT.parameters, dtype=torch.float64)
            replicas = server.model.repeat(WORKERS, 1)
            loss = algorithm.contribute(LocalWork(NET, replicas, [minibatch], out, 0.5, memory))
            algorithm.fold(server, Fold(out, [0] * WORKERS, 0.5))
        losses[name] = float(loss.sum())
    assert losses["fed back"] < 1.5 * losses["whole"]
    assert losses["left out"] > 1.5 * losses["fed back"]


def test_a_coder_says_what_it_sends():
    assert Compressed(coder=TopK(0.01)).sent == 0.02
    assert Compressed(coder=Int8(256)).sent == 0.25 + 1 / 256


def test_momentum_correction_is_algorithm_1_of_deep_gradient_compression():
    """Each worker by itself: accumulate after momentum, send the largest, mask both."""
    algorithm = Compressed(coder=TopK(0.25), momentum=0.9)
    server, memory = algorithm.start(drawn(LAYOUT.parameters)), Memory()
    model = server.model.clone()
    speed, residue = np.zeros((WORKERS, len(model))), np.zeros((WORKERS, len(model)))
    for minibatch in minibatches(6):
        slopes = torch.empty(WORKERS, len(model), dtype=torch.float64)
        plain = GradientAveraging()
        replicas = model.repeat(WORKERS, 1)
        plain.contribute(LocalWork(NET, replicas, [minibatch], slopes, 0.5, Memory()))
        sent = np.zeros_like(residue)
        for worker, slope in enumerate(slopes.numpy()):
            speed[worker] = 0.9 * speed[worker] + slope
            residue[worker] += speed[worker]
            largest = np.argsort(-np.abs(residue[worker]))[: -(-len(model) // 4)]
            sent[worker, largest] = residue[worker, largest]
            residue[worker, largest] = speed[worker, largest] = 0.0
        model = model - 0.5 * torch.as_tensor(sent.mean(0))
        out = torch.empty_like(slopes)
        replicas = server.model.repeat(WORKERS, 1)
        algorithm.contribute(LocalWork(NET, replicas, [minibatch], out, 0.5, memory))
        algorithm.fold(server, Fold(out, [0] * WORKERS, 0.5))
    torch.testing.assert_close(server.model, model, rtol=0, atol=1e-12)


def test_momentum_correction_of_models_is_refused():
    key, told = Compressed(ModelAveraging(), momentum=0.9).trouble(4, 4)
    assert (key, told[:3]) == ("algorithm.momentum", "0.9")
    assert Compressed(ModelAveraging()).trouble(4, 4) is None
