from __future__ import annotations

import pytest

from harness.store import atomic


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")
    seen = []
    monkeypatch.setattr(atomic.os, "fsync", lambda handle: seen.append(path.read_bytes()))
    atomic.write_bytes(path, b"new")
    assert seen == [b"old", b"new"]  # the content before the name, then the name
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")

    def fails():
        with atomic.replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
