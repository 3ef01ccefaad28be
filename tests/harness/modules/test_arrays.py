import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

import lagbench
from harness.base.errors import UserError
from harness.modules.parts import Arrays
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


def collate_flipped(items):
    x, y = zip(*items, strict=True)
    return -torch.stack(x), torch.stack(y)


def test_a_loader_s_own_collate_makes_each_example():
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=collate_flipped)
    assert torch.equal(arrays_of(loader, "data").x, -X)


def test_a_collate_that_pads_makes_all_as_long_as_the_longest():
    def padded(pairs):
        rows = pad_sequence([x for x, _ in pairs], batch_first=True, padding_value=-1.0)
        return rows, torch.tensor([y for _, y in pairs])

    pairs = [(torch.arange(1.0, length), length % 2) for length in (3, 6, 2, 4)]
    arrays = arrays_of(DataLoader(pairs, batch_size=2, collate_fn=padded), "data")
    assert torch.equal(arrays.x, padded(pairs)[0])
    assert arrays.y.tolist() == [1, 0, 0, 0]
    stacks = DataLoader(pairs).collate_fn  # and does not pad
    with pytest.raises(UserError, match=r"^data: examples of unequal shape"):
        arrays_of(DataLoader(pairs, batch_size=2, collate_fn=lambda some: stacks(some)), "data")


@pytest.mark.parametrize(
    ("collate", "told"),
    [
        (lambda batch: 3.0, "no pair"),
        (lambda batch: (X, Y[: len(batch)]), r"one item has shapes \[6, 2\] and \[1\]; allowed: "),
        (lambda batch: (X[0].sum(), Y[0]), r"one item has shapes \[\] and \[\]"),
    ],
)
def test_batches_that_cannot_be_taken_apart_are_refused_in_words(collate, told):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=collate)
    with pytest.raises(UserError, match=f"test: .*{told}"):
        arrays_of(loader, "test")


class Iterated(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


@pytest.mark.parametrize("data", [Iterated(), iter(Iterated()), DataLoader(Iterated())])
def test_an_iterable_is_refused_with_what_to_do_instead(data):
    with pytest.raises(UserError, match=r"^data: .*no items by number.*, a list of its examples$"):
        arrays_of(data, "data")


def test_arrays_that_are_mapped_from_a_file_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = arrays_of((mapped, Y), "data").to("cpu", torch.float32)
    assert found.x.data_ptr() == mapped.ctypes.data


def test_a_pair_of_plain_lists_is_arrays_and_a_list_of_pairs_examples():
    columns = arrays_of((X.tolist(), Y.tolist()), "data")
    assert torch.equal(columns.x, X)
    assert torch.equal(columns.y, Y)
    examples = arrays_of(([0.5, 1], [0.25, 0]), "data")
    assert (examples.x.tolist(), examples.y.tolist()) == ([0.5, 0.25], [1, 0])


@pytest.mark.parametrize(
    "data",
    [(X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y), Mapped(), [*zip(X, Y, strict=True)]],
    ids=["tensors", "arrays", "tensor dataset", "dataset", "list"],
)
def test_all_kinds_of_data_are_the_same_arrays(data):
    found = arrays_of(data, "data")
    assert torch.equal(found.x, X)
    assert torch.equal(found.y, Y)
    assert found.sha256 == Arrays(X, Y).sha256


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (3, "int has no items by number, or no length; allowed: a pair of arrays"),
        ((X, Y[:4]), "6 examples with 4 targets"), ((X[:0], Y[:0]), "empty"),
        ([1, 2, 3], "no pair"), ([], "empty"),
        ([(torch.zeros(n), n) for n in (1, 2)], "unequal shape"),
        ((np.array(["a", "b"]), Y[:2]), "holds no numbers"),
    ],
)  # fmt: skip
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


class Frame:
    """Stands in for a table of another library, which converts to an array."""

    shape = (6, 2)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.array


PLAIN = X.numpy()


@pytest.mark.parametrize(
    "x",
    [
        PLAIN[::-1][::-1], PLAIN[::-1].copy()[::-1], np.asfortranarray(PLAIN),
        PLAIN.astype(">f4"), PLAIN.astype(np.uint16), PLAIN.astype(">u4"),
        Frame(PLAIN.astype(">f8")[::-1].copy()[::-1]), np.ma.masked_greater(PLAIN, 100.0),
        torch.tensor(PLAIN, requires_grad=True),
    ],
)  # fmt: skip
def test_numbers_are_taken_however_they_lie_in_memory(x):
    assert torch.equal(arrays_of((x, Y), "data").x.float(), X)
    examples = [(row, 1) for row in (x.array if isinstance(x, Frame) else x)]
    assert torch.equal(arrays_of(examples, "data").x.float(), X)
    assert not arrays_of((x, Y), "data").x.requires_grad


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ((np.ma.masked_greater(PLAIN, 3.0), Y), "MaskedArray with masked values, which are no"),
        ((X, np.ma.masked_equal(Y.numpy(), 3)), "MaskedArray with masked values, which are no"),
        ([(np.ma.masked_less(row, 4.0), 1) for row in PLAIN], "MaskedArray with masked values"),
        ((Frame(PLAIN.astype(object)), Y), "Frame of object holds no numbers"),
        ((PLAIN.astype("M8[s]"), Y), r"ndarray of datetime64\[s\] holds no numbers"),
        ((PLAIN.astype(np.uint64), Y), r"torch\.uint64 on cpu, layout torch\.strided"),
        ((X.to_sparse(), Y), r"layout torch\.sparse_coo"),
        ((X.to("meta"), Y), "a tensor of torch.float32 on meta"),
        (Frame(PLAIN), "Frame without targets"),
        (PLAIN, "ndarray without targets"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_its_kind(data, told):
    with pytest.raises(UserError, match=f"^data: .*{told}.*; allowed: "):
        arrays_of(data, "data")


class Halving(nn.Module):
    """A module that writes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x.mul_(0.5))


def test_a_module_that_writes_its_inputs_leaves_the_data_as_they_are(tmp_path):
    settings = {"rate": 1e-9, "step_seconds": 0.01, "seeds": 1, "passes": 2, "minibatch": 2}
    x, y = X.clone(), Y % 2
    settings |= {"dev": (x, y), "metric": "loss", "cluster": "k20m-server", "store": tmp_path}
    run = lagbench.train(Halving, nn.functional.cross_entropy, (x, y), **settings).runs[0]
    assert torch.equal(x, X)
    assert np.ptp(run.curve("dev_loss/iterate")[1]) < 1e-6
