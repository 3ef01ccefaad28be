"""An archive has runs without their large files, and a store takes what it lacks."""

import pytest

from harness.base.errors import UserError
from harness.store import Store, schema
from harness.store.archive import read_archive, write_archive


@pytest.fixture
def store(tmp_path):
    def finish(writer):
        writer.log("loss", 0.5, fold=1, time_s=0.1, epoch=0.0)
        writer.attach(schema.MODEL, bytes(10_000))
        writer.finish(summary={"loss": 0.5})

    store = Store(tmp_path / "runs")
    for seed in range(3):
        store.obtain({"seed": seed}, finish)
    return store


def test_runs_are_read_back_light_and_whole(store, tmp_path):
    path, copy = tmp_path / "runs.tar.xz", Store(tmp_path / "copy")
    write_archive(path, store.runs())
    read_archive(path, copy)
    assert [run.summary for run in copy.runs()] == [run.summary for run in store.runs()]
    assert all(copy.has(run.hash) and run.without([schema.MODEL]) for run in copy.runs())
    write_archive(tmp_path / "again.tar.xz", reversed(copy.runs()))
    assert (tmp_path / "again.tar.xz").read_bytes() == path.read_bytes()
    read_archive(path, store)
    assert not any(run.without([schema.MODEL]) for run in store.runs())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"runs",
        lambda data: data[:60] + b"!" + data[61:],
    ],
)
def test_damaged_archive_is_refused(store, tmp_path, damage):
    path = tmp_path / "runs.tar.xz"
    write_archive(path, store.runs())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="archive of runs"):
        read_archive(path, Store(tmp_path / "copy"))
