import json

import pytest

from harness.store import files


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_bytes(path, b"old")
    seen = []
    monkeypatch.setattr(files.os, "fsync", lambda handle: seen.append(path.read_bytes()))
    files.write_bytes(path, b"new")
    assert seen == [b"old", b"new"]  # the content before the name, then the name
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def fails():
        with files.replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_lies_deeper_than_the_levels_asked_for_is_one_line(tmp_path):
    value = {"a": [{"b": [1, {"c": None}], "é": ()}, "x"], "empty": {}, "n": 1.5}
    files.write_json(path := tmp_path / "it.json", value, levels=2)
    assert path.read_text(encoding="utf-8").splitlines() == [
        "{",
        '  "a": [',
        '    {"b": [1, {"c": null}], "é": []},',
        '    "x"',
        "  ],",
        '  "empty": {},',
        '  "n": 1.5',
        "}",
    ]


@pytest.mark.parametrize("levels", [None, 0, 1, 2, 3, 9])
def test_layout_changes_no_value_and_lets_no_nan_through(levels, tmp_path):
    value = {"a": [{"b": [1, {"c": None}]}, [[]], '"\\\n'], 'k"': {"d": {"e": [0.1, -2]}}}
    files.write_json(path := tmp_path / "it.json", value, levels)
    assert json.loads(path.read_text(encoding="utf-8")) == value
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"a": {"b": [float("nan")]}}, levels)
