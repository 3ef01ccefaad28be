"""Kernels that are kept: found again, and thrown away when they are not as they were written."""

from __future__ import annotations

import pickle

import pytest

from harness.kernels import cache


def only_file(package):
    (path,) = (package / "kept").iterdir()
    return path


def test_a_second_process_loads_what_the_first_compiled(package, computed):
    assert computed()[0] == "31"
    before = only_file(package).read_bytes()
    assert computed() == ("31", "")
    assert only_file(package).read_bytes() == before


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda _: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:1000] + bytes([content[1000] ^ 1]) + content[1001:],
        lambda _: bytes(range(256)) * 8,
        lambda _: pickle.dumps({"another": "thing"}),
    ],
    ids=["empty", "truncated", "one bit", "random", "foreign"],
)
def test_a_damaged_file_is_thrown_away_with_one_line_and_compiled_anew(package, computed, spoilt):
    computed()
    path = only_file(package)
    whole = path.read_bytes()
    path.write_bytes(spoilt(whole))
    returned, said = computed()
    assert returned == "31"
    complaint, compiled = said.splitlines()
    assert complaint.startswith(f"kernel cache: {path} is damaged")
    assert compiled.startswith("compiling, once")
    assert only_file(package) == path
    assert computed() == ("31", "")


def test_content_that_was_written_for_numba_to_load_but_is_not_a_kernel_is_thrown_away(
    package, computed
):
    computed()
    path = only_file(package)
    cache.write(path, pickle.dumps(("no", "kernel")))
    returned, said = computed()
    assert returned == "31"
    assert said.startswith(f"kernel cache: {path} is damaged")


def test_the_file_of_another_kernel_is_not_taken_for_this_one(tmp_path):
    cache.write(tmp_path / "one", b"machine code")
    (tmp_path / "one").rename(tmp_path / "two")
    with pytest.raises(ValueError, match="not as it was written"):
        cache.read(tmp_path / "two")


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path):
    cache.write(tmp_path / "folder" / "one", b"machine code")
    assert cache.read(tmp_path / "folder" / "one") == b"machine code"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["one"]
    assert cache.read(tmp_path / "two") is None


def test_where_nothing_can_be_kept_a_kernel_is_compiled_all_the_same(package, computed):
    (package / "kept").write_text("a file where the folder should be")
    assert computed()[0] == "31"
    assert computed()[0] == "31"


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
