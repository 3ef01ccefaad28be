"""Iterables, memory-mapped arrays and data sets of Hugging Face, beside the same data in memory."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lagbench
from harness.base.errors import UserError
from harness.modules import reading
from harness.modules.mapped import MemmapRows
from harness.modules.problem import Arrays
from harness.modules.reading import arrays_of
from harness.store.schema import MODEL
from tests.harness.modules.test_modules import CLUSTER

drawn = torch.Generator().manual_seed(0)
X, Y = torch.randn(90, 6, generator=drawn), torch.arange(90) % 3


class Endless(IterableDataset):
    """The examples over and over again."""

    def __iter__(self):
        return iter(zip(itertools.cycle(X), itertools.cycle(Y)))


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 7)
    monkeypatch.setattr(reading, "UNENDING", 200)


# -- iterables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda d: d, lambda d: DataLoader(d, batch_size=11)])
def test_so_many_examples_are_read_of_an_endless_iterable(make, short_blocks):
    found = arrays_of(make(Endless()), "data", examples=95)
    assert torch.equal(found.x, torch.cat([X, X[:5]]))
    assert torch.equal(found.y, torch.cat([Y, Y[:5]]))


@pytest.mark.parametrize("data", [(X, Y), TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), 7)])
def test_so_many_examples_are_taken_of_data_of_any_kind(data):
    found = arrays_of(data, "data", examples=20)
    assert torch.equal(found.x, X[:20])
    assert torch.equal(found.y, Y[:20])
    with pytest.raises(UserError, match=r"^examples: 91, but data ends after 90; allowed: at most"):
        arrays_of(data, "data", examples=91)


@pytest.mark.parametrize("make", [lambda d: d, lambda d: DataLoader(d, batch_size=11)])
def test_an_endless_iterable_without_a_number_ends_in_one_line(make, short_blocks):
    with pytest.raises(UserError, match=r"^data: no end after 20\d examples; allowed: examples="):
        arrays_of(make(Endless()), "data")


def test_more_examples_than_there_are_are_refused(short_blocks):
    with pytest.raises(UserError, match=r"^examples: 95, but data ends after 90; allowed: at most"):
        arrays_of(zip(X, Y, strict=True), "data", examples=95)


def test_blocks_are_the_same_as_the_whole(short_blocks):
    found = arrays_of(zip(X, Y, strict=True), "data")
    assert found.sha256 == Arrays(X, Y).sha256
    named = ({"a": x, "b": (x, y), "labels": y} for x, y in zip(X, Y, strict=True))
    found = arrays_of(named, "data")
    assert found.sha256 == arrays_of({"a": X, "b": (X, Y), "labels": Y}, "data").sha256


@pytest.mark.parametrize("last", [(torch.zeros(5), 1), ((torch.zeros(6), torch.zeros(1)), 1)])
def test_a_later_block_of_another_shape_is_refused(last, short_blocks):
    with pytest.raises(UserError, match="data: examples of unequal shape"):
        arrays_of([*zip(X, Y, strict=True), last], "data")


def test_reading_for_long_is_told(short_blocks, caplog, monkeypatch):
    monkeypatch.setattr(reading, "SAID_EVERY_S", -1.0)
    with caplog.at_level("INFO", "lagbench"):
        arrays_of(zip(X, Y, strict=True), "data")
        arrays_of(Endless(), "data", examples=20)
    ending = "; examples= is needed if it has no end"
    assert f"data: 89 examples read in 0 s{ending}" in caplog.messages
    assert caplog.messages[-1].endswith("19 examples read in 0 s")


# -- memory-mapped arrays ------------------------------------------------------------------------


@pytest.fixture
def mapped(tmp_path):
    """The examples in two files."""
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "y.npy", Y.numpy())
    return tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")


def test_mapped_arrays_are_not_copied_and_have_the_digest_of_a_copy(mapped, monkeypatch):
    monkeypatch.setattr("harness.runs.digests.PIECE", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = arrays_of(mapped, "data")
    assert isinstance(found, MemmapRows)
    assert found.x.data_ptr() == mapped[0].ctypes.data
    train, dev = found.split(0.2)
    ours = Arrays(X, Y).split(0.2)
    assert isinstance(train, MemmapRows)
    assert train.x.data_ptr() == mapped[0].ctypes.data
    assert [train.sha256, dev.sha256] == [each.sha256 for each in ours]
    assert found.sha256 == Arrays(X, Y).sha256
    assert torch.equal(train.targets, ours[0].y)


def test_minibatches_of_mapped_arrays_are_those_of_a_copy(mapped):
    rows = torch.tensor([[0, 3, 3], [50, 1, 2]])
    plain = Arrays(X, Y).split(0.2)[0]
    train = arrays_of(mapped, "data").split(0.2)[0]
    for floats in (torch.float32, torch.float64):
        one, two = (each.to("cpu", floats).gather(rows) for each in (plain, train))
        assert torch.equal(one.x, two.x)
        assert one.x.dtype == two.x.dtype == floats
        assert torch.equal(one.targets, two.targets)
    assert torch.equal(plain[5:40:2].x, train[5:40:2].x)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("partition", ["iid", "by_label"])
def test_a_run_on_mapped_arrays_is_that_on_a_copy(jobs, partition, mapped, tmp_path):
    def trained(data, where):
        found = lagbench.compare(
            *(lambda: nn.Linear(6, 3), nn.functional.cross_entropy, data),
            cluster=CLUSTER,
            algorithms=["async", "sync"],
            workers=[4],
            rates=0.1,
            seeds=2,
            minibatch=8,
            passes=2,
            step_seconds=0.01,
            partition=partition,
            store=tmp_path / where,
            jobs=jobs,
        )
        return {run.hash: run.path(MODEL).read_bytes() for run in found.runs}

    assert trained(mapped, "mapped") == trained((X, Y), "plain")


# -- data sets of Hugging Face -------------------------------------------------------------------


class HuggingFace:
    """A stand-in with the methods of a `datasets.Dataset` that are used here."""

    def __init__(self, columns: dict, kind: str | None = None) -> None:
        self.columns, self.format = columns, {"type": kind}
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: int) -> dict:
        item = {name: values[i] for name, values in self.columns.items()}
        if self.format["type"] == "torch":
            item = {k: v if isinstance(v, str) else torch.tensor(v) for k, v in item.items()}
        return item

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def with_format(self, kind: str) -> HuggingFace:
        return HuggingFace(self.columns, kind)

    def remove_columns(self, names: list[str]) -> HuggingFace:
        kept = {name: values for name, values in self.columns.items() if name not in names}
        return HuggingFace(kept, self.format["type"])


COLUMNS = {
    "text": [f"sentence {i}" for i in range(90)],
    "input_ids": [[i, i + 1, i + 2] for i in range(90)],
    "label": [i % 3 for i in range(90)],
}


def test_a_data_set_of_hugging_face_is_read_with_tensors_and_without_text(caplog):
    with caplog.at_level("INFO", "lagbench"):
        found = arrays_of(HuggingFace(COLUMNS), "data")
    assert caplog.text.count("\n") == 1
    assert "data: left out the column of text 'text'" in caplog.text
    expected = {"input_ids": torch.tensor(COLUMNS["input_ids"]), "labels": Y}
    assert found.sha256 == arrays_of(expected, "data").sha256


def test_a_dict_of_splits_is_refused():
    class Splits(dict):
        column_names = ()

        def with_format(self, kind: str):
            return self

    data = Splits(train=HuggingFace(COLUMNS), test=HuggingFace(COLUMNS))
    with pytest.raises(UserError, match=r"^data: a dict of the splits 'train', 'test'; allowed"):
        arrays_of(data, "data")


# -- lists ---------------------------------------------------------------------------------------


def test_a_pair_of_plain_lists_is_arrays_and_a_list_of_pairs_examples():
    columns = arrays_of((X.tolist(), Y.tolist()), "data")
    assert torch.equal(columns.x, X)
    assert torch.equal(columns.y, Y)
    examples = arrays_of(([0.5, 1], [0.25, 0]), "data")
    assert (examples.x.tolist(), examples.y.tolist()) == ([0.5, 0.25], [1, 0])
