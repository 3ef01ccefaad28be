"""Data sets that draw at random, beside plain loops that seed and ask for themselves."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import lagbench
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import ModelAveraging
from harness.base.errors import UserError
from harness.base.seeds import stream_key
from harness.experiment.run import run as execute
from harness.modules.parts import Arrays, ModuleParts, by_label
from harness.modules.reading import RandomExamples, arrays_of
from harness.simulator.protocols.averaging import Averaging
from harness.store import Store
from harness.store.schema import MODEL
from tests.harness.modules.test_modules import CLUSTER, RATE, SIZE, configured, final
from tests.killed import check_resumption
from tests.silence import silent

drawn = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 6, generator=drawn), torch.arange(60) % 3


class Noisy(Dataset):
    """Examples with noise, and one of ten turned around: drawn from three generators."""

    def __init__(self, noise: float = 0.5) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int):
        x = X[i] + self.noise * torch.randn(6)
        x = -x if random.random() < 0.1 else x
        return x * float(np.random.uniform(0.5, 1.5)), int(Y[i])


class Plain(Noisy):
    """The same without draws, which counts how often it is asked."""

    asked = 0

    def __getitem__(self, i: int):
        self.asked += 1
        return X[i], int(Y[i])


def asked(data: Dataset, seed: int, passes: int, row: int):
    """An example as a loop of one's own would ask for it."""
    own = stream_key(seed, "example", passes, row) >> 65
    torch.manual_seed(own)
    np.random.seed(own % 2**32)
    random.seed(own)
    return data[row]


def problem_of(data=None, partition=None) -> ModuleParts:
    train = arrays_of(data or Noisy(), "data")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    dev = Arrays(X[:9], Y[:9])
    loss = nn.functional.cross_entropy
    return ModuleParts(model, loss, train, dev, None, {}, partition=partition)


def assert_is_plain_loop(config, found: torch.Tensor) -> None:
    """SGD by hand, on minibatches whose examples are asked one by one."""
    model, data = config.task.problem.module(config.seed), config.task.problem.train.data
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for stage in range(config.passes):
        order = config.order(stage, config.task.problem.train)
        for step in range(order.steps):
            rows, passes = order.rows_of([(0, step)])[0], order.passes_of([(0, step)])[0]
            numbers = zip(rows.tolist(), passes.tolist(), strict=True)
            pairs = [asked(data, config.seed, p, r) for r, p in numbers]
            x, y = torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    expected = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("algorithm", "protocol"), [(AsyncSgd(), None), (ModelAveraging(), Averaging(5))]
)
def test_one_worker_is_a_plain_loop_that_asks_anew_bit_for_bit(algorithm, protocol, tmp_path):
    config = configured(problem_of(), algorithm, protocol, workers=1, passes=3)
    run = execute(config, Store(tmp_path), silent)
    assert_is_plain_loop(config, final(run))


def test_a_share_of_ones_own_is_asked_anew_each_time_around(tmp_path):
    config = configured(problem_of(partition=by_label), workers=1, passes=3)
    assert_is_plain_loop(config, final(execute(config, Store(tmp_path), silent)))


def test_every_pass_and_every_run_sees_other_draws_and_a_repeated_one_the_same():
    train = problem_of().train
    rows = np.arange(60)[None]

    def ask(passes, seed):
        return train.ask(rows, np.full_like(rows, passes), seed).x

    assert ask(0, 3).shape == (1, 1, 60, 6)
    assert torch.equal(ask(0, 3), ask(0, 3))
    different = [ask(0, 3), ask(1, 3), ask(0, 4)]
    assert all((a != b).all() for a in different for b in different if a is not b)


def test_passes_are_those_of_a_walk():
    config = configured(problem_of(), ModelAveraging(), Averaging(1), workers=4, passes=3)
    seen = {worker: [] for worker in range(4)}
    for stage in range(3):
        order = config.order(stage, config.task.problem.train)
        for worker in range(4):
            for step in range(order.steps):
                key = [(worker, step)]
                pairs = zip(order.rows_of(key)[0], order.passes_of(key)[0], strict=True)
                seen[worker] += [(int(p), int(r)) for r, p in pairs]
    for found in seen.values():
        passes = [p for p, _ in found]
        assert passes == sorted(passes)
        for number in range(3):
            rows = [row for p, row in found if p == number]
            assert len(rows) == len(set(rows))
            assert len(rows) in (15, len(found) - 15 * number)


@pytest.mark.parametrize("protocol", [None, Averaging(1)], ids=["async", "rounds"])
def test_a_run_that_is_killed_goes_on_to_the_same_bytes(protocol, tmp_path):
    config = configured(problem_of(), ModelAveraging() if protocol else None, protocol)
    check_resumption(config, tmp_path)


def test_training_leaves_all_generators_alone(tmp_path):
    config = configured(problem_of(), passes=1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    execute(config, Store(tmp_path), silent)
    arrays_of(Noisy(), "data")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


# -- what is asked anew --------------------------------------------------------------------------


def test_a_data_set_that_draws_nothing_is_read_before_training(tmp_path):
    data = Plain()
    train = arrays_of(data, "data")
    assert type(train) is Arrays
    assert torch.equal(train.x, X)
    asked = data.asked
    execute(configured(replace_train(problem_of(), train)), Store(tmp_path), silent)
    assert data.asked == asked


def replace_train(problem: ModuleParts, train: Arrays) -> ModuleParts:
    problem.train = train
    return problem


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Noisy(), "data: draws at random: each example is asked anew in each pass of training"),
        (Plain(), ""), (TensorDataset(X, Y), ""),
    ],
)  # fmt: skip
def test_what_is_done_is_told_in_one_line(data, told, caplog):
    with caplog.at_level("INFO", "lagbench"):
        found = arrays_of(data, "data")
    assert caplog.text.count("\n") == bool(told)
    assert told in caplog.text
    assert type(found) is (RandomExamples if type(data) is Noisy else Arrays)


@pytest.mark.parametrize("order", [
    {"batch_size": 7}, {"batch_size": 7, "shuffle": True},
    {"batch_sampler": BatchSampler(RandomSampler(X), 7, False)},
])  # fmt: skip
def test_a_loader_s_data_set_is_asked_anew(order):
    loader = DataLoader(Noisy(), **order)
    found, again = arrays_of(loader, "data"), arrays_of(loader, "data")
    assert isinstance(found, RandomExamples)
    assert sorted(found.rows.tolist()) == list(range(60))
    assert found.rows.tolist() == again.rows.tolist()
    assert torch.equal(found.y, Y[found.rows])


def test_a_loader_that_drops_the_last_batch_keeps_the_rest():
    found = arrays_of(DataLoader(Noisy(), batch_size=7, drop_last=True), "data")
    assert found.rows.tolist() == list(range(56))
    for some in (RandomSampler(X), SubsetRandomSampler(range(60))):  # drops others in each pass
        found = arrays_of(DataLoader(Noisy(), 7, sampler=some, drop_last=True), "data")
        assert sorted(found.rows) == list(range(60))


def test_a_split_keeps_the_rows_of_each_part():
    train, dev = arrays_of(Noisy(), "data").split(0.2)
    assert torch.equal(train.y, Y[train.rows])
    assert sorted([*train.rows, *dev.rows]) == list(range(60))


def test_precision_is_that_of_the_module():
    train = problem_of().train.to("cpu", torch.float64)
    found = train.ask(np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64), 0)
    assert found.x.dtype == torch.float64
    assert found.targets.dtype == torch.int64


# -- identity ------------------------------------------------------------------------------------


def test_the_identity_is_of_code_and_attributes_and_the_same_each_time():
    found = [arrays_of(each, "data").sha256 for each in (Noisy(), Noisy(), Noisy(0.4))]
    assert found[0] == found[1] != found[2]
    rows = arrays_of(Noisy(), "data")
    assert rows.take(np.arange(30)).sha256 != rows.sha256
    assert configured(problem_of()).to_dict() == configured(problem_of()).to_dict()


@pytest.mark.nightly
def test_several_processes_give_the_bytes_of_one(tmp_path):
    results = [
        lagbench.compare(
            *(lambda: nn.Linear(6, 3), nn.functional.cross_entropy, Noisy()), cluster=CLUSTER,
            algorithms=["async", "sync"], workers=[1, 4], rates=0.1, seeds=1, passes=2,
            minibatch=SIZE, step_seconds=0.01, store=tmp_path / str(jobs), jobs=jobs,
        )
        for jobs in (1, 2)
    ]  # fmt: skip
    one, two = ([run.path(MODEL).read_bytes() for run in each.runs] for each in results)
    assert one == two


# -- mistakes ------------------------------------------------------------------------------------


class Generated(Plain):
    """Draws with a generator of its own, now and then."""

    def __init__(self, draw) -> None:
        self.draw = draw

    def __getitem__(self, i: int):
        return X[i] * (1 if self.draw() < 0.5 else -1), int(Y[i])


def collate_mixed(items):
    x, y = default_collate(items)
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y


def collate_centred(items):
    x, y = default_collate(items)
    return (x - x.mean(0) if len(x) > 1 else x), y


def collate_mean(items):
    x, y = default_collate(items)
    return x / len(items), y


class Counted(Generated):
    """Augments from its fiftieth example on."""

    def __getitem__(self, i: int):
        self.asked += 1
        return X[i] * (1 + (self.asked > 50)), int(Y[i])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Generated(np.random.default_rng(0).random), "an example differs when it is asked again"),
        (Generated(random.Random(0).random), "an example differs when it is asked again"),
        (DataLoader(Generated(random.SystemRandom().random), 4), "an example differs when it is"),
        (DataLoader(Plain(), 8, collate_fn=collate_mixed), "collate_fn mixes examples, and is"),
        (DataLoader(Noisy(), 8, collate_fn=collate_centred), "collate_fn mixes examples, and is"),
        (DataLoader(Plain(), 8, collate_fn=collate_mean), "collate_fn mixes examples, and is"),
        (Counted(X.numpy), "an example differs when it is asked again"),
        (DataLoader(Plain(), 8, sampler=WeightedRandomSampler([1.0, 2.0] * 30, 60)), "sampler dra"),
        (DataLoader(Plain(), 8, sampler=RandomSampler(X, num_samples=30)), "the sampler draws"),
        (DataLoader(Plain(), batch_sampler=BatchSampler(RandomSampler(X, True), 8, True)), "sampl"),
    ],
)
def test_draws_that_cannot_be_made_anew_are_refused_in_one_line(data, told):
    with pytest.raises(UserError, match=f"^data: .*{told}.*; allowed: ") as refused:
        arrays_of(data, "data")
    assert "\n" not in str(refused.value)


def collate_noisy(items):
    x, y = default_collate(items)
    return x + torch.randn(len(x), 1), y


@pytest.mark.parametrize("loader", [
    DataLoader(Plain(), 8, collate_fn=collate_noisy), DataLoader(Noisy(), 8, sampler=[3, 3, 4]),
    DataLoader(Noisy(), 8, sampler=SubsetRandomSampler(range(5, 25))),
    DataLoader(Noisy(), 7, shuffle=True, drop_last=True),
])  # fmt: skip
def test_draws_of_collate_and_orders_of_the_same_examples_are_taken(loader):
    train = arrays_of(loader, "data")
    assert isinstance(train, RandomExamples)
    rows = np.arange(3)[None]
    assert (train.ask(rows, rows * 0, 0).x != train.ask(rows, rows * 0 + 1, 0).x).all()


class Growing(Noisy):
    def __getitem__(self, i: int):
        x, y = super().__getitem__(i)
        if torch.initial_seed() and i == 7 and self.noise > 0.6:
            raise OSError("disk is gone")
        return (x[: 5 + int(self.noise < 0.5 or torch.rand(()) < 0.9)], y)


def test_examples_of_another_shape_in_training_are_refused_in_one_line():
    data = Noisy()
    train = arrays_of(data, "data")
    train = replace(train, data=Growing(0.5))
    rows = np.arange(60)[None]
    with pytest.raises(UserError, match=r"^data: examples of unequal shape"):
        train.ask(rows, rows * 0, 0)
    train = replace(train, data=Growing(0.7))
    with pytest.raises(UserError, match=r"^data: example 7 in pass 0 raised OSError: disk is gone"):
        train.ask(rows, rows * 0, 0)
