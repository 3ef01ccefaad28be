"""What renews a kernel that is kept, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import NamedTuple

import numba
import numpy as np
import pytest

from harness.kernels.cache import format_type, identity

ALL = """
import gc
from importlib import import_module
from harness.kernels.cache import identity
from numba.core.registry import CPUDispatcher

for name in ("simulator.simulation", "acoustics.decoder", "acoustics.lattice", "acoustics.scoring",
             "acoustics.hmm", "acoustics.mmi"):
    import_module("harness." + name)
found = {f"{k.__module__}.{k.__qualname__}": identity(k)
         for k in gc.get_objects() if isinstance(k, CPUDispatcher) and "harness." in k.__module__}
print(len(found), *sorted(found.items()), sep="\\n")
"""


def test_every_kernel_has_the_same_identity_in_every_process():
    def identities(seed):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", ALL]
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        return finished.stdout.splitlines()

    first = identities("1")
    assert int(first[0]) > 100
    assert identities("2") == first


def reader(body, **names):
    """A function of ours, as if it stood in a module of its own."""
    scope = {"__name__": "ours", **names}
    exec(f"def reads():\n    return {body}", scope)
    return scope["reads"]


@pytest.mark.parametrize(("a", "b"), [(5, 2), (1, 7)])
def test_two_readers_of_one_module_each_count_with_what_they_read(a, b):
    def identity_of(**values):
        shared = ModuleType("shared")
        vars(shared).update(values)
        called = reader("shared.B", shared=shared)
        return identity(reader("shared.A + called()", shared=shared, called=called))

    assert identity_of(A=1, B=2, C=3) == identity_of(A=1, B=2, C=4)
    assert identity_of(A=a, B=b) != identity_of(A=1, B=2)


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


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("unrelated.py", "x = 1", "x = 2"),
        ("called.py", "@part", "def another():\n    return 7\n\n\n# A comment.\n@part"),
    ],
    ids=["a file that it does not use", "what it does not use in a file that it does"],
)
def test_a_kernel_is_not_renewed_by_a_change_of(package, computed, name, old, new):
    computed()
    change(package, name, old, new)
    assert computed() == ("31", "")


def test_changing_back_finds_the_first_kernel_again(package, computed):
    computed()
    change(package, "called.py", "BY = 10", "BY = 100")
    computed()
    change(package, "called.py", "BY = 100", "BY = 10")
    assert computed() == ("31", "")


def test_another_folder_finds_the_same_kernel(package, computed, tmp_path_factory, monkeypatch):
    computed()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "clone"
    package.rename(elsewhere)
    package.symlink_to(elsewhere)  # the kept kernels are still where they were
    assert computed() == ("31", "")


def test_tuples_whose_fields_changed_places_are_told_apart():
    def state(fields):
        kind = NamedTuple("State", [(name, float) for name in fields])
        return format_type(numba.typeof(kind(1.0, 2.0)))

    assert state(["a", "b"]) != state(["b", "a"])
    assert state(["a", "b"]) == state(["a", "b"])


def test_records_whose_fields_changed_places_are_told_apart():
    def rows(fields):
        return format_type(numba.typeof(np.zeros(1, [(name, np.float64) for name in fields])))

    assert rows(["a", "b"]) != rows(["b", "a"])
