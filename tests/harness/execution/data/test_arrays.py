from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from harness.errors import UserError
from harness.execution.data.arrays import Arrays, arrays_of

X, Y = torch.arange(12.0).view(6, 2), torch.arange(6)


class Mapped:
    """A map-style dataset of NumPy rows."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int):
        return X[i].numpy(), int(Y[i])


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
