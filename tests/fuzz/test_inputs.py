"""Damaged inputs of every kind are read, or refused in one line: thousands by `tests.fuzz`."""

import pickle
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.__main__ import failures
from tests.fuzz.kinds import INPUTS, Input
from tests.fuzz.tried import Bench
from tests.nightly import runs


@pytest.mark.parametrize("count", runs(4, 100))
@pytest.mark.parametrize("kind", INPUTS, ids=[kind.name for kind in INPUTS])
def test_a_damaged_input_costs_one_line_and_nothing_else(kind: Input, count: int) -> None:
    assert not failures(kind, count)


class Runs:
    """Unpickled, it would start a process."""

    def __reduce__(self) -> tuple[object, ...]:
        return subprocess.call, (["true"],)


def writes_above(folder: Path) -> None:
    (folder / ".." / "beside").write_text("x")


def endless(folder: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (lambda folder: pickle.loads(pickle.dumps(Runs())), "forbidden: pickle.find_class"),
        (lambda folder: subprocess.call(["true"]), "forbidden: subprocess.Popen"),
        (writes_above, "forbidden: writes"),
        (lambda folder: bytearray(1 << 34), "traceback: MemoryError"),
        (lambda folder: {}["key"], "traceback: KeyError"),
        (endless, "hang"),
    ],
    ids=["pickle", "command", "outside", "memory", "traceback", "hang"],
)
def test_what_is_forbidden_is_noticed(read, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.tried.SECONDS", 0.2)
    bench = Bench(Input("planted", lambda folder: b"", read, "a"))
    assert bench.tried(b"").startswith(wrong)
    bench.close()
