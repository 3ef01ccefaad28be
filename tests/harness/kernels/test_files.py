"""Files of kernels: whole or absent, found by everybody, and no more of them than are of use."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.kernels import cache


def test_the_file_of_another_kernel_is_not_taken_for_this_one(tmp_path):
    cache.write(tmp_path / "one", b"machine code")
    (tmp_path / "one").rename(tmp_path / "two")
    with pytest.raises(ValueError, match="does not match its digest"):
        cache.read(tmp_path / "two")


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path):
    cache.write(tmp_path / "folder" / "one", b"machine code")
    assert cache.read(tmp_path / "folder" / "one") == b"machine code"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["one"]
    assert cache.read(tmp_path / "two") is None


def test_the_folder_is_in_the_users_cache_unless_numba_is_told_another(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "lagbench" / "kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "other"))
    assert cache.folder() == tmp_path / "other"


def test_a_user_without_a_home_has_no_folder(monkeypatch):
    def homeless(path):
        raise RuntimeError

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache.Path, "expanduser", homeless)
    assert cache.folder() is None


def kept(folder, **used_s_ago):
    """Files of 1,000 bytes and a digest, by when they were read last."""
    paths = {name: folder / f"{name}{cache.SUFFIX}" for name in used_s_ago}
    for path in paths.values():
        cache.write(path, bytes(1000))
    for name, ago in used_s_ago.items():
        os.utime(paths[name], (time.time() - ago,) * 2)
    return paths


def names(folder):
    return {path.stem for path in folder.iterdir()}


def test_of_too_much_the_oldest_are_dropped(tmp_path, monkeypatch):
    paths = kept(tmp_path, second=2.0, third=3.0, fourth=4.0, first=5.0)
    assert cache.read(paths["first"]) == bytes(1000), "the time of the last read counts"
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * 1032)
    cache.write(tmp_path / f"new{cache.SUFFIX}", bytes(1000))
    assert names(tmp_path) == {"new", "first", "second"}


def test_many_who_write_read_and_drop_at_once_find_whole_files_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 5 * 1032)
    paths = [tmp_path / f"{number}{cache.SUFFIX}" for number in range(20)]

    def works(seed):
        for step in range(100):
            path = paths[(7 * seed + 3 * step) % len(paths)]
            cache.write(path, bytes(1000))
            found = cache.read(paths[step % len(paths)])
            assert found in (None, bytes(1000))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(works, range(8)))
    cache.write(paths[0], bytes(1000))
    assert cache.read(paths[0]) == bytes(1000)
    assert len(names(tmp_path)) <= 5
