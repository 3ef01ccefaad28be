"""Files of kernels: whole or absent, and found by everybody."""

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
