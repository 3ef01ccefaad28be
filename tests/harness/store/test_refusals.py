"""What a machine refuses at any moment costs one line, and nothing that was finished."""

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.cli import exit_code, main
from harness.experiment import loop
from harness.experiment.run import keep_faults, run
from harness.store import Store
from harness.store.files import write_columns
from tests.harness.store.test_durability import CONFIG, RESULTS, went_through


class Refusing:
    """Makes the n-th call that changes the disk fail, and all after it while it is full."""

    def __init__(self, monkeypatch, number, at=None):
        self.number, self.at, self.calls = number, at, 0
        for name in ("replace", "fsync", "mkdir"):
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, call):
        def refused(*arguments, **named):
            self.calls += 1
            if self.at is not None and self.calls >= self.at:
                raise OSError(self.number, os.strerror(self.number))
            return call(*arguments, **named)

        return refused


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a run that nothing was refused to, and how often it changed the disk."""
    store = Store(tmp_path_factory.mktemp("whole"))
    with pytest.MonkeyPatch.context() as patch:
        calls = Refusing(patch, errno.ENOSPC)
        list(went_through(store))
    folder = store.path / identity(CONFIG)
    return {name: (folder / name).read_bytes() for name in RESULTS}, calls.calls


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_refuses_from_any_moment_on_loses_nothing(tmp_path, whole, number):
    files, calls = whole
    assert calls > 20
    for at in range(1, calls + 1):
        store = Store(tmp_path / str(at))
        with pytest.MonkeyPatch.context() as patch:
            Refusing(patch, number, at)
            with pytest.raises((UserError, OSError), match=os.strerror(number)):
                list(went_through(store))
        if not store.has(identity(CONFIG)):
            list(went_through(store))
        folder = store.path / identity(CONFIG)
        assert {name: (folder / name).read_bytes() for name in RESULTS} == files
        assert not list(folder.glob(".unfinished-*"))


@pytest.fixture
def small_files():
    """The machine writes no file beyond 4 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


MUCH = np.random.default_rng(0).random(100_000)
WRITERS = {
    "model.safetensors": lambda writer: writer.attach_arrays("model.safetensors", {"model": MUCH}),
    "checkpoint.safetensors": lambda writer: loop.save(writer.checkpoint, {"a": MUCH}, {}),
    "metrics.parquet": lambda writer: write_columns(writer.dir / "metrics.parquet", {"a": MUCH}),
    "timeline.parquet": lambda writer: writer.attach("timeline.parquet", Path(np.__file__)),
    "heard.json": lambda writer: writer.attach("heard.json", MUCH.tobytes()),
}


@pytest.mark.parametrize("name", WRITERS)
def test_whatever_library_writes_a_file_what_the_machine_refuses_is_one_line(
    tmp_path, small_files, name
):
    """Each has errors of its own for a disk that is full."""
    with Store(tmp_path).begin(CONFIG) as writer:
        with pytest.raises(
            UserError,
            match=rf"^{tmp_path}/.*/{name}: .*File too large; after a repair the same command",
        ):
            WRITERS[name](writer)
        assert not list(tmp_path.rglob(".unfinished-*"))
        assert not list(tmp_path.rglob(name))


class Config:
    def to_dict(self):
        return CONFIG


def execute(config, store):
    with keep_faults(config, store, True):
        run(config, store)


def too_much_for_torch():
    torch.empty(2**48)


def too_much_for_numpy():
    np.empty(2**55)


@pytest.mark.parametrize("asks", [too_much_for_torch, too_much_for_numpy])
def test_want_of_memory_is_one_line_and_no_result_of_a_run(tmp_path, monkeypatch, capsys, asks):
    monkeypatch.setattr(Config, "execute", lambda config, store, watch: asks(), raising=False)
    with pytest.raises(UserError, match="out of memory; allowed: what fits"):
        execute(Config(), Store(tmp_path))
    assert not Store(tmp_path).has(identity(CONFIG))
    assert exit_code(asks) == 2
    assert (
        capsys.readouterr().err == "error: out of memory; allowed: what fits, e.g. fewer --jobs\n"
    )


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    (in_its_place := tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("LAGBENCH_CACHE", str(in_its_place))
    run = Path(__file__).parents[3] / "reproductions" / "runs" / "async-averaged.toml"
    assert main(["train", str(run), "--out", str(tmp_path / "runs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert str(in_its_place) in line


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device", "a/b")])
def test_a_refusal_is_no_result_of_a_run(tmp_path, monkeypatch, error):
    def refused(config, store, watch):
        raise error

    monkeypatch.setattr(Config, "execute", refused, raising=False)
    with pytest.raises(UserError, match="a/b: No space left on device; after a repair"):
        execute(Config(), Store(tmp_path))
    assert not Store(tmp_path).has(identity(CONFIG))
