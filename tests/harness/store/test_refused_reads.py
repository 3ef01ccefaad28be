"""What a machine refuses to read is not damaged: the command ends, and nothing is touched."""

import builtins
import errno
import io
import os
from pathlib import Path

import numpy as np
import pytest

from data_synth.storage import load_or_make
from harness.base.errors import UserError
from harness.cli import main
from harness.experiment import loop
from harness.kernels import cache
from harness.store import Store
from tests.data_synth.test_cache import make
from tests.harness.store.test_integrity import CONFIG, everything, execute


def never(*_):
    pytest.fail("made again")


NUMBERS = [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE]


class Unreadable(io.RawIOBase):
    """A file that was opened and cannot be read; such an error names no file."""

    number = errno.EIO

    def readable(self):
        return True

    def readinto(self, _):
        raise OSError(self.number, os.strerror(self.number))


def refuse(monkeypatch, call, number, path):
    """Let a call fail for a file: its stat, its opening, or reading what was opened."""

    def refusing(original):
        def refused(file, *arguments, **named):
            if isinstance(file, int) or Path(os.fsdecode(file)) != path:
                return original(file, *arguments, **named)
            if call == "read":
                monkeypatch.setattr(Unreadable, "number", number)
                return Unreadable()
            raise OSError(number, os.strerror(number), str(file))

        return refused

    places = [(os, "stat")] if call == "stat" else [(io, "open"), (builtins, "open")]
    for module, name in places:
        monkeypatch.setattr(module, name, refusing(getattr(module, name)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", NUMBERS, ids=os.strerror)
@pytest.mark.parametrize("call", ["stat", "open", "read"])
@pytest.mark.parametrize("name", ["run.json", "config.json", "metrics.parquet", "model.bin"])
def test_a_finished_run_stays_whatever_the_machine_refuses(tmp_path, name, call, number):
    store = Store(tmp_path)
    run = store.obtain(CONFIG, execute)
    whole = everything(run.dir)
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, call, number, run.dir / name)
        told = rf"^{run.dir / name}: {os.strerror(number)}; after a repair"
        for reads in (lambda: store.obtain(CONFIG, never), lambda: store.has(run.hash)):
            with pytest.raises(UserError, match=told):
                reads()
    assert everything(run.dir) == whole
    assert store.obtain(CONFIG, never) == run


@pytest.mark.parametrize("call", ["stat", "open", "read"])
@pytest.mark.parametrize("name", ["config.json", "provenance.json"])
def test_what_an_unfinished_run_began_with_stays(tmp_path, name, call):
    store = Store(tmp_path).under({"commit": "first"})
    with store.begin(CONFIG) as writer:
        loop.save(writer.checkpoint, {"a": np.ones(3)}, {"passes": 2})
    content = (writer.dir / name).read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, call, errno.EIO, writer.dir / name)
        with pytest.raises(UserError, match=f"{name}: Input/output error"):
            store.begin(CONFIG)
    assert (writer.dir / name).read_bytes() == content


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", NUMBERS, ids=os.strerror)
@pytest.mark.parametrize("call", ["stat", "open", "read"])
def test_a_checkpoint_that_cannot_be_read_now_is_resumed_from_later(tmp_path, call, number):
    loop.save(tmp_path, {"a": np.arange(3.0)}, {"passes": 28})
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, call, number, tmp_path / loop.NAME)
        with pytest.raises(UserError, match=rf"{loop.NAME}: {os.strerror(number)}"):
            loop.load(tmp_path)
    arrays, facts = loop.load(tmp_path)
    assert (arrays["a"].tolist(), facts) == ([0.0, 1.0, 2.0], {"passes": 28})


@pytest.mark.parametrize("call", ["stat", "open"])
@pytest.mark.parametrize("name", ["corpus.json", "features.npy", "utterances.parquet"])
def test_a_corpus_that_cannot_be_read_now_is_not_made_again(tmp_path, name, call):
    folder = tmp_path / "corpus"
    whole = load_or_make(folder, make)
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, call, errno.ESTALE, folder / name)
        with pytest.raises(UserError, match="Stale file handle"):
            load_or_make(folder, never)
    assert load_or_make(folder, never).stored_fingerprint == whole.stored_fingerprint


@pytest.mark.parametrize(
    ("call", "number"),
    [("stat", errno.EMFILE), ("open", errno.EACCES), ("open", errno.EMFILE), ("read", errno.EIO)],
)
def test_a_kernel_that_cannot_be_read_now_is_not_deleted(tmp_path, call, number):
    cache.write(path := tmp_path / "one.kernel", b"machine code")
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, call, number, path)
        with pytest.raises(OSError, match=f"{os.strerror(number)}: '{path}'"):
            cache._load(path, None)
    assert cache.read(path) == b"machine code"


def test_a_file_of_the_kernel_that_cannot_be_read_is_one_line(tmp_path, capsys):
    """Memory of a process is a regular file that can be opened; reading its begin is an error."""
    run = Store(tmp_path).obtain(CONFIG, execute)
    (run.dir / "run.json").rename(aside := run.dir / "aside")
    (run.dir / "run.json").symlink_to("/proc/self/mem")
    assert main(["runs", str(tmp_path)]) == 2
    told = f"error: {run.dir}/run.json: Input/output error; after a repair the same command resumes"
    assert capsys.readouterr().err == told + "\n"
    aside.replace(run.dir / "run.json")
    assert Store(tmp_path).obtain(CONFIG, never) == run


@pytest.mark.parametrize("number", NUMBERS, ids=os.strerror)
def test_a_store_that_cannot_be_listed_is_not_empty(tmp_path, capsys, monkeypatch, number):
    Store(tmp_path).obtain(CONFIG, execute)

    def refused(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "listdir", refused)
    monkeypatch.setattr(os, "scandir", refused)
    assert main(["runs", str(tmp_path)]) == 2
    assert f"{tmp_path}: {os.strerror(number)}" in capsys.readouterr().err
