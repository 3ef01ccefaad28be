"""Kernels that are kept: found again, and thrown away when they are not as they were written."""

import pickle

from harness.kernels import cache


def only_file(package):
    (path,) = (package / "kept").iterdir()
    return path


def test_a_second_process_loads_what_the_first_compiled(package, computed):
    assert computed()[0] == "31"
    before = only_file(package).read_bytes()
    assert computed() == ("31", "")
    assert only_file(package).read_bytes() == before


SPOILT = {
    "empty": lambda _: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:1000] + bytes([content[1000] ^ 1]) + content[1001:],
    "random": lambda _: bytes(range(256)) * 8,
    "foreign": lambda _: pickle.dumps({"another": "thing"}),
}


def test_a_damaged_file_is_thrown_away_with_one_line_and_compiled_anew(package, computed):
    computed()
    path = only_file(package)
    for how, spoil in SPOILT.items():
        path.write_bytes(spoil(path.read_bytes()))
        returned, said = computed()
        assert returned == "31", how
        complaint, compiled = said.splitlines()
        assert complaint.startswith(f"kernel cache: {path} is damaged"), how
        assert compiled.startswith("compiling, once"), how
        assert only_file(package) == path, how
        assert cache.read(path), how
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


def test_where_nothing_can_be_kept_a_kernel_is_compiled_all_the_same(package, computed):
    (package / "kept").write_text("a file where the folder should be")
    assert computed()[0] == "31"
    assert computed()[0] == "31"
