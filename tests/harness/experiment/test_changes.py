"""Changes of a run file's settings: short keys, other classes, and paths from where one stands."""

from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.registry import run_file
from harness.experiment.run_file import load_run, put

FILE = Path("run.toml")


def changed(table, key, value):
    table = {"task": {"is": "frames"}, **table}
    put(FILE, table, (tuple(key.split(".")), value))
    del table["task"]["is"]
    return {key: part for key, part in table.items() if part}


def test_the_last_part_of_a_key_is_enough_where_one_table_has_it():
    file = {"schedule": {"is": "Constant", "rate": 0.1}, "stages": [{"minibatch": 32}]}
    assert changed(file, "rate", 0.2)["schedule"]["rate"] == 0.2
    assert changed(file, "minibatch", 16)["stages"] == [{"minibatch": 16}]
    assert changed(file, "schedule.rate", 0.3)["schedule"]["rate"] == 0.3
    assert changed(file, "seed", 4)["seed"] == 4
    assert changed(file, "nowhere", 1)["nowhere"] == 1  # refused with all allowed keys, later


def test_a_key_of_the_task_is_put_there():
    assert changed({}, "hidden", [8]) == {"task": {"hidden": [8]}}


def test_a_key_at_the_top_comes_before_that_of_a_table():
    assert changed({"a": {"seed": 1}}, "seed", 2) == {"a": {"seed": 1}, "seed": 2}
    assert changed({"k": 1, "a": {"k": 1}}, "k", 2) == {"k": 2, "a": {"k": 1}}


def test_a_key_of_several_tables_is_named_with_its_places():
    file = {"a": {"k": 1}, "b": {"c": {"k": 1}}}
    with pytest.raises(UserError, match=r"run.toml: k is a key of several tables; .* a.k, b.c.k$"):
        changed(file, "k", 2)
    with pytest.raises(UserError, match=r"a\.k\.x: no key"):
        changed(file, "a.k.x", 2)


def test_another_class_begins_with_its_own_defaults():
    file = {"algorithm": {"is": "AveragedSgd", "eta": 0.1}}
    assert changed(file, "algorithm.is", "AveragedSgd")["algorithm"]["eta"] == 0.1
    assert changed(file, "algorithm.is", "AsyncSgd") == {"algorithm": {"is": "AsyncSgd"}}


def test_a_cluster_file_is_looked_for_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k20m-server").write_text("")  # a bundled name means the same in every folder
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\n[[workers]]\ncount = 3\ndevice = "c"\n[devices.c]\nminibatch_s = 0.1\n'
    )
    assert changed({}, "cluster", "mine.toml") == {"cluster": str(tmp_path / "mine.toml")}
    assert changed({}, "cluster", "k20m-server") == {"cluster": "k20m-server"}
    with pytest.raises(
        UserError, match=r"cluster: no file 'other.toml' here or beside run.toml; a"
    ):
        changed({}, "cluster", "other.toml")


def test_a_bundled_run_takes_a_short_key_and_another_algorithm():
    asked = [(("rate",), 0.5), (("algorithm", "is"), "AsyncSgd")]
    config = load_run(run_file("async-averaged"), changes=asked)
    assert config.schedule.rate == 0.5
    assert type(config.algorithm).__name__ == "AsyncSgd"
