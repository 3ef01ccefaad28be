"""Iterables read through a buffer, beside a walk over lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import lagbench
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import ModelAveraging
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.modules import streaming
from harness.modules.problem import Arrays, Problem
from harness.modules.reading import arrays_of
from harness.modules.streaming import ExampleStream
from harness.simulator import Averaging
from harness.store import Store
from harness.store.schema import MODEL
from tests.harness.modules.test_modules import CLUSTER, RATE, SIZE, configured, final
from tests.killed import check_resumption
from tests.silence import silent

drawn = torch.Generator().manual_seed(0)
X, Y = torch.randn(100, 6, generator=drawn), torch.arange(100) % 3
BUFFER, BLOCK = 20, 7


class Rows(IterableDataset):
    """The examples, with a number of readings; the noise is drawn."""

    def __init__(self, noise: float = 0.0, count: int = 100) -> None:
        self.noise, self.count, self.readings = noise, count, 0

    def __iter__(self):
        self.readings += 1
        for i in range(self.count):
            yield X[i] + (self.noise * torch.randn(6) if self.noise else 0.0), int(Y[i])


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(itertools.cycle(X), itertools.cycle(Y), strict=True))


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(streaming, "BLOCK", BLOCK)


def walk(seed: int, number: int, count: int) -> list[int]:
    """The order of a pass: whatever does not fit a buffer is drawn from it and the next block."""
    draw, held, found = stream(seed, "buffer", number), [], []
    for first in range(0, count, BLOCK):
        held += range(first, min(first + BLOCK, count))
        if len(held) > BUFFER:
            out = draw.permutation(len(held)).tolist()
            found += [held[k] for k in out[BUFFER:]]
            held = [held[k] for k in sorted(out[:BUFFER])]
    return found + [held[k] for k in draw.permutation(len(held)).tolist()]


def problem_of(data=None, **further) -> Problem:
    train = arrays_of(data or Rows(), "data", buffer=BUFFER, **further)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    loss = nn.functional.cross_entropy
    return Problem(model, loss, train, Arrays(X[:9], Y[:9]), None, {})


@pytest.mark.parametrize(
    ("algorithm", "protocol"), [(AsyncSgd(), None), (ModelAveraging(), Averaging(4))]
)
def test_one_worker_is_a_plain_loop_over_the_walk_bit_for_bit(algorithm, protocol, tmp_path):
    config = configured(problem_of(), algorithm, protocol, workers=1, passes=3)
    run = config.execute(Store(tmp_path), silent)
    rows = [row for number in range(4) for row in walk(config.seed, number, 100)]
    model = config.problem.module(config.seed)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(-(-3 * 100 // SIZE)):
        some = rows[SIZE * step : SIZE * (step + 1)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[some]), Y[some]).backward()
        optimizer.step()
    expected = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert torch.equal(final(run), expected)
    assert config.problem.train.items.args[0].readings <= 1 + 4


def test_a_pass_has_every_example_once_in_an_order_of_its_own_and_not_far_away():
    orders = [walk(0, number, 100) for number in range(3)]
    assert all(sorted(each) == list(range(100)) for each in orders)
    assert len({tuple(each) for each in orders}) == 3
    assert all(row - place <= BUFFER + BLOCK for each in orders for place, row in enumerate(each))


def test_in_rounds_workers_take_minibatches_in_turn():
    config = configured(problem_of(), ModelAveraging(), Averaging(2), workers=4, passes=2)
    orders = [config.order(stage, config.problem.train) for stage in (0, 1)]
    seen = [
        order.rows_of([(worker, step)])[0]
        for order in orders
        for step in range(order.steps)
        for worker in range(4)
    ]
    assert np.concatenate(seen).tolist() == list(range(len(seen) * SIZE))
    assert len(seen) == 4 * -(-2 * 100 // (4 * SIZE))


@pytest.mark.parametrize("protocol", [None, Averaging(2)], ids=["async", "rounds"])
def test_a_run_that_is_killed_goes_on_to_the_same_bytes(protocol, tmp_path):
    problem = problem_of(Rows(0.1))
    config = configured(problem, ModelAveraging() if protocol else None, protocol)
    check_resumption(config, tmp_path)


def test_minibatches_may_be_asked_in_any_order():
    train = problem_of().train
    number = np.arange(SIZE)[None]
    first = [train.to("cpu", torch.float32).fetch(number + SIZE * k, 5).x for k in range(30)]
    other = train.to("cpu", torch.float32)
    for k in (29, 3, 4, 3, 17, 0):
        assert torch.equal(other.fetch(number + SIZE * k, 5).x, first[k])


def test_the_first_examples_are_held_out_at_most_as_many_as_the_buffer():
    train, dev = problem_of().train.split(0.1)
    assert torch.equal(dev.x, X[:10])
    found = train.fetch(np.arange(90)[None], 0)
    assert sorted(found.x[0, 0, :, 0].tolist()) == sorted(X[10:, 0].tolist())
    assert len(problem_of().train.split(0.5)[1]) == BUFFER


def test_data_of_another_order_or_size_are_another_run():
    digests = {
        problem_of(Rows(noise, count), examples=examples).train.sha256
        for noise, count, examples in (
            (0.0, 100, None),
            (0.0, 99, None),
            (0.0, 100, 98),
            (0.1, 100, None),
        )
    }
    assert len(digests) == 4
    assert problem_of(Rows(0.1)).train.sha256 == problem_of(Rows(0.1)).train.sha256


def test_programs_train_on_an_endless_iterable_also_in_several_processes(tmp_path):
    def trained(jobs: int) -> list[bytes]:
        result = lagbench.compare(
            *(lambda: nn.Linear(6, 3), nn.functional.cross_entropy, DataLoader(Endless(), 16)),
            cluster=CLUSTER,
            algorithms=["async", "sync"],
            workers=[1, 4],
            rates=0.1,
            seeds=1,
            passes=2,
            minibatch=SIZE,
            step_seconds=0.01,
            examples=100,
            buffer=BUFFER,
            store=tmp_path / str(jobs),
            jobs=jobs,
        )
        return [run.path(MODEL).read_bytes() for run in result.runs]

    assert trained(1) == trained(2)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (iter([(X[0], 0)]), "can be read only once; allowed with buffer=: an object that is iter"),
        ([(X[0], 0)], "list is no iterable"),
        (Rows(count=0), "empty; allowed: at least one example"),
        (3, "int is no iterable"),
    ],
)
def test_what_cannot_be_streamed_is_refused_in_one_line(data, told):
    with pytest.raises(UserError, match=f"^data: .*{told}"):
        arrays_of(data, "data", buffer=BUFFER)


def test_a_partition_needs_targets_in_memory(tmp_path):
    with pytest.raises(UserError, match="partition: not with buffer="):
        lagbench.train(
            *(nn.Linear(6, 3), nn.functional.cross_entropy, Rows()),
            cluster=CLUSTER,
            rate=0.1,
            buffer=BUFFER,
            partition="by_label",
            step_seconds=0.01,
            store=tmp_path,
        )


def test_an_iterable_that_ends_earlier_than_before_is_told():
    data = Rows()
    train = problem_of(data).train
    assert isinstance(train, ExampleStream)
    data.count = 50
    with pytest.raises(UserError, match="data: ends after 50 examples in pass 0, 100 when first"):
        train.fetch(np.arange(100)[None], 0)
