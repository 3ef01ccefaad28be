import copy
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from harness.base.errors import UserError
from harness.base.settings import Spec, build, setting
from harness.simulator.cluster import Cluster, Jitter, Workload, load_cluster

K20M = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"


@dataclass(frozen=True)
class Inner(Spec):
    size: int = setting(at_least=1, at_most=9)


@dataclass(frozen=True)
class Outer(Spec):
    rate: float = setting(above=0.0)
    name: str = setting("x")
    mode: str = setting("slow", one_of=("slow", "fast"))
    loud: bool = setting(False)
    limit: float | None = setting(None, at_least=0.0)
    items: tuple[Inner, ...] = setting(())
    named: dict[str, Inner] | None = setting(None)
    values: tuple[float, ...] = setting((), at_most=5.0)

    def trouble(self):
        return ("name", "must not be 'bad'") if self.name == "bad" else None


def test_a_table_becomes_a_spec_and_back():
    table = {"rate": 2, "items": [{"size": 3}], "named": {"a": {"size": 4}}, "values": [1, 2.5]}
    spec = build(Outer, table, "f.toml")
    assert spec.items == (Inner(3),)
    assert spec.named == {"a": Inner(4)}
    assert spec.to_dict() == {
        **{"rate": 2.0, "name": "x", "mode": "slow", "loud": False, "limit": None},
        **{"items": [{"size": 3}], "named": {"a": {"size": 4}}, "values": [1.0, 2.5]},
    }
    assert build(Outer, spec.to_dict() | {"limit": 1}, "f.toml").limit == 1.0


def test_whole_numbers_and_fractions_of_one_value_give_one_spec():
    one, other = Outer(rate=2), build(Outer, {"rate": 2.0}, "f")
    assert json.dumps(one.to_dict()) == json.dumps(other.to_dict())


WRONG = [
    ({"rate": 0.0}, "rate: 0.0 is not allowed; allowed: a number above 0"),
    ({"rate": -1}, "rate: -1.0 is not allowed; allowed: a number above 0"),
    ({"rate": float("nan")}, "rate: nan is not allowed; allowed: a number above 0"),
    ({"rate": float("inf")}, "rate: inf is not allowed; allowed: a number above 0"),
    ({"rate": 10**400}, "rate: inf is not allowed; allowed: a number above 0"),
    ({"rate": "2"}, "rate: '2' is not allowed; allowed: a number above 0"),
    ({"rate": True}, "rate: true is not allowed; allowed: a number above 0"),
    ({"loud": 1}, "loud: 1 is not allowed; allowed: true or false"),
    ({"name": 3}, "name: 3 is not allowed; allowed: a string"),
    ({"mode": "fats"}, "mode: unknown 'fats' (did you mean 'fast'?); allowed: fast, slow"),
    (
        {"items": [{"size": 3}, {"size": 10}]},
        "items[1].size: 10 is not allowed; allowed: a whole number at least 1 and at most 9",
    ),
    (
        {"items": [{"size": 1.5}]},
        "items[0].size: 1.5 is not allowed; allowed: a whole number at least 1 and at most 9",
    ),
    ({"items": [4]}, "items[0]: 4 is not allowed; allowed: a table"),
    (
        {"items": {"size": 1}},
        "items: {'size': 1} is not allowed; allowed: a list, each entry a table",
    ),
    (
        {"named": {"a": {"siz": 1}}},
        "key in named.a: unknown 'siz' (did you mean 'size'?); allowed: size",
    ),
    ({"values": [1, 6]}, "values[1]: 6.0 is not allowed; allowed: a number at most 5"),
    ({"name": "bad"}, "name: must not be 'bad'"),
]


@pytest.mark.parametrize(("table", "message"), WRONG, ids=[message for _, message in WRONG])
def test_every_mistake_is_one_line_that_teaches(table, message):
    with pytest.raises(UserError) as caught:
        build(Outer, {"rate": 1} | table, "f.toml")
    assert str(caught.value) == f"f.toml: {message}"


def test_a_spec_made_in_python_is_checked_by_the_same_rules():
    with pytest.raises(UserError, match=r"^f: rate: missing; needed: a number above 0$"):
        build(Outer, {}, "f")
    with pytest.raises(UserError, match=r"Inner\.size: 0 is not allowed; allowed: a whole number"):
        Inner(0)
    with pytest.raises(UserError, match=r"Outer\.name: must not be 'bad'"):
        Outer(1.0, "bad")
    with pytest.raises(UserError, match=r"Outer\.items: 3 is not allowed; allowed: a list"):
        Outer(1.0, items=3)


def changed(keys: tuple[str | int, ...], value: object) -> dict[str, object]:
    """The published cluster file with one value put in, or taken out where it is None."""
    table = copy.deepcopy(tomllib.loads(K20M.read_text()))
    place = table
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return table


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("workers", 0, "device"), "K20x", "workers[0].device: unknown 'K20x' (did you mean 'K20'"),
        (("workers",), [], "workers: empty; allowed: at least one group of workers"),
        (("devices", "K20m", "achieved_flops_per_s"), None, "achieved_flops_per_s: missing"),
        (("jitter", "law"), "empirical", "jitter.values: an empirical law needs durations"),
        (("jitter", "values"), [1.0], "jitter.values: only the empirical law has values"),
    ],
)
def test_a_cluster_file_is_held_to_rules_of_its_own(keys, value, message):
    with pytest.raises(UserError) as caught:
        build(Cluster, changed(keys, value), "f.toml")
    assert str(caught.value).startswith("f.toml: ")
    assert message in str(caught.value)
    pageable = build(Cluster, changed(("host", "staging"), "pageable"), "f.toml")
    assert pageable.host.staging == "pageable"


def test_rules_across_keys_are_checked():
    table = changed(("host", "staging_bytes_per_s"), None)
    table["host"]["staging"] = "pageable"
    with pytest.raises(UserError, match=r"staging_bytes_per_s: missing"):
        build(Cluster, table, "f.toml")
    with pytest.raises(UserError, match=r"Jitter\.cv: 1\.5 is not allowed"):
        Jitter("shifted-exponential", 1.5)


def test_the_published_cluster_is_plain_data_that_builds_it_again():
    cluster = load_cluster(K20M)
    data = json.loads(json.dumps(cluster.to_dict()))
    assert build(Cluster, data, "again") == cluster


def test_the_cost_models_figures_for_the_papers_networks():
    paper1 = Workload.of_network((429, *[2048] * 7, 10217), 256)
    paper2 = Workload.of_network((440, *[2048] * 6, 8806), 1024)
    assert paper1 == load_cluster(K20M).workload
    assert paper1.parameter_bytes == 4 * 46_993_385
    assert paper2.parameter_bytes == 4 * 39_928_422
    assert paper2.flops_per_frame == pytest.approx(237.6e6, rel=5e-4)
    assert paper2.minibatch_flops == pytest.approx(243.3e9, rel=5e-4)
    assert paper1.minibatch_flops == pytest.approx(71.7e9, rel=5e-4)


@dataclass(frozen=True)
class Circle:
    radius: float = setting(above=0.0)


@dataclass(frozen=True)
class Square:
    side: float


@dataclass(frozen=True)
class Drawing(Spec):
    shape: Circle | Square | None = None
    line: Literal["solid", "dotted"] = "solid"


def test_a_table_may_name_which_of_several_classes_it_describes() -> None:
    table = {"shape": {"is": "Square", "side": 2}, "line": "dotted"}
    assert build(Drawing, table, "d.toml") == Drawing(shape=Square(2.0), line="dotted")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"shape": {"is": "Sqare", "side": 2}},
            "shape.is: unknown 'Sqare' (did you mean 'Square'?)",
        ),
        ({"shape": {"side": 2}}, "shape.is: missing; allowed: one of Circle, Square"),
        ({"shape": {"is": 3}}, "shape.is: 3 is not allowed; allowed: one of Circle, Square"),
        ({"shape": 3}, "shape: 3 is not allowed; allowed: a table"),
        ({"shape": {"is": "Circle", "radius": -1}}, "shape.radius: -1"),
        ({"line": "dashed"}, "line: unknown 'dashed'; allowed: dotted, solid"),
        ({"is": "Painting"}, "is: not allowed; allowed: Drawing"),
    ],
)
def test_a_wrong_class_or_word_is_one_line_that_names_what_is_allowed(
    table: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        build(Drawing, table, "d.toml")
    assert f"d.toml: {words}" in str(caught.value)
