"""A cluster file with one corrupted value is refused in one line that names file and key."""

import copy
import json
import math
import tomllib
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from harness import cli
from harness.base.settings import Spec, build
from harness.simulator.cluster import Cluster
from tests.keys import Key, keys_of

K20M = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"
NAME = "K20m"
KEYS = list(keys_of(Cluster))
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def toml(value: Any) -> str:
    """A value as TOML writes it, tables inline."""
    if isinstance(value, dict):
        inside = (f"{quoted(k)} = {toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def document(table: dict[str, Any]) -> str:
    return "".join(f"{quoted(k)} = {toml(v)}\n" for k, v in table.items() if v is not None)


def bare(kind: Any) -> Any:
    """``X`` of ``X | None``."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def valid(key: Key) -> Any:
    """Some value that the key allows."""
    if key.path == ("workers", "[]", "device"):
        return NAME
    kind, limits = bare(key.kind), key.limits
    if kind in (int, float):
        edges = (limits.at_least, limits.at_most, 1.0)
        return kind(next(edge for edge in edges if edge is not None and limits.admits(edge)))
    if kind is str:
        return limits.one_of[0] if limits.one_of else "word"
    if isinstance(kind, type) and issubclass(kind, Spec):
        return required(key.path)
    return {bool: False, tuple: [], dict: {}}[get_origin(kind) or kind]


def required(path: tuple[str, ...]) -> dict[str, Any]:
    """A table with the keys it must have."""
    below = [key for key in KEYS if key.path[:-1] == path and key.required]
    together = {"at_s": [1.0]} if path == ("faults", "[]") else {}
    return {key.path[-1]: valid(key) for key in below} | together


def place_of(table: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The table that holds the last part of a path, made where it is not there yet."""
    here: Any = table
    for depth, (step, following) in enumerate(zip(path, [*path[1:], ""], strict=True)):
        if depth == len(path) - 1:
            return here
        if step == "[]":
            if not here:
                here.append(required(path[: depth + 1]))
            here = here[0]
        else:
            name = NAME if step == "NAME" else step
            made = [] if following == "[]" else required(path[: depth + 1])
            here = here.setdefault(name, made)
    return here


def original(path: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """The published file's table, in which the path exists; and the table it ends in."""
    table = copy.deepcopy(tomllib.loads(K20M.read_text()))
    if path[0] == "jobs":  # they share a network
        table["network"] = {"levels": [{"bandwidth_bytes_per_s": 1e9}]}
    return table, place_of(table, path)


NOT_A_NUMBER = ["12", "", True, [1.0], {"a": 1}, "nan", [[[]]], {"a": {"b": [{}]}}]
NOT_A_TABLE = [3, "text", True, 1.5, math.nan]
ABSURD = [math.nan, math.inf, -math.inf, 1e300, -1e300, 10**400]


def wrong_values(key: Key) -> list[Any]:
    """What the key's type and limits do not allow."""
    kind, limits = bare(key.kind), key.limits
    if kind in (int, float):
        wrong: list[Any] = [*NOT_A_NUMBER, *ABSURD]
        wrong += [value for value in (0, -1, -0.5) if not limits.admits(value)]
        return wrong + ([1.5, 2.0] if kind is int else [])
    if kind is str:
        return [7, 0.5, True, [], {"a": 1}, *(["wrod"] if limits.one_of else [])]
    if kind is bool:
        return [1, "true", 0.0, []]
    if get_origin(kind) is tuple:
        return [*NOT_A_TABLE, {"a": 1}, [[[]]], ["x"]]
    return [*NOT_A_TABLE, [], [1]]


@st.composite
def corruptions(draw: Any) -> tuple[str, str]:
    """The text of a corrupted cluster file, and a word that its refusal must contain."""
    key = draw(st.sampled_from(KEYS))
    table, place = original(key.path)
    leaf, name = key.path[-1], NAME if key.path[-1] == "NAME" else key.path[-1]
    assert "[]" not in (leaf, name)
    assume(place is not None)
    how = draw(st.sampled_from(["value", "value", "value", "misspelt", "missing", "unknown"]))
    if how == "missing":
        assume(key.required and key.dotted != "devices")
        place.pop(leaf, None)
        return document(table), leaf
    if how == "misspelt":
        place.setdefault(leaf, valid(key))
        wrong = leaf + draw(st.sampled_from(["s", "_", "2", "x"]))
        place[wrong] = place.pop(leaf)
        return document(table), leaf
    if how == "unknown":
        wrong = draw(st.text(LETTERS, min_size=1, max_size=80))
        assume(wrong not in {k.path[-1] for k in KEYS})
        place[wrong] = draw(st.sampled_from([1, "x", {}, []]))
        return document(table), "unknown"
    place[leaf] = draw(st.sampled_from(wrong_values(key)))
    return document(table), leaf


def refusal(capsys: Any, path: Path) -> str:
    """What `lagbench simulate` says of a file that it must not accept."""
    code = cli.main(["simulate", str(path), "--folds", "5", "--workers", "1"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), path.read_text()
    return err


@settings(max_examples=100, suppress_health_check=list(HealthCheck), derandomize=True)
@given(corruption=corruptions())
def test_a_corrupted_value_is_refused_in_one_line_that_names_file_and_key(
    tmp_path, capsys, corruption
):
    text, word = corruption
    path = tmp_path / "corrupted.toml"
    path.write_text(text, encoding="utf-8")
    err = refusal(capsys, path)
    assert err.startswith(f"error: {path}: ")
    assert word in err
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert len(err) < 600 + len(str(path))
    assert "Traceback" not in err


def test_the_file_that_is_corrupted_is_right_before():
    """Otherwise a refusal would prove nothing about the corruption."""
    for key in KEYS:
        table, _ = original(key.path)
        build(Cluster, tomllib.loads(document(table)), key.dotted)


def test_a_name_that_would_break_the_line_is_shown_on_one(tmp_path, capsys):
    path = tmp_path / "c.toml"
    head = 'name = "n"\nworkers = [{count = 1, device = "K20"}]\n'
    path.write_text(head + '[devices."a\\nb"]\nlaunch_s = -1\n')
    assert "devices.'a\\nb'.launch_s: -1.0 is not allowed" in refusal(capsys, path)


def test_workers_of_all_groups_together_are_limited(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "n"\nworkers = [{count = 9000000, device = "K20"}, '
        '{count = 9000000, device = "K20"}]\n'
    )
    assert "workers: 18000000 in all; allowed: at most 10000000" in refusal(capsys, path)
