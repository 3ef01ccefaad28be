"""What renews a kernel that is kept."""

from __future__ import annotations

import pytest

from harness.kernels.compiling import callable_part


def change(package, name, old, new):
    path = package / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "returned"),
    [
        ("called.py", "value * BY", "value - BY", "-6"),
        ("called.py", "BY = 10", "BY = 100", "301"),
        ("caller.py", "+ 1", "+ 2", "32"),
        ("called.py", "@part", "@(lambda f: part(f, error_model='numpy'))", "31"),
    ],
    ids=["a called function", "a constant that it reads", "the kernel", "how it is compiled"],
)
def test_a_kernel_is_renewed_by_a_change_of(package, computed, name, old, new, returned):
    assert computed()[0] == "31"
    change(package, name, old, new)
    value, said = computed()
    assert value == returned
    assert said.startswith("compiling, once")


def test_a_kernel_of_no_file_is_never_stale(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    texts = ("def f(x):\n    return x + g(x)", "def g(x):\n    return 2 * x")

    def compile_text(texts):
        scope = {"__name__": "notebook"}
        for text in reversed(texts):
            exec(compile(text, "<cell>", "exec"), scope)
            scope["g"] = callable_part(scope["g"])
        return callable_part(scope["f"])(1)

    assert compile_text(texts) == 3
    assert compile_text((texts[0], texts[1].replace("2", "5"))) == 6


def test_kernels_that_differ_by_what_they_capture_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def capture(by):
        return callable_part(lambda x: x * by)

    def default(by):
        return callable_part(lambda x, by=by: x * by)

    for make in (capture, default):
        assert [make(by)(1) for by in (2, 3)] == [2, 3]


def test_changing_back_finds_the_first_kernel_again(package, computed):
    computed()
    change(package, "called.py", "BY = 10", "BY = 100")
    computed()
    change(package, "called.py", "BY = 100", "BY = 10")
    assert computed() == ("31", "")


def test_what_cannot_be_read_beside_a_kernel_is_no_part_of_it(package, computed):
    computed()
    (package / ".#caller.py").symlink_to("user@host.1234")  # an editor's lock
    (package / "folder.py").mkdir()
    assert computed() == ("31", "")


def test_another_folder_finds_the_same_kernel(package, computed, tmp_path_factory, monkeypatch):
    computed()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "clone"
    package.rename(elsewhere)
    package.symlink_to(elsewhere)  # the kept kernels are still where they were
    assert computed() == ("31", "")
