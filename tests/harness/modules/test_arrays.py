from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from harness.base.errors import UserError
from harness.modules.problem import Arrays
from harness.modules.reading import arrays_of

X, Y = torch.arange(12.0).view(6, 2), torch.arange(6)


class Mapped:
    """A map-style dataset of NumPy rows."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int):
        return X[i].numpy(), int(Y[i])


PAIRS = TensorDataset(X, Y)
LOADERS = {
    "equal batches": DataLoader(PAIRS, batch_size=2),
    "one batch": DataLoader(PAIRS, batch_size=6),
    "a smaller last batch": DataLoader(PAIRS, batch_size=4),
    "a batch sampler": DataLoader(PAIRS, batch_sampler=BatchSampler(range(6), 3, False)),
    "single examples": DataLoader(PAIRS, batch_size=None, sampler=SequentialSampler(PAIRS)),
    "of a mapped data set": DataLoader(Mapped(), batch_size=3),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_batches_of_a_loader_are_taken_apart(kind):
    found = arrays_of(LOADERS[kind], "data")
    assert torch.equal(found.x, X)
    assert torch.equal(found.y, Y)


@pytest.mark.parametrize("own", [None, torch.Generator().manual_seed(5)], ids=["", "its own"])
def test_a_loader_that_shuffles_gives_the_same_examples_every_time(own):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, generator=own)
    one = arrays_of(loader, "data")
    torch.rand(1)  # as a user's program may draw in between
    before = torch.get_rng_state()
    two = arrays_of(loader, "data")
    assert one.sha256 == two.sha256
    assert sorted(one.y.tolist()) == list(range(6))
    assert torch.equal(one.x, X[one.y])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("collate", "told"),
    [
        (lambda batch: 3.0, "no pair"),
        (lambda batch: (X[: len(batch), len(batch) // 4 :], Y[: len(batch)]), "unequal shape"),
        (lambda batch: (X, Y[: len(batch)]), r"a batch of shapes \[6, 2\] and \[4\]; allowed: as"),
        (lambda batch: (X[0].sum(), Y[0]), r"a batch of shapes \[\] and \[\]"),
    ],
)
def test_batches_that_cannot_be_taken_apart_are_refused_in_words(collate, told):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=collate)
    with pytest.raises(UserError, match=f"test: .*{told}"):
        arrays_of(loader, "test")


@pytest.mark.parametrize(
    "data",
    [(X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y), Mapped(), zip(X, Y, strict=True)],
    ids=["tensors", "arrays", "tensor dataset", "dataset", "iterable"],
)
def test_all_kinds_of_data_are_the_same_arrays(data):
    found = arrays_of(data, "data")
    assert torch.equal(found.x, X)
    assert torch.equal(found.y, Y)
    assert found.sha256 == Arrays(X, Y).sha256


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (3, "int is not allowed; allowed: a pair of arrays"),
        ((X, Y[:4]), "6 examples with 4 targets"),
        ((X[:0], Y[:0]), "empty"),
        ([1, 2, 3], "no pair"),
        (((torch.zeros(n), n) for n in (1, 2)), "unequal shape"),
        ((np.array(["a", "b"]), Y[:2]), "holds no numbers"),
    ],
)
def test_what_is_no_data_is_refused_in_one_line(data, told):
    with pytest.raises(UserError, match=f"test: .*{told}"):
        arrays_of(data, "test")


def test_a_minibatch_is_one_frame_to_an_algorithm():
    rows = torch.tensor([[0, 3], [5, 1], [2, 2]])
    x, y = Arrays(X, Y).gather(rows)
    assert x.shape == (3, 1, 2, 2)
    assert y[:, 0].tolist() == rows.tolist()


def test_a_split_has_every_example_once_and_no_other_next_time():
    parts = Arrays(X, Y).split(0.3)
    assert sorted([*parts[0].y.tolist(), *parts[1].y.tolist()]) == list(range(6))
    assert len(parts[1]) == 2
    assert parts[1].y.tolist() == Arrays(X, Y).split(0.3)[1].y.tolist()
